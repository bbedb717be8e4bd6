//! The packages on a stock Debian.

use crate::build;
use crate::package::{install, layer, package, Options};
use anyhow::Result;
use tbrdma_lab::cache::Cache;
use tbrdma_lab::{image, roots};

/// `apt install ./*.deb` builds the module for every kernel; remove and purge leave nothing.
pub fn deb_install() -> Result<()> {
    let debs = package(&Options::new(build::repository()))?;
    let base = roots::GUEST.root(&Cache::open()?)?;
    let scratch = tempfile::tempdir_in(Cache::open()?.dir())?;
    let root = scratch.path().join("root");
    layer::copy(&base, &root)?;
    let kernels = image::kernels(&root)?;
    let names: Vec<&str> = kernels.iter().map(String::as_str).collect();
    install::into_root(&root, &debs, &names)?;
    install::out_of_root(&root, false)?;
    install::into_root(&root, &debs, &names)?;
    install::out_of_root(&root, true)
}
