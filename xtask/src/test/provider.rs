//! The provider with the libibverbs of this machine and of other releases.

use super::cargo_tests;
use crate::build::cargo;
use anyhow::{ensure, Result};
use tbrdma_lab::cache::Cache;
use tbrdma_lab::command::run;
use tbrdma_lab::debian::host_needs;
use tbrdma_lab::weekly;

/// What the provider is tried with.
const PACKAGES: [&str; 2] = ["libc6", "libibverbs1"];

/// All that needs this machine only.
pub fn unit() -> Result<()> {
    // Comes with libibverbs1.
    host_needs(&[("ibv_devices", "ibverbs-utils"), ("unshare", "util-linux")])?;
    cargo_tests::run(&cargo_tests::all("provider-unit", "tbrdma-provider"))
}

/// Debian 13: private ABI 34.
pub fn trixie() -> Result<()> {
    with("trixie")
}

/// What becomes Debian 14: the newest libibverbs there is. Fails when its private ABI is not known;
/// then a layout family has to be added.
pub fn sid() -> Result<()> {
    with("sid")
}

fn with(suite: &str) -> Result<()> {
    // Nothing in it is started but a test.
    let root = weekly::files(&Cache::open()?, "libibverbs", suite, &PACKAGES, |_| Ok(()))?;
    // One test alone does not make cargo build what it starts: it would be missing, or an old one.
    run(cargo()
        .args(["build", "--quiet", "--locked", "-p", "tbrdma-provider"])
        .args(["--lib", "--examples"]))?;
    let mut command = cargo();
    command
        .args(["test", "--quiet", "--locked", "-p", "tbrdma-provider"])
        .args(["--test", "libibverbs", "--", "--ignored"])
        .env("TBRDMA_TEST_ROOT", &root);
    let printed = run(&mut command)?;
    ensure!(
        printed.contains("test result: ok. 1 passed"),
        "the test was not run:\n{printed}"
    );
    Ok(())
}
