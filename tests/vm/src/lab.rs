//! A lab: guests, cables between them, and how to talk to them.

use crate::cache::{remove, Cache, Key};
use crate::debian::{host_needs, Recipe};
use crate::machine::{Hardware, Process};
use crate::ssh::{make_key, Access};
use crate::{health, image};
use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tbrdma_fabric::client::Client;

/// Names of the guests.
pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Until a guest answers.
const BOOT_LIMIT: Duration = Duration::from_secs(240);

/// The guests' root: a Debian system with the backports kernels and everything that our packages
/// need, so that they can be installed without the network.
pub const GUEST: Recipe<'static> = Recipe {
    name: "guest",
    variant: "apt",
    prefer: "",
    packages: &[
        "systemd-sysv",
        "udev",
        "dbus",
        "kmod",
        "procps",
        "iproute2",
        "iputils-ping",
        "ethtool",
        "openssh-server",
        "busybox-static",
        "initramfs-tools-core",
        "netcat-openbsd",
        "iperf3",
        "rdma-core",
        "ibverbs-utils",
        "ibverbs-providers",
        "rdmacm-utils",
        "perftest",
        "pciutils",
        "dkms",
        "linux-base/trixie-backports",
        "linux-image-{7.3}-amd64",
        "linux-headers-{7.3}-amd64",
        "linux-image-{7.2}-amd64",
        "linux-headers-{7.2}-amd64",
        "rustc",
        "rust-src",
        "bindgen",
        "libclang-dev",
        "gcc",
        "make",
        "xz-utils",
    ],
    finish: "
        printf \"PermitRootLogin prohibit-password\\nUsePAM no\\nUseDNS no\\nMaxSessions 200\\nMaxStartups 100\\n\" \
            > /etc/ssh/sshd_config.d/lab.conf
        systemctl mask --quiet systemd-timesyncd.service apt-daily.timer apt-daily-upgrade.timer \
            e2scrub_all.timer fstrim.timer dpkg-db-backup.timer systemd-update-utmp.service \
            systemd-journal-flush.service systemd-random-seed.service systemd-firstboot.service \
            systemd-hwdb-update.service ldconfig.service systemd-journal-catalog-update.service \
            systemd-update-done.service getty@tty1.service iperf3.service || true
        printf \"[Journal]\\nStorage=volatile\\nRateLimitBurst=0\\n\" > /etc/systemd/journald.conf
        systemctl disable --quiet iperf3 2>/dev/null || true
    ",
};

/// QEMU that speaks vfio-user, which stable's does not.
pub const QEMU: Recipe<'static> = Recipe {
    name: "qemu",
    variant: "extract",
    prefer: "trixie-backports",
    packages: &["qemu-system-x86"],
    finish: "",
};

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
        }
    }
}

/// What is kept of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Guest {
    name: String,
    process: Process,
    connection: Process,
    access: Access,
    console: PathBuf,
    /// The console's length up to which its content was looked at.
    #[serde(skip)]
    seen: usize,
}

/// A lab that is up.
#[derive(Debug, Serialize, Deserialize)]
pub struct Lab {
    dir: PathBuf,
    guests: Vec<Guest>,
    fabric: Option<Process>,
    kernel: String,
    /// It goes down when this value is dropped.
    #[serde(skip)]
    owned: bool,
}

impl Lab {
    /// Boots a lab and waits until all guests answer. It goes down when the value is dropped.
    pub fn up(options: &Options) -> Result<Self> {
        Self::boot(options, true)
    }

    /// Boots a lab that stays up when this program ends; [`Lab::attach`] finds it again.
    pub fn up_detached(options: &Options) -> Result<Self> {
        if let Ok(lab) = Self::attach() {
            bail!(
                "a lab is up already, in {}; end it with `cargo xtask lab down`",
                lab.dir.display()
            );
        }
        let mut lab = Self::boot(options, false)?;
        fs::write(Self::state_file()?, serde_json::to_string_pretty(&lab)?)?;
        lab.owned = false;
        Ok(lab)
    }

    /// The lab that [`Lab::up_detached`] started.
    pub fn attach() -> Result<Self> {
        let file = Self::state_file()?;
        let text = fs::read_to_string(&file)
            .context("no lab is up; start one with `cargo xtask lab up`")?;
        let lab: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not what a lab writes", file.display()))?;
        ensure!(
            lab.guests.iter().any(|guest| guest.process.is_alive()),
            "the lab that was up is gone; clean up with `cargo xtask lab down`"
        );
        Ok(lab)
    }

    /// Ends the lab that [`Lab::up_detached`] started, if there is one.
    pub fn end_detached() -> Result<()> {
        let file = Self::state_file()?;
        let Ok(text) = fs::read_to_string(&file) else {
            return Ok(());
        };
        let mut lab: Self = serde_json::from_str(&text)?;
        lab.end();
        remove(&file)
    }

