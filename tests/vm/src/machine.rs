//! One virtual machine: a QEMU process.

use crate::process::start;
use anyhow::Result;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What a machine is made of.
pub(crate) struct Hardware<'a> {
    /// Root that has QEMU.
    pub(crate) qemu: &'a Path,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) disk: &'a Path,
    pub(crate) cmdline: String,
    /// Number of the guest, from 1.
    pub(crate) number: usize,
    /// Port on the loopback interface for SSH.
    pub(crate) port: u16,
    /// UDP port of the network between guests.
    pub(crate) segment: u16,
    /// Socket of its USB4 host router, if it has one.
    pub(crate) router: Option<PathBuf>,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u32,
    /// Its clock counts instructions.
    pub(crate) counting: bool,
    /// File for the serial console.
    pub(crate) console: &'a Path,
    /// File for what QEMU itself says.
    pub(crate) log: &'a Path,
}

/// Everything that can be emulated, but for the promise that copying byte by byte is fast: here it takes eight times as
/// long as by words, on no real processor it does.
const CPU: &str = "max,erms=off,fsrm=off";

impl Hardware<'_> {
    fn accelerator(&self) -> &'static [&'static str] {
        if self.counting {
            // 2^0 ns for each instruction; the processors take turns on one of ours.
            &["-accel", "tcg,thread=single", "-icount", "shift=0"]
        } else {
            &["-accel", "tcg,thread=multi"]
        }
    }

    /// Starts the machine; if `tied`, it ends when we end.
    pub(crate) fn start(&self, tied: bool) -> Result<Child> {
        let mut command = qemu_program(self.qemu);
        let number = self.number;
        let memory = self.memory_mib;
        command
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-no-reboot",
            ])
            .args(self.accelerator())
            .args(["-cpu", CPU])
            .args(["-smp", &self.cpus.to_string(), "-m", &format!("{memory}M")])
            // vfio-user devices read and write guest memory through a shared file.
            .args(["-machine", "q35,memory-backend=mem"])
            .arg("-object")
            .arg(format!(
                "memory-backend-memfd,id=mem,size={memory}M,share=on"
            ))
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(self.initramfs)
            .args(["-append", &self.cmdline])
            .arg("-drive")
            .arg(format!(
                "file={},if=none,id=disk,format=raw,readonly=on",
                self.disk.display()
            ))
            .args(["-device", "virtio-blk-pci,drive=disk"])
            .args(["-device", "virtio-rng-pci"])
            .arg("-netdev")
            .arg(format!(
                "user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:{}-:22",
                self.port
            ))
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=control,mac=52:54:00:77:00:{number:02x}"
            ))
            .arg("-netdev")
            .arg(format!(
                "socket,id=segment,mcast=239.77.0.1:{},localaddr=127.0.0.1",
                self.segment
            ))
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=segment,mac=52:54:00:77:01:{number:02x}"
            ))
            .arg("-serial")
            .arg(format!("file:{}", self.console.display()));
        if let Some(router) = &self.router {
            let device = serde_json::json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": router },
                // A ring must have stopped when the guest's write that stops it is done: the guest
                // frees the buffers then.
                "x-no-posted-writes": true,
            });
            command.arg("-device").arg(device.to_string());
        }
        let log = File::create(self.log)?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        start(command, tied)
    }
}

/// QEMU of a root, run with that root's own libraries, so that it does not matter what the host has.
fn qemu_program(root: &Path) -> Command {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command
        .env("QEMU_MODULE_DIR", libraries.join("qemu"))
        .arg("--library-path")
        .arg(&libraries)
        .arg(root.join("usr/bin/qemu-system-x86_64"))
        .arg("-L")
        .arg(root.join("usr/share/qemu"))
        .arg("-L")
        .arg(root.join("usr/share/seabios"));
    command
}
