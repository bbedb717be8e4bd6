//! Where Debian's packages come from.

use crate::command::run;
use anyhow::{Context, Result};
use std::process::Command;

/// Address of the Debian archive that this machine's apt uses.
///
/// # Errors
///
/// When apt knows none, also after it has looked.
pub fn archive() -> Result<String> {
    let listed = || {
        run(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(REPO_URI)",
            "Created-By: Packages",
            "Label: Debian",
        ]))
    };
    let mut found = listed()?;
    if found.trim().is_empty() {
        // A fresh machine has not looked yet.
        run(Command::new("apt-get").args(["update", "--quiet=2"]))?;
        found = listed()?;
    }
    found
        .lines()
        .next()
        .map(str::to_owned)
        .context("apt on this machine knows no Debian archive; list one in /etc/apt/sources.list")
}