    fn state_file() -> Result<PathBuf> {
        Ok(Cache::open()?.dir().join("lab.json"))
    }

    fn boot(options: &Options, owned: bool) -> Result<Self> {
        ensure!(
            (1..=NAMES.len()).contains(&options.hosts),
            "a lab has 1 to {} hosts, not {}",
            NAMES.len(),
            options.hosts
        );
        host_needs(&[("ssh", "openssh-client"), ("ssh-keygen", "openssh-client")])?;
        let cache = Cache::open()?;
        let qemu = QEMU.root(&cache)?;
        let (root, content) = match &options.root {
            Some((root, content)) => (root.clone(), content.clone()),
            None => {
                let root = GUEST.root(&cache)?;
                let content = root.display().to_string();
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

        let runs = cache.dir().join("run");
        fs::create_dir_all(&runs)?;
        let dir = tempfile::Builder::new()
            .prefix("lab-")
            .tempdir_in(&runs)?
            .keep();
        let mut lab = Self {
            dir: dir.clone(),
            guests: Vec::new(),
            fabric: None,
            kernel: release.clone(),
            owned: true,
        };
        let public = make_key(&dir.join("key"))?;
        let segment = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
        let routers = options.cables > 0;
        if routers {
            lab.start_fabric(options, owned)?;
        }
        let mut starting = Vec::new();
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
                cpus: 2,
                console: &console,
                log: &dir.join(format!("{name}.qemu")),
            };
            let child = hardware.start(owned)?;
            let access = Access {
                port,
                key: dir.join("key"),
                control: dir.join(format!("{name}.ssh")),
            };
            starting.push((name, child, access, console));
        }
        for (name, child, access, console) in starting {
            let process = Process::of(&child)?;
            // From here on the guest belongs to the lab, which ends it.
            lab.guests.push(Guest {
                name: name.to_string(),
                connection: process.clone(),
                process,
                access,
                console,
                seen: 0,
            });
        }
        for index in 0..lab.guests.len() {
            let connection = lab.connect(index)?;
            lab.guests[index].connection = connection;
        }
        lab.owned = owned;
        Ok(lab)
    }

