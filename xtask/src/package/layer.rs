//! The guests' root with our packages installed: what `apt install ./*.deb` makes of a stock Debian.

use super::{install, package, Options};
use crate::build;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use tbrdma_lab::cache::{Cache, Key};
use tbrdma_lab::command::run;
use tbrdma_lab::debian::host_needs;
use tbrdma_lab::{image, lab};

/// Makes the packages, installs them into a copy of the guests' root, and returns that copy and
/// what its content follows from.
pub fn guest_with_packages() -> Result<(PathBuf, String)> {
    let debs = package(&Options::new(build::repository()))?;
    let cache = Cache::open()?;
    let base = lab::GUEST.root(&cache)?;
    let mut key = Key::default()
        .with(base.display().to_string())
        .with(include_str!("layer.rs"));
    for deb in &debs {
        key = key.with_file(deb)?;
    }
    let root = cache.entry("root-installed", key, |fresh| {
        install_into(&base, fresh, &debs)
    })?;
    let content = root.display().to_string();
    Ok((root, content))
}

fn install_into(base: &Path, fresh: &Path, debs: &[PathBuf]) -> Result<()> {
    eprintln!("installing the packages into a copy of the guests' root (DKMS builds the module)");
    copy(base, fresh)?;
    let kernels = image::kernels(fresh)?;
    let names: Vec<&str> = kernels.iter().map(String::as_str).collect();
    install::into_root(fresh, debs, &names).map(drop)
}

/// A whole copy of a root.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    host_needs(&[("cp", "coreutils")])?;
    run(Command::new("cp")
        .args(["--archive", "--reflink=auto"])
        .arg(from)
        .arg(to))
    .map(drop)
    .with_context(|| format!("cannot copy {}", from.display()))
}
