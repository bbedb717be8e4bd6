//! Installing the packages into a root file system, as apt does it on a real machine.

use super::VERSION;
use anyhow::{bail, ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tbrdma_lab::command::describe;

/// A Debian root file system in which commands are run.
///
/// Each command has mounts of its own, which vanish with it, so nothing is left behind even when this process
/// is killed. Needs root.
pub struct Root<'a> {
    dir: &'a Path,
    network: bool,
    /// A folder of this machine that is seen at `/mnt`.
    shared: Option<&'a Path>,
}

impl<'a> Root<'a> {
    /// Commands in `dir` will see the network if `network` is set.
    ///
    /// # Errors
    ///
    /// When `dir` is no root file system.
    pub fn new(dir: &'a Path, network: bool) -> Result<Self> {
        ensure!(
            dir.join("usr/bin/apt-get").exists(),
            "{} is no Debian root file system: it has no apt-get",
            dir.display()
        );
        Ok(Self {
            dir,
            network,
            shared: None,
        })
    }

    /// Commands will see `folder` at `/mnt`.
    pub fn sharing(self, folder: &'a Path) -> Self {
        Self {
            shared: Some(folder),
            ..self
        }
    }

    /// Runs a shell script there, without a home directory, and returns what it printed to both outputs.
    ///
    /// # Errors
    ///
    /// When the script fails; the error has all that was printed.
    pub fn run(&self, script: &str) -> Result<String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        if !self.network {
            command.arg("--net");
        }
        command
            .args(["sh", "-ec"])
            .arg(
                "mount -t proc proc \"$0/proc\"; mount -t devpts devpts \"$0/dev/pts\"; \
                 [ -z \"$2\" ] || mount --bind \"$2\" \"$0/mnt\"; \
                 exec chroot \"$0\" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
                 DEBIAN_FRONTEND=noninteractive sh -ec \"$1\" 2>&1",
            )
            .arg(self.dir)
            .arg(script)
            .arg(self.shared.unwrap_or(Path::new("")));
        let out = command
            .output()
            .with_context(|| format!("cannot run {}", describe(&command)))?;
        let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&out.stderr));
        if !out.status.success() {
            bail!(
                "in {}: {script}: {}\n{text}",
                self.dir.display(),
                out.status
            );
        }
        Ok(text)
    }
}

/// The packages of the archive that ours depend on, for a root file system that is made beforehand.
///
/// # Errors
///
/// When a control file cannot be read.
pub fn prerequisites(repository: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for package in super::PACKAGES {
        let file = repository
            .join("packaging/deb")
            .join(package)
            .join("control");
        let control =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        names.extend(depends(&control));
    }
    names.retain(|n| !super::PACKAGES.contains(&n.as_str()));
    names.sort();
    names.dedup();
    Ok(names)
}

/// First alternative of each dependency, without version.
fn depends(control: &str) -> Vec<String> {
    control
        .lines()
        .filter_map(|line| line.strip_prefix("Depends:"))
        .flat_map(|list| list.split(','))
        .filter_map(|item| item.split_whitespace().next())
        .filter(|name| !name.starts_with('@'))
        .map(str::to_owned)
        .collect()
}

/// Installs the packages with apt, which makes DKMS build the module for every kernel whose headers are in the
/// root file system. Returns the output of apt. The network is used if what the packages depend on is not
/// there yet, otherwise not.
///
/// # Errors
///
/// When apt fails, or DKMS has not built the module for one of `kernels` (releases as `uname -r` gives them).
pub fn into_root(root: &Path, debs: &[PathBuf], kernels: &[&str]) -> Result<String> {
    let there = Path::new("var/cache/tbrdma-packages");
    let dir = root.join(there);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for deb in debs {
        let name = deb.file_name().context("a package has no file name")?;
        fs::copy(deb, dir.join(name)).with_context(|| format!("cannot copy {}", deb.display()))?;
    }
    let install = format!(
        "apt-get install --yes --quiet --no-install-recommends --reinstall -o Dpkg::Use-Pty=0 /{}/*.deb",
        there.display()
    );
    // The build must not need the network: without it first.
    let mut result = Root::new(root, false)?.run(&install);
    if result.is_err() && missing_prerequisites(root)? {
        result = Root::new(root, true)?.run(&format!("apt-get update --quiet=2; {install}"));
    }
    fs::remove_dir_all(&dir)?;
    let log = result.context("apt did not install the packages")?;
    for kernel in kernels {
        module_is_installed(root, kernel).with_context(|| format!("apt said:\n{log}"))?;
    }
    Ok(log)
}

/// Whether apt has nothing of its own to fetch from; then the tools that building needs are missing too.
fn missing_prerequisites(root: &Path) -> Result<bool> {
    let tools = ["usr/sbin/dkms", "usr/bin/rustc", "usr/bin/bindgen"];
    Ok(tools.iter().any(|t| !root.join(t).exists()))
}

/// Checks that DKMS has installed our module for the kernel `release` in `root`, with the right version.
///
/// # Errors
///
/// Says what is there instead.
pub fn module_is_installed(root: &Path, release: &str) -> Result<()> {
    let chroot = Root::new(root, false)?;
    let status = chroot.run(&format!("dkms status -m tbrdma -v {VERSION} -k {release}"))?;
    ensure!(
        status.contains(&format!("tbrdma/{VERSION}, {release}, x86_64: installed")),
        "DKMS has not installed tbrdma {VERSION} for kernel {release}; dkms status says: {}",
        status.trim()
    );
    let version = chroot.run(&format!("modinfo -k {release} -F version tbrdma"))?;
    ensure!(
        version.trim() == VERSION,
        "the module for {release} has version {}, not {VERSION}",
        version.trim()
    );
    Ok(())
}

/// Removes the packages, or purges them with their configuration, and checks that nothing remains that has an
/// effect: no module, no udev rule, no driver file for libibverbs, no cache.
///
/// # Errors
///
/// When apt fails or a file is left.
pub fn out_of_root(root: &Path, purge: bool) -> Result<()> {
    let verb = if purge { "purge" } else { "remove" };
    let chroot = Root::new(root, false)?;
    chroot.run(&format!(
        "apt-get {verb} --yes --quiet -o Dpkg::Use-Pty=0 {}",
        super::PACKAGES.join(" ")
    ))?;
    // What dpkg knows of a package that is removed but not purged, and what postrm has put away
    let may_stay = if purge {
        ""
    } else {
        "-path /var/lib/dpkg/info -prune -o -path /var/lib/ibverbs-provider-tbrdma -prune -o"
    };
    let left = chroot.run(&format!(
        "find / -xdev -path /proc -prune -o {may_stay} -name '*tbrdma*' -print"
    ))?;
    ensure!(
        left.trim().is_empty(),
        "after apt {verb} there is still:\n{left}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_dependencies() {
        let control = "Package: a\nDepends: dkms (>= 3.0), gcc | clang, @LIBC@, tbrdma-dkms (= 1)\nSuggests: x\n";
        assert_eq!(depends(control), ["dkms", "gcc", "tbrdma-dkms"]);
    }
}
