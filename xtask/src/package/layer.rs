//! The guests' root with our packages installed: what `apt install ./*.deb` makes of a stock Debian.

use super::{install, package, Options, SERIES};
use crate::build;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tbrdma_lab::cache::{self, Cache, Key};
use tbrdma_lab::command::run;
use tbrdma_lab::{image, roots};

/// Makes the packages, installs them into a copy of the guests' root, and returns that copy and
/// what its content follows from.
pub fn guest_with_packages() -> Result<(PathBuf, String)> {
    let debs = package(&Options::new(build::repository()))?;
    let cache = Cache::open()?;
    let base = roots::GUEST.root(&cache)?;
    let mut key = Key::default()
        .with(cache::content_of(&base))
        .with(include_str!("layer.rs"));
    for deb in &debs {
        key = key.with_file(deb)?;
    }
    let root = cache.entry("root-installed", key, |fresh| {
        install_into(&cache, &base, fresh, &debs)
    })?;
    let content = cache::content_of(&root);
    Ok((root, content))
}

/// Where DKMS's build keeps what it compiled of the kernel's rust/ tree.
const STACK: &str = "var/cache/tbrdma-dkms";

fn install_into(cache: &Cache, base: &Path, fresh: &Path, debs: &[PathBuf]) -> Result<()> {
    eprintln!("installing the packages into a copy of the guests' root (DKMS builds the module)");
    copy(base, fresh)?;
    // Compiling the rust/ tree takes a minute for each kernel, and does not depend on our code. The
    // build uses what it finds only if that came from the same compiler and sources.
    let stack = fresh.join(STACK);
    if let Some(before) = cache.find("rust-stack", stack_key(base)?) {
        copy_whole(&before, &stack)?;
    }
    let kernels = image::kernels(fresh)?;
    let names: Vec<&str> = kernels.iter().map(String::as_str).collect();
    let installed = install::into_root(fresh, debs, &names);
    // It is of use for the next attempt too, if ours does not compile.
    if kernels.iter().all(|release| has_stack(&stack, release)) {
        cache.entry("rust-stack", stack_key(base)?, |to| copy_whole(&stack, to))?;
    }
    installed.map(drop)
}

/// The rust/ tree of this kernel was compiled to its end.
fn has_stack(stack: &Path, release: &str) -> bool {
    fs::read_dir(stack).is_ok_and(|dir| {
        dir.flatten().any(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with(&format!("{release}-")) && entry.path().join("complete").exists()
        })
    })
}

/// What the compiled rust/ trees follow from.
fn stack_key(base: &Path) -> Result<Key> {
    let build = build::repository().join("kmod/build");
    let mut key = Key::default()
        .with(cache::content_of(base))
        .with_file(&build.join("stack"))?
        .with_file(&build.join("lib.sh"))?;
    let trees = Options::new(build::repository())
        .cache
        .join("rust-trees/packed");
    for series in SERIES {
        key = key.with_file(&trees.join(format!("{series}.tar.xz")))?;
    }
    Ok(key)
}

/// A copy of a root whose `/usr` shares its files with the original: package managers replace files
/// there, they do not write into them.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let how = if entry.file_name() == "usr" {
            "--link"
        } else {
            "--reflink=auto"
        };
        run(Command::new("cp")
            .args(["--archive", how])
            .arg(entry.path())
            .arg(to))
        .with_context(|| format!("cannot copy {}", entry.path().display()))?;
    }
    Ok(())
}

fn copy_whole(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp")
        .args(["--archive", "--reflink=auto", "--no-target-directory"])
        .arg(from)
        .arg(to))
    .map(drop)
    .with_context(|| format!("cannot copy {}", from.display()))
}
