//! The provider with the libibverbs of this machine and of other releases.

use super::cargo_tests;
use crate::build::cargo;
use anyhow::{ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tbrdma_lab::archive::archive;
use tbrdma_lab::cache::{Cache, Key};
use tbrdma_lab::command::run;
use tbrdma_lab::debian::host_needs;

/// A root file system is made again after this time, to see what Debian has by then.
const AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// What the provider is tried with.
const PACKAGES: &str = "libc6,libibverbs1";

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
    let root = root(&Cache::open()?, suite)?;
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

/// Files of a suite's libibverbs and C library. Nothing in it is started but a test.
fn root(cache: &Cache, suite: &str) -> Result<PathBuf> {
    host_needs(&[("mmdebstrap", "mmdebstrap")])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let period = now.as_secs() / AGE.as_secs();
    let key = Key::default()
        .with(suite)
        .with(PACKAGES)
        .with(period.to_le_bytes());
    cache.entry(&format!("libibverbs-{suite}"), key, |fresh| {
        make(suite, fresh).with_context(|| format!("cannot get libibverbs of {suite}"))
    })
}

fn make(suite: &str, fresh: &Path) -> Result<()> {
    let source = format!(
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {} {suite} main",
        archive()?
    );
    // A copy of the archive that lags behind is good enough for this.
    run(Command::new("mmdebstrap")
        .args(["--variant=extract", "--mode=root", "--quiet"])
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
        .arg(format!("--include={PACKAGES}"))
        .args([suite.as_ref(), fresh.as_os_str(), source.as_ref()]))
    .map(drop)
}
