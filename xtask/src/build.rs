//! Programs of the workspace that tests and the lab run.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use tbrdma_lab::command::run;

/// The checkout.
pub fn repository() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Cargo's output folder.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// Cargo, in the checkout.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository());
    command
}

/// Builds a program of a workspace member and returns its file.
pub fn program(package: &str, name: &str) -> Result<PathBuf> {
    run(cargo().args([
        "build",
        "--quiet",
        "--release",
        "--locked",
        "-p",
        package,
        "--bin",
        name,
    ]))
    .with_context(|| format!("{name} does not compile"))?;
    Ok(target().join("release").join(name))
}

/// The program that emulates routers and cables.
pub fn fabric() -> Result<PathBuf> {
    // Another build of it, for those who work on it.
    if let Some(path) = std::env::var_os("TBRDMA_FABRIC") {
        return Ok(path.into());
    }
    program("tbrdma-fabric", "tbrdma-fabric")
}
