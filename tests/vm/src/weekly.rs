//! Files of packages of a suite that moves on, as it was at some time of this week.

use crate::archive::archive;
use crate::cache::{Cache, Key};
use crate::command::run;
use crate::debian::host_needs;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The files are fetched again after this time, to see what Debian has by then.
const AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Parts of packages that nothing reads here.
const LEFT_OUT: [&str; 4] = [
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
];

/// Writes down which packages are there, as dpkg does; `$1` is the root.
const STATUS: &str = r#"for deb in "$1"/var/cache/apt/archives/*.deb; do
    dpkg-deb --field "$deb"
    printf "Status: install ok unpacked\n\n"
done >> "$1/var/lib/dpkg/status""#;

/// A root with the files of these packages of a suite and of all that they depend on. From the cache,
/// or made now; what has to match it can then be fetched by `besides`, while the archive has it.
///
/// dpkg knows the packages as unpacked: none of their scripts has run.
///
/// # Errors
///
/// When the archive cannot be reached or lacks a package, or by `besides`.
pub fn files(
    cache: &Cache,
    name: &str,
    suite: &str,
    packages: &[&str],
    besides: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    host_needs(&[("mmdebstrap", "mmdebstrap"), ("unshare", "util-linux")])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let period = now.as_secs() / AGE.as_secs();
    let packages = packages.join(",");
    let key = Key::default()
        .with(suite)
        .with(&packages)
        .with(include_str!("weekly.rs"))
        .with(period.to_le_bytes());
    cache.entry(&format!("{name}-{suite}"), key, |fresh| {
        make(suite, &packages, fresh)
            .with_context(|| format!("cannot get {packages} of {suite}"))?;
        besides(fresh)
    })
}

fn make(suite: &str, packages: &str, fresh: &Path) -> Result<()> {
    let source = format!(
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {} {suite} main",
        archive()?
    );
    // Mounts of its own: they go with it, even if it is killed.
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "mmdebstrap"])
        .args(["--variant=extract", "--mode=root", "--quiet"])
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        // A copy of the archive that lags behind is good enough for this.
        .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
        .args(LEFT_OUT.map(|part| format!("--dpkgopt=path-exclude={part}")))
        .arg(format!("--extract-hook={STATUS}"))
        .arg(format!("--include={packages}"))
        .args([suite.as_ref(), fresh.as_os_str(), source.as_ref()]);
    run(&mut command).map(drop)
}
