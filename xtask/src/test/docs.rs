//! Documentation says what is so.

use crate::build::repository;
use crate::package::{install::Root, layer, VERSION};
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use tbrdma_lab::command::run;
use tbrdma_lab::image;

/// There is one version number, and everything that is installed has it.
pub fn version() -> Result<()> {
    let (root, _) = layer::guest_with_packages()?;
    let chroot = Root::new(&root, false)?;
    let packages = chroot.run("dpkg-query -W -f '${Package} ${Version}\\n' '*tbrdma*'")?;
    let mut seen = 0;
    for line in packages.lines() {
        let (package, version) = line
            .split_once(' ')
            .context("dpkg printed something else")?;
        ensure!(
            version == VERSION,
            "package {package} has version {version}, not {VERSION}"
        );
        seen += 1;
    }
    ensure!(
        seen >= 4,
        "only {seen} packages of ours are installed:\n{packages}"
    );
    for kernel in image::kernels(&root)? {
        let found = chroot.run(&format!("modinfo -k {kernel} -F version tbrdma"))?;
        ensure!(
            found.trim() == VERSION,
            "the module for {kernel} has version {found}"
        );
    }
    let tool = chroot.run("tbrdma --version")?;
    ensure!(
        tool.trim() == format!("tbrdma {VERSION}"),
        "the tool says {tool}"
    );

    // Nobody states the number again. Cargo.lock repeats it for cargo's own use.
    let listed = run(Command::new("git").current_dir(repository()).args([
        "grep",
        "--files-with-matches",
        "--fixed-strings",
        &format!("\"{VERSION}\""),
        "--",
        ":!Cargo.lock",
        ":!*/Cargo.lock",
    ]))?;
    let files: Vec<&str> = listed.lines().collect();
    ensure!(
        files == ["Cargo.toml"],
        "the version number is stated in {files:?}"
    );
    Ok(())
}

/// docs/parameters.md describes exactly the module's parameters, and modprobe.d their defaults.
pub fn parameters() -> Result<()> {
    let (root, _) = layer::guest_with_packages()?;
    let chroot = Root::new(&root, false)?;
    let kernel = image::kernels(&root)?
        .into_iter()
        .next()
        .context("no kernel")?;
    let described = chroot.run(&format!("modinfo -k {kernel} -F parm tbrdma"))?;
    let module: BTreeMap<&str, &str> = described
        .lines()
        .filter_map(|line| line.split_once(':'))
        .collect();
    ensure!(!module.is_empty(), "the module has no parameters");
    let page = fs::read_to_string(repository().join("docs/parameters.md"))?;
    // Each parameter has a heading of its own: ## `name`
    let documented: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## `")?.strip_suffix('`'))
        .collect();
    for name in &documented {
        ensure!(
            module.contains_key(name),
            "docs/parameters.md describes {name}, which the module lacks"
        );
    }
    for name in module.keys() {
        ensure!(
            documented.contains(name),
            "docs/parameters.md does not describe {name}"
        );
    }
    let defaults = fs::read_to_string(repository().join("modprobe.d/tbrdma.conf"))?;
    for name in &documented {
        ensure!(
            defaults.contains(&format!("{name}=")),
            "modprobe.d/tbrdma.conf does not state the default of {name}"
        );
    }
    Ok(())
}