    fn start_fabric(&mut self, options: &Options, owned: bool) -> Result<()> {
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
        if owned {
            crate::machine::die_with_parent(&mut command);
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        self.fabric = Some(Process::of(&child)?);
        let start = Instant::now();
        let ready = |lab: &Self| {
            NAMES[..options.hosts]
                .iter()
                .all(|name| lab.dir.join(format!("{name}.sock")).exists())
                && lab.dir.join("control.sock").exists()
        };
        while !ready(self) {
            let alive = self.fabric.as_ref().is_some_and(Process::is_alive);
            if !alive || start.elapsed() > Duration::from_secs(20) {
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
    fn connect(&self, index: usize) -> Result<Process> {
        let guest = &self.guests[index];
        let start = Instant::now();
        loop {
            let mut attempt: Child = guest.access.connect()?;
            while attempt.try_wait()?.is_none() {
                if guest.access.is_connected() {
                    return Process::of(&attempt);
                }
                if start.elapsed() > BOOT_LIMIT {
                    let _ = attempt.kill();
                    let _ = attempt.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            if !guest.process.is_alive() || start.elapsed() > BOOT_LIMIT {
                let console = fs::read(&guest.console).unwrap_or_default();
                let console = String::from_utf8_lossy(&console);
                let tail: Vec<&str> = console.lines().rev().take(40).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                bail!(
                    "guest {} did not come up in {} s; its console ends with:\n{}\n{}",
                    guest.name,
                    start.elapsed().as_secs(),
                    tail.join("\n"),
                    fs::read_to_string(self.dir.join(format!("{}.qemu", guest.name)))
                        .unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn guest(&self, name: &str) -> Result<&Guest> {
        self.guests
            .iter()
            .find(|guest| guest.name == name)
            .with_context(|| {
                let names: Vec<&str> = self.guests.iter().map(|g| g.name.as_str()).collect();
                format!("there is no host {name}; there are {names:?}")
            })
    }

    /// Names of the guests.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.guests.iter().map(|guest| guest.name.as_str())
    }

    /// Release of the guests' kernel.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Where logs and sockets are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How a guest is reached.
    pub fn access(&self, host: &str) -> Result<&Access> {
        Ok(&self.guest(host)?.access)
    }

    /// File with a guest's serial console.
    pub fn console(&self, host: &str) -> Result<&Path> {
        Ok(&self.guest(host)?.console)
    }

    /// Runs a shell script in a guest and returns what it printed. It may take five minutes.
    pub fn run(&self, host: &str, script: &str) -> Result<String> {
        self.run_for(host, script, Duration::from_secs(300))
    }

    /// Runs a shell script in a guest, not longer than `limit`.
    pub fn run_for(&self, host: &str, script: &str, limit: Duration) -> Result<String> {
        self.guest(host)?
            .access
            .run(script, limit)
            .with_context(|| format!("on host {host}"))
    }

    /// Runs a script again until it succeeds; an error has its last outcome.
    pub fn until(&self, host: &str, script: &str, limit: Duration) -> Result<String> {
        let start = Instant::now();
        loop {
            match self.run_for(host, script, Duration::from_secs(60)) {
                Ok(text) => return Ok(text),
                Err(error) if start.elapsed() > limit => {
                    return Err(error.context(format!("not within {} s", limit.as_secs())));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(500)),
            }
        }
    }

    /// Starts a script in a guest; it is to be waited for.
    pub fn start(&self, host: &str, script: &str, limit: Duration) -> Result<Running> {
        let access = &self.guest(host)?.access;
        let guarded = format!(
            "timeout -k 10 {} sh -c {}",
            limit.as_secs().max(1),
            crate::ssh::quote(script)
        );
        let mut command = access.command(&guarded);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().context("cannot run ssh")?;
        Ok(Running {
            child,
            script: script.to_string(),
            host: host.to_string(),
            limit,
        })
    }

    /// The fabric's control connection.
    pub fn fabric(&self) -> Result<Client> {
        ensure!(self.fabric.is_some(), "this lab has no cables");
        Ok(Client::connect(&self.dir.join("control.sock"))?)
    }

    /// Fails if a guest's kernel, or our module, has complained since the last call. `expected`
    /// are parts of our module's error lines that the test provokes.
    pub fn check(&mut self, expected: &[&str]) -> Result<()> {
        let mut complaints = Vec::new();
        for guest in &mut self.guests {
            let bytes = fs::read(&guest.console)?;
            let log = String::from_utf8_lossy(bytes.get(guest.seen..).unwrap_or(&[])).into_owned();
            guest.seen = bytes.len();
            for symptom in health::symptoms(&log) {
                complaints.push(format!("kernel of {}:\n{symptom}", guest.name));
            }
            if !guest.process.is_alive() {
                complaints.push(format!("guest {} is gone", guest.name));
                continue;
            }
            let errors = guest.access.run(
                "dmesg --read-clear --level=emerg,alert,crit,err",
                Duration::from_secs(120),
            )?;
            for line in health::module_errors(&errors, expected) {
                complaints.push(format!("module on {}: {line}", guest.name));
            }
        }
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        Ok(())
    }

    /// Copies everything that tells what happened into `to`.
    pub fn save_logs(&self, to: &Path) -> Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let wanted = path
                .extension()
                .is_some_and(|e| ["console", "qemu", "log"].iter().any(|w| e == *w));
            if wanted {
                fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
            }
        }
        for guest in self.guests.iter().filter(|guest| guest.process.is_alive()) {
            let limit = Duration::from_secs(60);
            // Stacks of what is stuck, then everything the guest's systemd knows.
            let stuck = "echo w > /proc/sysrq-trigger; dmesg; journalctl --no-pager -b -n 2000";
            if let Ok(output) = guest.access.output(stuck, limit) {
                fs::write(to.join(format!("{}.journal", guest.name)), output.stdout)?;
            }
        }
        if let Ok(mut client) = self.fabric() {
            if let Ok(counters) = client.counters() {
                fs::write(
                    to.join("counters.json"),
                    serde_json::to_string_pretty(&counters)?,
                )?;
            }
        }
        Ok(())
    }

    /// Ends everything.
    fn end(&mut self) {
        for guest in self.guests.drain(..) {
            guest.connection.end();
            guest.process.end();
        }
        if let Some(fabric) = self.fabric.take() {
            fabric.end();
        }
        let _ = remove(&self.dir);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.owned {
            self.end();
        }
    }
}

/// A script that runs in a guest.
pub struct Running {
    child: Child,
    script: String,
    host: String,
    limit: Duration,
}

impl Running {
    /// Waits for its end, and returns what it printed if it succeeded.
    pub fn finish(self) -> Result<String> {
        let Self {
            child,
            script,
            host,
            limit,
        } = self;
        let output = crate::ssh::wait(child, limit + Duration::from_secs(60))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "on host {host}: {script}: {}\n{text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }

    /// Waits for its end, whatever that is: exit status, and all that it printed.
    pub fn outcome(self) -> Result<(Option<i32>, String)> {
        let output = crate::ssh::wait(self.child, self.limit + Duration::from_secs(60))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok((output.status.code(), text))
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
