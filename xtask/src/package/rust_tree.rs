//! The kernel's `rust/` trees, from Debian's `linux-source-*` packages.
//!
//! apt fetches and checks the packages, with lists of its own, so that neither the sources of the machine
//! matter nor are they changed.

use super::{output, run, SERIES};
use anyhow::{ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the kernels of all series come from.
const SUITE: &str = "trixie-backports";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A folder that is meant to hold the trees: checks that none is missing.
pub(super) fn check(dir: &Path) -> Result<PathBuf> {
    for series in SERIES {
        let file = dir.join(format!("{series}.tar.xz"));
        ensure!(
            file.is_file(),
            "{} is missing; make it with kmod/build/pack-rust-tree",
            file.display()
        );
    }
    dir.canonicalize()
        .with_context(|| format!("{} is gone", dir.display()))
}

/// Fetches what is not in `cache` yet and returns a folder with `SERIES.tar.xz` for each series.
///
/// A tree stays in the cache until it is deleted there: all point releases of a series take the same one.
pub(super) fn fetch(repository: &Path, cache: &Path) -> Result<PathBuf> {
    let trees = cache.join("packed");
    fs::create_dir_all(&trees).with_context(|| format!("cannot make {}", trees.display()))?;
    let missing: Vec<&str> = SERIES
        .iter()
        .copied()
        .filter(|series| !trees.join(format!("{series}.tar.xz")).exists())
        .collect();
    if missing.is_empty() {
        return check(&trees);
    }
    let apt = Apt::new(cache)?;
    for series in missing {
        eprintln!("fetching the source of kernel {series} from Debian (about 170 MB, once)");
        let deb = apt.download(&format!("linux-source-{series}"))?;
        let unpacked = cache.join("unpacked");
        if unpacked.exists() {
            fs::remove_dir_all(&unpacked)?;
        }
        run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&unpacked))?;
        let source = unpacked.join(format!("usr/src/linux-source-{series}.tar.xz"));
        // A name of its own until it is whole
        let part = trees.join(format!("{series}.part"));
        run(Command::new(repository.join("kmod/build/pack-rust-tree"))
            .arg(&source)
            .arg(&part))
        .with_context(|| format!("cannot pack the rust/ tree of kernel {series}"))?;
        fs::rename(&part, trees.join(format!("{series}.tar.xz")))?;
        fs::remove_dir_all(&unpacked)?;
        fs::remove_file(&deb)?;
    }
    check(&trees)
}

struct Apt {
    dir: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(cache: &Path) -> Result<Self> {
        ensure!(
            Path::new(KEYRING).exists(),
            "{KEYRING} is missing; install debian-archive-keyring"
        );
        let dir = cache.join("apt");
        for sub in ["lists/partial", "archives/partial", "preferences.d"] {
            fs::create_dir_all(dir.join(sub))
                .with_context(|| format!("cannot make {}/{sub}", dir.display()))?;
        }
        let dir = dir.canonicalize()?;
        let mirror = tbrdma_lab::archive::archive()?;
        fs::write(
            dir.join("sources.list"),
            format!("deb [arch=amd64 signed-by={KEYRING}] {mirror} {SUITE} main\n"),
        )?;
        fs::write(dir.join("status"), "")?;
        let at = |name: &str| dir.join(name).display().to_string();
        let mut options = Vec::new();
        for (key, value) in [
            ("Dir::Etc::SourceList", at("sources.list")),
            ("Dir::Etc::SourceParts", "-".to_owned()),
            ("Dir::Etc::PreferencesParts", at("preferences.d")),
            ("Dir::State::Lists", at("lists")),
            ("Dir::State::Status", at("status")),
            ("Dir::Cache", at("archives")),
            ("APT::Architecture", "amd64".to_owned()),
            ("APT::Sandbox::User", String::new()),
            ("Acquire::Languages", "none".to_owned()),
        ] {
            options.push("-o".to_owned());
            options.push(format!("{key}={value}"));
        }
        let apt = Self { dir, options };
        run(apt.get().args(["--quiet=2", "update"]))
            .context("cannot read Debian's package lists")?;
        Ok(apt)
    }

    fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.args(&self.options);
        command
    }

    /// Downloads a package and returns its file.
    fn download(&self, package: &str) -> Result<PathBuf> {
        let uris =
            output(
                self.get()
                    .current_dir(&self.dir)
                    .args(["download", "--print-uris", package]),
            )?;
        let name = uris
            .split_whitespace()
            .nth(1)
            .with_context(|| format!("{SUITE} has no package {package}"))?;
        let file = self.dir.join(name);
        run(self
            .get()
            .current_dir(&self.dir)
            .args(["--quiet=2", "download", package]))?;
        ensure!(file.exists(), "apt-get did not download {}", file.display());
        Ok(file)
    }
}
