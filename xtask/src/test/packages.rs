//! The packages on a stock Debian.

use crate::build;
use crate::package::{install, layer, package, Options};
use anyhow::{ensure, Context, Result};
use std::path::Path;
use tbrdma_lab::cache::Cache;
use tbrdma_lab::{image, roots};

/// `apt install ./*.deb` builds the module with DKMS; remove and purge leave nothing.
///
/// This is the whole way, without anything that was compiled before, for the newest kernel. The
/// lab boots what was installed for all of them.
pub fn deb_install() -> Result<()> {
    let debs = package(&Options::new(build::repository()))?;
    let cache = Cache::open()?;
    let base = roots::GUEST.root(&cache)?;
    let scratch = tempfile::tempdir_in(cache.dir())?;
    let root = scratch.path().join("root");
    layer::copy(&base, &root)?;
    has_prerequisites(&root)?;
    let kernel = keep_newest_headers(&root)?;
    install::into_root(&root, &debs, &[&kernel])?;
    install::out_of_root(&root, false)?;
    install::into_root(&root, &debs, &[&kernel])?;
    install::out_of_root(&root, true)
}

/// Everything that our packages depend on is in the root already, so that apt needs no network.
fn has_prerequisites(root: &Path) -> Result<()> {
    let chroot = install::Root::new(root, false)?;
    for package in install::prerequisites(build::repository())? {
        let status = chroot
            .run(&format!(
                "dpkg-query --show --showformat='${{db:Status-Status}}' {package}"
            ))
            .with_context(|| {
                format!("our packages need {package}; add it to roots::GUEST in tests/vm")
            })?;
        ensure!(
            status == "installed",
            "{package} is {status} in the guests' root; add it to roots::GUEST in tests/vm"
        );
    }
    Ok(())
}

/// Removes the headers of all kernels but the newest, for which alone DKMS then builds. Returns its
/// release.
fn keep_newest_headers(root: &Path) -> Result<String> {
    let kernels = image::kernels(root)?;
    let (newest, older) = kernels
        .split_first()
        .context("the guests' root has no kernel")?;
    let chroot = install::Root::new(root, false)?;
    for release in older {
        chroot.run(&format!(
            "apt-get purge --yes --quiet=2 -o Dpkg::Use-Pty=0 linux-headers-{release}"
        ))?;
    }
    Ok(newest.clone())
}
