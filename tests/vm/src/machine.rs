//! One virtual machine: a QEMU process.

use crate::command::describe;
use anyhow::{Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
    /// File for the serial console.
    pub(crate) console: &'a Path,
    /// File for what QEMU itself says.
    pub(crate) log: &'a Path,
}

impl Hardware<'_> {
    /// Starts the machine.
    pub(crate) fn start(&self, die_with_us: bool) -> Result<Child> {
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
            .args(["-accel", "tcg,thread=multi", "-cpu", "max"])
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
            });
            command.arg("-device").arg(device.to_string());
        }
        let log = File::create(self.log)?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if die_with_us {
            die_with_parent(&mut command);
        } else {
            command.process_group(0);
        }
        command
            .spawn()
            .with_context(|| format!("cannot run {}", describe(&command)))
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

/// The process ends when we end, however we end.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let ask = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // We may have ended before the request.
        if nix::unistd::getppid() != parent {
            return Err(std::io::Error::other("the lab has ended"));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only two system calls are made; nothing is allocated unless
    // the parent is gone.
    unsafe { command.pre_exec(ask) };
}

/// A process that was started before, perhaps by another run of the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// When it started, in the kernel's ticks: with the pid, names it for good.
    start: u64,
}

impl Process {
    pub(crate) fn of(child: &Child) -> Result<Self> {
        let pid = i32::try_from(child.id())?;
        Ok(Self {
            pid,
            start: start_time(pid).unwrap_or(0),
        })
    }

    /// It is running.
    pub(crate) fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start)
    }

    /// Ends it, and waits until it is gone.
    pub(crate) fn end(&self) {
        for (signal, patience) in [(Signal::SIGTERM, 3), (Signal::SIGKILL, 10)] {
            if !self.is_alive() {
                return;
            }
            let _ = kill(Pid::from_raw(self.pid), signal);
            let start = Instant::now();
            while self.is_alive() && start.elapsed() < Duration::from_secs(patience) {
                // It may be our child: then it has to be waited for.
                let flags = Some(nix::sys::wait::WaitPidFlag::WNOHANG);
                let _ = nix::sys::wait::waitpid(Pid::from_raw(self.pid), flags);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// The 22nd field of /proc/PID/stat; `None` if there is no such process, or it is a zombie.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}
