//! Debian root file systems, made by mmdebstrap.

use crate::archive::archive;
use crate::cache::{Cache, Key};
use crate::command::run;
use anyhow::{bail, ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What the guests and QEMU come from.
const SUITES: [&str; 3] = ["trixie", "trixie-updates", "trixie-backports"];
/// The package index is fetched again after this time.
const INDEX_AGE: Duration = Duration::from_secs(6 * 3600);

/// Installs packages on the host that are missing. `programs`: pairs of a program and the package
/// that has it.
pub fn host_needs(programs: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| !on_path(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    ensure!(
        nix::unistd::geteuid().is_root(),
        "these packages are missing and only root can install them: {}",
        missing.join(" ")
    );
    eprintln!("installing {}", missing.join(" "));
    run(Command::new("apt-get").args(["update", "--quiet=2"]))?;
    run(Command::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "--yes", "--quiet=2", "--no-install-recommends"])
        .args(&missing))?;
    Ok(())
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(more)
        .any(|dir| dir.join(program).exists())
}

/// A root to be made.
pub struct Recipe<'a> {
    /// What it is for; part of its name.
    pub name: &'a str,
    /// mmdebstrap's variant: "apt" for a whole system, "extract" for files only.
    pub variant: &'a str,
    /// Suite whose packages are preferred; the stable suite if empty.
    pub prefer: &'a str,
    /// Packages, those of backports as `name/trixie-backports`. `{7.3}` in a name stands for the
    /// newest release of that kernel series.
    pub packages: &'a [&'a str],
    /// A shell script that runs in the finished root; not for the variant "extract".
    pub finish: &'a str,
}

impl Recipe<'_> {
    /// The root, from the cache or made now. The key has the version of every package in it.
    pub fn root(&self, cache: &Cache) -> Result<PathBuf> {
        host_needs(&[("mmdebstrap", "mmdebstrap"), ("unshare", "util-linux")])?;
        let index = Index::open(cache)?;
        let packages = self
            .packages
            .iter()
            .map(|name| index.newest(name))
            .collect::<Result<Vec<String>>>()?;
        let key = Key::default()
            .with(self.variant)
            .with(self.finish)
            .with(include_str!("debian.rs"))
            .with(self.prefer)
            .with(index.resolve(&packages, self.prefer)?);
        cache.entry(&format!("root-{}", self.name), key, |fresh| {
            self.make(&index, &packages, fresh)
        })
    }

    fn make(&self, index: &Index, packages: &[String], fresh: &Path) -> Result<()> {
        eprintln!("making the root file system \"{}\" (once)", self.name);
        // Mounts of its own: they go with it, even if it is killed.
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "mmdebstrap"])
            .arg(format!("--variant={}", self.variant))
            .arg("--mode=root")
            .arg("--quiet")
            .arg("--aptopt=APT::Install-Recommends \"false\"")
            .arg(format!("--aptopt=APT::Default-Release \"{}\"", self.prefer))
            .arg(format!("--include={}", packages.join(",")));
        if self.variant != "extract" {
            // No service starts, no documentation, no package files.
            command
                .arg("--dpkgopt=path-exclude=/usr/share/man/*")
                .arg("--dpkgopt=path-exclude=/usr/share/locale/*")
                .arg("--essential-hook=printf '#!/bin/sh\\nexit 101\\n' > \"$1/usr/sbin/policy-rc.d\"; chmod +x \"$1/usr/sbin/policy-rc.d\"")
                .arg("--customize-hook=rm \"$1/usr/sbin/policy-rc.d\"");
            if !self.finish.is_empty() {
                command.arg(format!(
                    "--customize-hook=chroot \"$1\" sh -ec '{}'",
                    self.finish
                ));
            }
        }
        command.arg(SUITES[0]).arg(fresh).arg(&index.sources);
        run(&mut command)?;
        Ok(())
    }
}

/// apt's view of the suites, apart from the host's own.
struct Index {
    dir: PathBuf,
    sources: PathBuf,
}

