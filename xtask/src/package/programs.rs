//! The compiled parts: the provider and the command line tool.

use super::deb::walk;
use super::{output, run};
use anyhow::{ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the programs into `target` and returns the folder in which they lie, without debug information.
pub(super) fn build(repository: &Path, target: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // No path of this machine in panic messages
    let mut flags = vec![format!(
        "--remap-path-prefix={}=/usr/src/tbrdma",
        text(repository)?
    )];
    if let Some(home) = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
    {
        flags.push(format!(
            "--remap-path-prefix={}=/usr/share/cargo",
            text(&home)?
        ));
    }
    run(Command::new(cargo)
        .current_dir(repository)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .args(["build", "--quiet", "--release", "--locked"])
        .args(["-p", "tbrdma-provider", "-p", "tbrdma-cli"]))?;
    let dir = target.join("release");
    for file in ["libtbrdma.so", "tbrdma"] {
        ensure!(
            dir.join(file).exists(),
            "cargo did not make {}",
            dir.join(file).display()
        );
    }
    Ok(dir)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

/// The dependency on the C library that the ELF files under `stage` have, from the newest symbol version they
/// ask for; empty if there are none. Rust programs need libgcc for unwinding as well.
pub(super) fn libc_dependency(stage: &Path) -> Result<String> {
    let mut newest = None;
    let mut libgcc = false;
    for file in walk(stage)? {
        if file.is_symlink() || !is_elf(&file)? {
            continue;
        }
        let needs = output(
            Command::new("readelf")
                .arg("--version-info")
                .arg("--dynamic")
                .arg(&file),
        )?;
        newest = newest.max(newest_glibc(&needs));
        libgcc |= needs.contains("libgcc_s.so.1");
    }
    Ok(match newest {
        None => String::new(),
        Some((major, minor)) => {
            let libgcc = if libgcc { ", libgcc-s1 (>= 4.2)" } else { "" };
            format!("libc6 (>= {major}.{minor}){libgcc}")
        }
    })
}

fn is_elf(file: &Path) -> Result<bool> {
    use std::io::Read;
    let mut magic = [0; 4];
    let mut open =
        fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(open.read(&mut magic)? == 4 && &magic == b"\x7fELF")
}

/// The highest `GLIBC_x.y` in the output of `readelf --version-info`.
fn newest_glibc(text: &str) -> Option<(u32, u32)> {
    text.split_whitespace()
        .filter_map(|word| {
            let (major, rest) = word.strip_prefix("GLIBC_")?.split_once('.')?;
            let minor = rest.split('.').next()?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_newest_version() {
        let text = "Name: GLIBC_2.2.5  Flags: none\n Name: GLIBC_2.34 Flags\n Name: GLIBC_2.9 GLIBC_PRIVATE";
        assert_eq!(newest_glibc(text), Some((2, 34)));
        assert_eq!(newest_glibc("Name: GCC_3.0"), None);
    }
}
