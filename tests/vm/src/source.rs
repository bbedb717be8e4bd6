//! Source packages of Debian.

use crate::archive::archive;
use crate::cache::{Cache, Key};
use crate::command::run;
use anyhow::{ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the guests' packages come from that are no backports.
pub const GUEST: &[&str] = &["trixie", "trixie-updates"];
/// What becomes the next release.
pub const SID: &[&str] = &["sid"];

/// The source that a package was built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    name: String,
    version: String,
}

impl Source {
    /// That of a package which `root` has.
    ///
    /// # Errors
    ///
    /// When `root` lacks the package.
    pub fn of(root: &Path, package: &str) -> Result<Self> {
        let source = run(Command::new("dpkg-query")
            .arg(format!(
                "--admindir={}",
                root.join("var/lib/dpkg").display()
            ))
            .arg("--showformat=${source:Package}=${source:Version}")
            .args(["--show", package]))?;
        let (name, version) = source
            .split_once('=')
            .context("dpkg-query named no version")?;
        Ok(Self {
            name: name.to_owned(),
            version: version.to_owned(),
        })
    }

    /// The version that its authors gave it, without what Debian puts before and behind it.
    pub fn upstream(&self) -> &str {
        let version = self.version.split_once(':').map_or(&*self.version, |v| v.1);
        version.rsplit_once('-').map_or(version, |v| v.0)
    }

    /// A folder out of it. From the cache, or fetched now from one of the suites.
    ///
    /// It is as its authors released it, without Debian's patches: not every copy of the archive serves what is
    /// needed to apply them (the `.dsc` files).
    ///
    /// # Errors
    ///
    /// When the archive has this version no more.
    pub fn folder(&self, cache: &Cache, suites: &[&str], folder: &str) -> Result<PathBuf> {
        let key = Key::default()
            .with(self.to_string())
            .with(folder)
            .with(include_str!("source.rs"));
        cache.entry(&format!("source-{}", self.name), key, |fresh| {
            let scratch = tempfile::tempdir_in(cache.dir())?;
            let unpacked = self
                .unpack(suites, scratch.path())
                .with_context(|| format!("cannot get the source package {self}"))?;
            let wanted = unpacked.join(folder);
            ensure!(wanted.is_dir(), "{self} has no folder {folder}");
            fs::rename(wanted, fresh).context("cannot put the folder into the cache")
        })
    }

    /// Fetches its tarball, which apt verifies with the signed index, and unpacks it below `dir`.
    fn unpack(&self, suites: &[&str], dir: &Path) -> Result<PathBuf> {
        for part in ["lists/partial", "archives/partial", "files"] {
            fs::create_dir_all(dir.join(part))?;
        }
        let mirror = archive()?;
        let lines: String = suites
            .iter()
            .map(|suite| {
                format!(
                    "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n"
                )
            })
            .collect();
        fs::write(dir.join("sources.list"), lines)?;
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
                // The package may come from a copy of the archive that lags behind.
                "Acquire::Check-Valid-Until=false".to_owned(),
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
            .arg(self.to_string()))?;
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
}

/// As apt takes it.
impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authors_version_is_told() {
        for (version, upstream) in [
            ("65.0-1.1", "65.0"),
            ("1:2.78-1", "2.78"),
            ("2026-04-1+b2", "2026-04"),
            ("3.7", "3.7"),
        ] {
            let source = Source {
                name: "x".into(),
                version: version.into(),
            };
            assert_eq!(source.upstream(), upstream);
            assert_eq!(source.to_string(), format!("x={version}"));
        }
    }

    /// Of a binary package with a name and version of its own.
    #[test]
    fn the_source_of_a_package_is_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("var/lib/dpkg")).unwrap();
        fs::write(
            dir.path().join("var/lib/dpkg/status"),
            "Package: b\nStatus: install ok unpacked\nMaintainer: x\nArchitecture: amd64\nDescription: x\n\
             Source: s (2:3.0-4)\nVersion: 7-1+b1\n\n",
        )
        .unwrap();
        let source = Source::of(dir.path(), "b").unwrap();
        assert_eq!(source.to_string(), "s=2:3.0-4");
        assert!(Source::of(dir.path(), "c").is_err());
    }
}