impl Index {
    fn open(cache: &Cache) -> Result<Self> {
        let dir = cache.dir().join("apt");
        for part in ["etc", "state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(part))?;
        }
        let sources = dir.join("etc/sources.list");
        let mirror = archive()?;
        let lines: Vec<String> = SUITES
            .iter()
            .map(|suite| {
                format!(
                    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n"
                )
            })
            .collect();
        let wanted = lines.concat();
        let stamp = dir.join("fetched");
        let same = fs::read_to_string(&sources).is_ok_and(|old| old == wanted);
        let fresh = fs::metadata(&stamp)
            .and_then(|m| m.modified())
            .is_ok_and(|t| t.elapsed().is_ok_and(|age| age < INDEX_AGE));
        fs::write(&sources, wanted)?;
        let index = Self { dir, sources };
        if !(same && fresh) {
            host_needs(&[("mmdebstrap", "mmdebstrap")])?;
            let fetched = run(index.apt("apt-get").args(["update", "--quiet=2"]));
            match fetched {
                Ok(_) => fs::write(&stamp, "")?,
                Err(error) if same => {
                    eprintln!(
                        "the package index cannot be fetched, the old one is used: {error:#}"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(index)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let dir = self.dir.display();
        command
            .arg("-o")
            .arg(format!("Dir::Etc::sourcelist={}", self.sources.display()))
            .args(["-o", "Dir::Etc::sourceparts=/dev/null"])
            .arg("-o")
            .arg(format!("Dir::State={dir}/state"))
            .args(["-o", "Dir::State::status=/dev/null"])
            .arg("-o")
            .arg(format!("Dir::Cache={dir}/cache"))
            .args([
                "-o",
                "Dir::Etc::preferencesparts=/dev/null",
                "-o",
                "Dir::Etc::preferences=/dev/null",
            ])
            .args(["-o", "APT::Install-Recommends=false"]);
        command
    }

    /// Puts the newest kernel release of a series in place of `{SERIES}`.
    fn newest(&self, name: &str) -> Result<String> {
        let Some((before, rest)) = name.split_once('{') else {
            return Ok(name.to_owned());
        };
        let (series, after) = rest.split_once('}').context("a package name without }")?;
        let prefix = format!("{before}{series}.");
        let names = run(self.apt("apt-cache").args(["pkgnames", &prefix]))?;
        let point = |name: &str| -> Option<u32> {
            let rest = name.strip_prefix(&prefix)?;
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = rest.split_at(digits);
            let plain = rest.strip_suffix(after)?.strip_prefix("+deb")?;
            plain
                .bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| number.parse().ok())?
        };
        names
            .lines()
            .filter_map(|name| Some((point(name)?, name)))
            .max()
            .map(|(_, name)| name.to_owned())
            .with_context(|| format!("Debian has no package like {name} at present"))
    }

    /// Name and version of every package that these need, one a line.
    fn resolve(&self, packages: &[String], prefer: &str) -> Result<String> {
        let plan = run(self
            .apt("apt-get")
            .arg("-o")
            .arg(format!("APT::Default-Release={prefer}"))
            .args(["install", "--simulate", "--quiet=2"])
            .args(packages))
        .context("these packages cannot be installed together")?;
        let mut lines: Vec<&str> = plan
            .lines()
            .filter(|line| line.starts_with("Inst "))
            .collect();
        lines.sort_unstable();
        if lines.is_empty() {
            bail!("apt would install nothing for {packages:?}:\n{plan}");
        }
        // What is essential comes along without being asked for; it changes with point releases.
        Ok(lines.join("\n") + &self.point_release()?)
    }

    /// The stable suite's own description, which changes with each point release only.
    fn point_release(&self) -> Result<String> {
        let lists = self.dir.join("state/lists");
        for entry in fs::read_dir(&lists)? {
            let entry = entry?;
            if entry
                .file_name()
                .to_string_lossy()
                .ends_with("_dists_trixie_InRelease")
            {
                return Ok(fs::read_to_string(entry.path())?);
            }
        }
        bail!(
            "apt has fetched no index of {} into {}",
            SUITES[0],
            lists.display()
        )
    }
}
