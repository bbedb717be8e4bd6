//! Linters; what they find is a failure.

use crate::build::{cargo, repository};
use crate::package::{package, Options};
use anyhow::{ensure, Context, Result};
use std::path::PathBuf;
use std::process::Command;
use tbrdma_lab::command::run;
use tbrdma_lab::debian::host_needs;

/// Files that git knows of, or would.
fn tracked() -> Result<Vec<PathBuf>> {
    let listed = run(Command::new("git").current_dir(repository()).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let files: Vec<PathBuf> = listed
        .lines()
        .map(|line| repository().join(line))
        .filter(|path| path.is_file())
        .collect();
    ensure!(
        !files.is_empty(),
        "git lists no files in {}",
        repository().display()
    );
    Ok(files)
}

/// rustfmt over the workspace and the kernel module.
pub fn fmt() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))?;
    let root = repository().join("kmod/src/main.rs");
    run(Command::new("rustfmt")
        .args(["--check", "--edition", "2021", "--config-path"])
        .arg(repository())
        .arg(root))
    .map(drop)
}

/// clippy over the workspace.
pub fn clippy() -> Result<()> {
    run(cargo().args([
        "clippy",
        "--quiet",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))
    .map(drop)
}

/// shellcheck over everything that a shell runs.
pub fn shellcheck() -> Result<()> {
    host_needs(&[("shellcheck", "shellcheck")])?;
    let mut scripts = Vec::new();
    for file in tracked()? {
        let content =
            std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let first = content.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
        let first = String::from_utf8_lossy(first);
        if first.starts_with("#!") && first.contains("sh") {
            scripts.push(file);
        }
    }
    ensure!(!scripts.is_empty(), "no scripts were found");
    run(Command::new("shellcheck")
        .arg("--external-sources")
        .args(&scripts))
    .map(drop)
}

/// lintian over the packages that `cargo xtask package` makes.
pub fn lintian() -> Result<()> {
    host_needs(&[("lintian", "lintian")])?;
    let debs = package(&Options::new(repository()))?;
    run(Command::new("lintian")
        .args(["--fail-on", "error,warning", "--tag-display-limit", "0"])
        .args(&debs))
    .map(drop)
}
