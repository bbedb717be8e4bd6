//! The provider in real libibverbs, without a kernel behind it.
//!
//! The tests that are ignored need root file systems with other releases of libibverbs, whose paths
//! are in `TBRDMA_TEST_ROOT`; `cargo xtask test --only 'provider-abi-*'` makes them.

mod common;

use common::{Machine, System};
use tbrdma::layout::FAMILIES;

fn works(system: &System) {
    let outcome = Machine::new(system).set("TBRDMA_DEBUG", "1").open();
    outcome.assert_works();
    assert!(
        outcome.err.contains("registering with private ABI"),
        "{outcome}"
    );
    // Nothing is printed that nobody asked for.
    let outcome = Machine::new(system).open();
    outcome.assert_works();
    assert!(!outcome.err.contains("tbrdma"), "{outcome}");
}

/// Which family the provider chose.
fn chosen(system: &System) -> String {
    let outcome = Machine::new(system).set("TBRDMA_DEBUG", "1").open();
    let family = FAMILIES
        .into_iter()
        .map(|family| format!("{family:?}"))
        .find(|family| outcome.err.contains(&format!("layout {family}")));
    family.unwrap_or_else(|| panic!("no layout was told: {outcome}"))
}

fn wrong_families_are_detected(system: &System) {
    let right = chosen(system);
    for family in FAMILIES {
        let family = format!("{family:?}");
        let outcome = Machine::new(system)
            .set("TBRDMA_TEST_FAMILY", &family)
            .open();
        if family == right {
            outcome.assert_works();
        } else {
            outcome.assert_fails("cannot be opened");
            outcome.assert_fails(&format!("does not have the layout {family}"));
        }
    }
}

fn unknown_abis_are_refused(system: &System) {
    let outcome = Machine::new(system).with_unknown_libibverbs().open();
    outcome.assert_fails("tbrdma0 is not among 0 devices");
    outcome.assert_fails("a private ABI that this version of tbrdma does not know");
    outcome.assert_fails("install a newer ibverbs-provider-tbrdma");
}

fn other_devices_are_left_alone(system: &System) {
    // Its name is ours, but no kernel says that its driver is.
    let outcome = Machine::new(system).without_name_match().open();
    outcome.assert_fails("tbrdma0 is not among 0 devices");
}

fn other_kernel_interfaces_are_refused(system: &System) {
    let newer = tbrdma_uapi::ABI_VERSION + 1;
    let outcome = Machine::with_abi(system, newer)
        .set("IBV_SHOW_WARNINGS", "1")
        .open();
    outcome.assert_fails("tbrdma0 is not among 0 devices");
    outcome.assert_fails(&format!("support the kernel ABI of {newer}"));
}

#[test]
fn host_works() {
    works(&System::Host);
}

#[test]
fn host_wrong_families_are_detected() {
    wrong_families_are_detected(&System::Host);
}

#[test]
fn host_unknown_abis_are_refused() {
    unknown_abis_are_refused(&System::Host);
}

#[test]
fn host_other_devices_are_left_alone() {
    other_devices_are_left_alone(&System::Host);
}

#[test]
fn host_other_kernel_interfaces_are_refused() {
    other_kernel_interfaces_are_refused(&System::Host);
}

#[test]
#[ignore = "needs a root file system; cargo xtask test --only 'provider-abi-*'"]
fn root_works() {
    let root = std::env::var_os("TBRDMA_TEST_ROOT").expect("TBRDMA_TEST_ROOT is set");
    let system = System::Root(root.into());
    // Which release it is shows in the name of the file.
    println!("{}", system.libibverbs().canonicalize().unwrap().display());
    works(&system);
    wrong_families_are_detected(&system);
    unknown_abis_are_refused(&system);
    other_devices_are_left_alone(&system);
    other_kernel_interfaces_are_refused(&system);
}
