//! What a guest boots: a kernel, an initramfs, and a read-only disk.
//!
//! The disk is an EROFS image of a Debian root, shared by all guests; each lays a tmpfs over it.

use crate::cache::{Cache, Key};
use crate::command::run;
use crate::debian::host_needs;
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Parts of a root that guests do not need: what builds the module, which happened before, and what
/// lets UCX and MPI copy to AMD's GPUs, which are absent.
const LEFT_OUT: [&str; 10] = [
    "boot",
    "usr/src",
    "usr/lib/llvm-.*",
    "usr/lib/rustlib",
    "usr/lib/gcc",
    "usr/lib/x86_64-linux-gnu/lib(LLVM|clang|rustc_driver|std-).*",
    "usr/lib/x86_64-linux-gnu/lib(amdhip64|amd_comgr)\\..*",
    "usr/share/(doc|man|locale|info|cargo)",
    "var/cache/.*",
    "var/lib/apt/lists/.*",
];

/// Drivers that the initramfs needs.
const DRIVERS: [&str; 5] = ["virtio_pci", "virtio_blk", "virtio_net", "erofs", "overlay"];

/// Makes the disk of a root. `key` stands for the root's content.
pub fn disk(cache: &Cache, root: &Path, key: Key) -> Result<PathBuf> {
    host_needs(&[("mkfs.erofs", "erofs-utils")])?;
    let key = key.with(include_str!("image.rs"));
    cache.entry("disk", key, |fresh| {
        let mut command = Command::new("mkfs.erofs");
        command.args(["--quiet", "-x1"]);
        for part in LEFT_OUT {
            command.arg(format!("--exclude-regex=^{part}$"));
        }
        run(command.arg(fresh).arg(root)).map(drop)
    })
}

/// A small image of files that a guest gets while it runs. `key` stands for the root's content.
pub fn packed(cache: &Cache, name: &str, root: &Path, key: Key) -> Result<PathBuf> {
    host_needs(&[("mkfs.erofs", "erofs-utils")])?;
    let key = key.with(include_str!("image.rs"));
    cache.entry(&format!("packed-{name}"), key, |fresh| {
        let mut command = Command::new("mkfs.erofs");
        command.args(["--quiet", "-x1", "-zlz4hc", "-C65536"]);
        run(command.arg(fresh).arg(root)).map(drop)
    })
}

/// Kernel releases in a root, newest first.
pub fn kernels(root: &Path) -> Result<Vec<String>> {
    let dir = root.join("usr/lib/modules");
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("no modules in {}", dir.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if root.join("boot").join(format!("vmlinuz-{name}")).exists() {
            found.push(name);
        }
    }
    let version = |name: &str| -> Vec<u32> {
        let numbers = name.split(|c: char| !c.is_ascii_digit());
        numbers.map_while(|part| part.parse().ok()).collect()
    };
    found.sort_by_key(|name| std::cmp::Reverse(version(name)));
    Ok(found)
}

/// The initramfs for a kernel of a root: finds the disk, sets the network up, starts systemd.
pub fn initramfs(cache: &Cache, root: &Path, key: Key, release: &str) -> Result<PathBuf> {
    host_needs(&[("cpio", "cpio"), ("modprobe", "kmod"), ("xz", "xz-utils")])?;
    let key = key
        .with(include_str!("image.rs"))
        .with(include_str!("init.sh"))
        .with(release);
    cache.entry("initramfs", key, |fresh| {
        let work = tempfile::tempdir()?;
        let dir = work.path();
        for part in [
            "bin", "dev", "proc", "sys", "modules", "lower", "cover", "root",
        ] {
            fs::create_dir(dir.join(part))?;
        }
        let busybox = dir.join("bin/busybox");
        fs::copy(root.join("usr/bin/busybox"), &busybox)
            .context("the root has no busybox-static")?;
        symlink("busybox", dir.join("bin/sh"))?;
        let mut order = Vec::new();
        for driver in DRIVERS {
            for module in dependencies(root, release, driver)? {
                let name = module
                    .file_stem()
                    .context("a module without a name")?
                    .to_owned();
                let name = Path::new(&name).file_stem().unwrap_or(&name).to_owned();
                let file = dir.join("modules").join(&name).with_extension("ko");
                if !file.exists() {
                    fs::write(&file, unpacked(&module)?)?;
                    order.push(name.to_string_lossy().into_owned());
                }
            }
        }
        fs::write(dir.join("modules/order"), order.join("\n") + "\n")?;
        let init = dir.join("init");
        fs::write(&init, include_str!("init.sh"))?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
        run(Command::new("sh")
            .arg("-ec")
            .arg("cd \"$0\"; find . | cpio --create --format=newc --quiet > \"$1\"")
            .arg(dir)
            .arg(fresh))
        .map(drop)
    })
}

/// The files of a module and what it needs, in the order of loading.
fn dependencies(root: &Path, release: &str, module: &str) -> Result<Vec<PathBuf>> {
    // modprobe wants /lib; the root is merged, its usr serves as one.
    let listed = run(Command::new("modprobe").arg("--dirname").arg(root).args([
        "--set-version",
        release,
        "--show-depends",
        module,
    ]))?;
    Ok(listed
        .lines()
        .filter_map(|line| line.strip_prefix("insmod "))
        .map(|path| PathBuf::from(path.trim()))
        .collect())
}

fn unpacked(module: &Path) -> Result<Vec<u8>> {
    if module.extension().is_some_and(|e| e == "xz") {
        let out = Command::new("xz").arg("-dc").arg(module).output()?;
        anyhow::ensure!(out.status.success(), "cannot unpack {}", module.display());
        return Ok(out.stdout);
    }
    fs::read(module).with_context(|| format!("cannot read {}", module.display()))
}
