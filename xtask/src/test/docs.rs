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

/// docs/parameters.md describes exactly the module's parameters with their types, and modprobe.d
/// states the same defaults.
pub fn parameters() -> Result<()> {
    let (root, _) = layer::guest_with_packages()?;
    let chroot = Root::new(&root, false)?;
    let page = fs::read_to_string(repository().join("docs/parameters.md"))?;
    let documented = documented(&page);
    for kernel in image::kernels(&root)? {
        // "name:description (type)"
        let described = chroot.run(&format!("modinfo -k {kernel} -F parm tbrdma"))?;
        let module: BTreeMap<&str, &str> = described
            .lines()
            .filter_map(|line| {
                let (name, rest) = line.split_once(':')?;
                Some((name, rest.rsplit_once('(')?.1.trim_end_matches(')')))
            })
            .collect();
        ensure!(
            !module.is_empty(),
            "the module for {kernel} has no parameters"
        );
        let types: BTreeMap<&str, &str> = documented
            .iter()
            .map(|(name, row)| (*name, row.kind))
            .collect();
        ensure!(
            module == types,
            "docs/parameters.md has the parameters {types:?}, the module for {kernel} {module:?}"
        );
    }
    let stated = fs::read_to_string(repository().join("modprobe.d/tbrdma.conf"))?;
    for (name, row) in &documented {
        let words = [
            format!("{name}={}", row.default),
            // A flag may be written as modprobe takes it.
            format!("{name}={}", if row.default == "N" { "0" } else { "1" }),
        ];
        ensure!(
            stated
                .split_whitespace()
                .any(|word| words.iter().any(|w| w == word)),
            "modprobe.d/tbrdma.conf does not state the default {} of {name}",
            row.default
        );
    }
    Ok(())
}

/// A row of the table in docs/parameters.md.
struct Row<'a> {
    kind: &'a str,
    default: &'a str,
}

/// Rows "| `name` | type | default | meaning |", by name.
fn documented(page: &str) -> BTreeMap<&str, Row<'_>> {
    page.lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let name = cells.next()?.strip_suffix('`')?;
            let (kind, default) = (cells.next()?, cells.next()?);
            Some((name, Row { kind, default }))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::documented;

    #[test]
    fn reads_the_table() {
        let page = "| Parameter | Type | Default | Meaning |\n|---|---|---|---|\n| `a_b` | uint | 5 | What. |\n";
        let rows = documented(page);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows["a_b"].kind, rows["a_b"].default), ("uint", "5"));
    }
}
