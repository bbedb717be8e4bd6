//! Starting a lab.

use crate::cache::{content_of, remove, Cache, Key};
use crate::debian::host_needs;
use crate::lab::{Guest, Lab, NAMES};
use crate::machine::Hardware;
use crate::process::{start, Process};
use crate::roots::{GUEST, QEMU};
use crate::ssh::{make_key, Access};
use crate::{image, state};
use anyhow::{bail, ensure, Context, Result};
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Until a guest answers.
const BOOT_LIMIT: Duration = Duration::from_secs(240);

/// What a lab consists of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Guests, 1 to 4.
    pub hosts: usize,
    /// Cables: between the first two guests, or, with three and four guests, in a ring.
    pub cables: usize,
    /// Beginning of the kernel's release; the newest that fits is taken.
    pub kernel: String,
    /// USB4 generation of the cables, 3 or 4.
    pub generation: u32,
    /// Lanes of the cables, 1 or 2.
    pub lanes: u32,
    /// A root to boot instead of the plain guest root, and what its content follows from.
    pub root: Option<(PathBuf, String)>,
    /// Program that emulates the cables.
    pub fabric: Option<PathBuf>,
    /// More words for the kernel's command line.
    pub cmdline: String,
    /// Memory of a guest, MiB.
    pub memory_mib: u32,
    /// The guests' clocks go on by 1 ns with each instruction, instead of with time: what is measured in
    /// a guest then depends on what it does, not on the computer that emulates it. Cables know nothing of such
    /// clocks, and everything takes twice as long.
    pub counting: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hosts: 2,
            cables: 1,
            kernel: "7.3".to_string(),
            generation: 3,
            lanes: 2,
            root: None,
            fabric: None,
            cmdline: String::new(),
            memory_mib: 1024,
            counting: false,
        }
    }
}

impl Lab {
    /// Boots a lab; if `tied`, its processes end when we end.
    pub(crate) fn boot(options: &Options, tied: bool) -> Result<Self> {
        ensure!(
            (1..=NAMES.len()).contains(&options.hosts),
            "a lab has 1 to {} hosts, not {}",
            NAMES.len(),
            options.hosts
        );
        ensure!(
            options.cables == 0 || options.hosts > 1,
            "one host has nothing to be joined to; give it no cables"
        );
        ensure!(
            options.hosts <= 2 || options.cables <= options.hosts,
            "{} hosts make a ring of at most as many cables, not {}",
            options.hosts,
            options.cables
        );
        host_needs(&[("ssh", "openssh-client"), ("ssh-keygen", "openssh-client")])?;
        let cache = Cache::open()?;
        let qemu = QEMU.root(&cache)?;
        let (root, content) = match &options.root {
            Some((root, content)) => (root.clone(), content.clone()),
            None => {
                let root = GUEST.root(&cache)?;
                let content = content_of(&root);
                (root, content)
            }
        };
        let kernels = image::kernels(&root)?;
        let release = kernels
            .iter()
            .find(|release| release.starts_with(&options.kernel))
            .with_context(|| format!("no kernel {}; there are {kernels:?}", options.kernel))?;
        let disk = image::disk(&cache, &root, Key::default().with(&content))?;
        let initramfs = image::initramfs(&cache, &root, Key::default().with(&content), release)?;

        state::sweep(&cache)?;
        let dir = tempfile::Builder::new()
            .prefix("lab-")
            .tempdir_in(state::runs(&cache)?)?
            .keep();
        let mut lab = Self {
            dir: dir.clone(),
            guests: Vec::new(),
            fabric: None,
            kernel: release.clone(),
            owner: Process::ours(),
            detached: false,
            owned: true,
        };
        state::save(&lab)?;
        let public = make_key(&dir.join("key"))?;
        let segment = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
        let routers = options.cables > 0;
        if routers {
            lab.start_fabric(options, tied)?;
            state::save(&lab)?;
        }
        for number in 1..=options.hosts {
            let name = NAMES[number - 1];
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let console = dir.join(format!("{name}.console"));
            let hardware = Hardware {
                qemu: &qemu,
                kernel: &root.join(format!("boot/vmlinuz-{release}")),
                initramfs: &initramfs,
                disk: &disk,
                cmdline: cmdline(name, number, &public, &options.cmdline),
                number,
                port,
                segment,
                router: routers.then(|| dir.join(format!("{name}.sock"))),
                memory_mib: options.memory_mib,
                counting: options.counting,
                cpus: 2,
                console: &console,
                log: &dir.join(format!("{name}.qemu")),
            };
            let child = hardware.start(tied)?;
            // From here on the guest belongs to the lab, which ends it.
            lab.guests.push(Guest {
                name: name.to_string(),
                process: Process::of(&child),
                connection: None,
                access: Access {
                    port,
                    key: dir.join("key"),
                    control: dir.join(format!("{name}.ssh")),
                },
                console,
                seen: 0,
            });
            state::save(&lab)?;
        }
        for index in 0..lab.guests.len() {
            match lab.connect(index, tied) {
                Ok(connection) => lab.guests[index].connection = Some(connection),
                Err(error) => {
                    // The lab's own folder goes with the lab.
                    let logs = cache.dir().join("failed-boot");
                    remove(&logs)?;
                    let saved = lab.save_logs(&logs);
                    return Err(match saved {
                        Ok(()) => error.context(format!("logs are in {}", logs.display())),
                        Err(_) => error,
                    });
                }
            }
        }
        state::save(&lab)?;
        Ok(lab)
    }

