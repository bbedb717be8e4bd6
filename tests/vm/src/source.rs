//! Source packages of Debian.

use crate::archive::archive;
use crate::cache::{Cache, Key};
use crate::command::run;
use anyhow::{ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the guests' packages come from that are no backports.
const SUITES: [&str; 2] = ["trixie", "trixie-updates"];

/// A folder out of the source that a package in `root` was built from. From the cache, or fetched
/// now.
///
/// It is as its authors released it, without Debian's patches: not every copy of the archive serves what is needed to
/// apply them (the `.dsc` files).
///
/// # Errors
///
/// When `root` lacks the package, or the archive has this version of its source no more.
pub fn folder(cache: &Cache, root: &Path, package: &str, folder: &str) -> Result<PathBuf> {
    let source = run(Command::new("dpkg-query")
        .arg(format!(
            "--admindir={}",
            root.join("var/lib/dpkg").display()
        ))
        .arg("--showformat=${source:Package}=${source:Version}")
        .args(["--show", package]))?;
    let key = Key::default()
        .with(&source)
        .with(folder)
        .with(include_str!("source.rs"));
    cache.entry(&format!("source-{package}"), key, |fresh| {
        let scratch = tempfile::tempdir_in(cache.dir())?;
        let unpacked = unpack(scratch.path(), &source)
            .with_context(|| format!("cannot get the source package {source}"))?;
        let wanted = unpacked.join(folder);
        ensure!(wanted.is_dir(), "{source} has no folder {folder}");
        fs::rename(wanted, fresh).context("cannot put the folder into the cache")
    })
}

/// Fetches the tarball of `source` (`NAME=VERSION`), which apt verifies with the signed index, and unpacks it.
fn unpack(dir: &Path, source: &str) -> Result<PathBuf> {
    for part in ["lists/partial", "archives/partial", "files"] {
        fs::create_dir_all(dir.join(part))?;
    }
    let mirror = archive()?;
    let lines = SUITES.map(|suite| {
        format!(
            "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n"
        )
    });
    fs::write(dir.join("sources.list"), lines.concat())?;
    let apt = || {
        let mut command = Command::new("apt-get");
        command.current_dir(dir.join("files"));
        for option in [
            format!("Dir::Etc::sourcelist={}/sources.list", dir.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State={}", dir.display()),
            "Dir::State::status=/dev/null".to_owned(),
            format!("Dir::Cache={}", dir.display()),
            // Files are fetched by root: apt's own user may not look into the cache.
            "APT::Sandbox::User=root".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command
    };
    run(apt().args(["update", "--quiet=2"]))?;
    run(apt()
        .args([
            "source",
            "--download-only",
            "--only-source",
            "--tar-only",
            "--quiet=2",
        ])
        .arg(source))?;
    let tarball = fs::read_dir(dir.join("files"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().contains(".orig.tar."))
        .context("apt fetched no tarball of it")?;
    let unpacked = dir.join("unpacked");
    fs::create_dir(&unpacked)?;
    run(Command::new("tar")
        .args(["--strip-components=1", "--no-same-owner", "--directory"])
        .arg(&unpacked)
        .arg("--extract")
        .arg("--file")
        .arg(tarball))?;
    Ok(unpacked)
}