    fn start_fabric(&mut self, options: &Options, tied: bool) -> Result<()> {
        let program = options
            .fabric
            .as_ref()
            .context("cables need the program that emulates them (Options::fabric)")?;
        let mut command = Command::new(program);
        command.arg("--dir").arg(&self.dir);
        for name in &NAMES[..options.hosts] {
            command.args(["--host", name]);
        }
        for cable in 0..options.cables {
            let (from, to) = ends(cable, options.hosts);
            command.arg("--cable").arg(format!(
                "{from}-{to},gen={},lanes={}",
                options.generation, options.lanes
            ));
        }
        let log = fs::File::create(self.dir.join("fabric.log"))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.fabric = Some(Process::of(&start(command, tied)?));
        let begin = Instant::now();
        let ready = |lab: &Self| {
            NAMES[..options.hosts]
                .iter()
                .all(|name| lab.dir.join(format!("{name}.sock")).exists())
                && lab.dir.join("control.sock").exists()
        };
        while !ready(self) {
            let alive = self.fabric.as_ref().is_some_and(Process::is_alive);
            if !alive || begin.elapsed() > Duration::from_secs(20) {
                bail!(
                    "the fabric did not start: {}",
                    fs::read_to_string(self.dir.join("fabric.log")).unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until a guest answers, and keeps a connection to it.
    fn connect(&self, index: usize, tied: bool) -> Result<Process> {
        let guest = &self.guests[index];
        let begin = Instant::now();
        loop {
            let mut attempt: Child = guest.access.connect(tied)?;
            while attempt.try_wait()?.is_none() {
                if guest.access.is_connected() {
                    return Ok(Process::of(&attempt));
                }
                if begin.elapsed() > BOOT_LIMIT {
                    let _ = attempt.kill();
                    let _ = attempt.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            if !guest.process.is_alive() || begin.elapsed() > BOOT_LIMIT {
                let console = fs::read(&guest.console).unwrap_or_default();
                let console = String::from_utf8_lossy(&console);
                let tail: Vec<&str> = console.lines().rev().take(40).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                bail!(
                    "guest {} did not come up in {} s; its console ends with:\n{}\n{}",
                    guest.name,
                    begin.elapsed().as_secs(),
                    tail.join("\n"),
                    fs::read_to_string(self.dir.join(format!("{}.qemu", guest.name)))
                        .unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// The two ends of a cable, as the fabric wants them: host and port (from 1).
fn ends(cable: usize, hosts: usize) -> (String, String) {
    if hosts <= 2 {
        // All cables between the two, each at a port of its own.
        let port = cable + 1;
        return (format!("a:{port}"), format!("b:{port}"));
    }
    let next = (cable + 1) % hosts;
    (
        format!("{}:2", NAMES[cable % hosts]),
        format!("{}:1", NAMES[next]),
    )
}

fn cmdline(name: &str, number: usize, public_key: &str, more: &str) -> String {
    use std::fmt::Write;
    let mut line = String::from(
        // Emulation is slow, so what finds stalls has to be patient; hangs are found all the same.
        "console=ttyS0 loglevel=7 panic=-1 net.ifnames=0 tsc=reliable nokaslr \
         rcupdate.rcu_cpu_stall_timeout=120 watchdog_thresh=60 \
         sysctl.kernel.hung_task_timeout_secs=60 systemd.show_status=0 systemd.log_target=journal \
         systemd.default_timeout_start_sec=240s",
    );
    let key: String = base64(public_key.trim().as_bytes());
    let _ = write!(
        line,
        " lab.name={name} lab.number={number} lab.key={key} {more}"
    );
    line
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let number =
            chunk.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            if place <= chunk.len() {
                let digit = (number >> (18 - 6 * place)) & 63;
                out.push(DIGITS[digit as usize] as char);
            } else {
                out.push('=');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        assert_eq!(base64(b"Man"), "TWFu");
        assert_eq!(base64(b"Ma"), "TWE=");
        assert_eq!(base64(b"M"), "TQ==");
    }

    #[test]
    fn cables_of_a_ring_use_each_port_once() {
        let ring: Vec<_> = (0..3).map(|cable| ends(cable, 3)).collect();
        let mut ports: Vec<_> = ring.into_iter().flat_map(|(a, b)| [a, b]).collect();
        ports.sort();
        ports.dedup();
        assert_eq!(ports.len(), 6);
        assert_eq!(ends(1, 2), ("a:2".to_string(), "b:2".to_string()));
    }
}
