//! A lab: guests, cables between them, and how to talk to them.

use crate::boot::Options;
use crate::cache::{remove, Cache};
use crate::process::Process;
use crate::ssh::Access;
use crate::{health, state};
use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tbrdma_fabric::client::Client;

/// Names of the guests.
pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// For what takes no time, against hanging.
const SHORT: Duration = Duration::from_secs(120);

/// What is kept of a guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Guest {
    pub(crate) name: String,
    pub(crate) process: Process,
    /// The SSH connection that commands share, once it is open.
    pub(crate) connection: Option<Process>,
    pub(crate) access: Access,
    pub(crate) console: PathBuf,
    /// The console's length up to which its content was looked at.
    #[serde(skip)]
    pub(crate) seen: usize,
}

impl Guest {
    /// Waits until the console has everything that the kernel has said so far: consoles may be
    /// written by a thread of the kernel, later.
    fn let_console_catch_up(&self) -> Result<()> {
        let mark = format!("lab: looked at {} bytes", self.seen);
        self.access
            .run(&format!("echo '{mark}' > /dev/kmsg"), SHORT)?;
        let start = Instant::now();
        loop {
            let bytes = fs::read(&self.console)?;
            let new = String::from_utf8_lossy(bytes.get(self.seen..).unwrap_or(&[]));
            if new.contains(&mark) {
                return Ok(());
            }
            ensure!(
                start.elapsed() < SHORT,
                "the console of {} shows nothing any more",
                self.name
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A lab that is up.
#[derive(Debug, Serialize, Deserialize)]
pub struct Lab {
    pub(crate) dir: PathBuf,
    pub(crate) guests: Vec<Guest>,
    pub(crate) fabric: Option<Process>,
    pub(crate) kernel: String,
    /// The process that started it.
    pub(crate) owner: Process,
    /// It is complete, and is to outlive its owner.
    pub(crate) detached: bool,
    /// It goes down when this value is dropped.
    #[serde(skip)]
    pub(crate) owned: bool,
}

impl Lab {
    /// Boots a lab and waits until all guests answer. It goes down when the value is dropped.
    pub fn up(options: &Options) -> Result<Self> {
        Self::boot(options, true)
    }

    /// Boots a lab that stays up when this program ends; [`Lab::attach`] finds it again.
    pub fn up_detached(options: &Options) -> Result<Self> {
        if let Some(lab) = state::detached(&Cache::open()?)? {
            bail!(
                "a lab is up already, in {}; end it with `cargo xtask lab down`",
                lab.dir.display()
            );
        }
        let mut lab = Self::boot(options, false)?;
        lab.detached = true;
        state::save(&lab)?;
        lab.owned = false;
        Ok(lab)
    }

    /// The lab that [`Lab::up_detached`] started.
    pub fn attach() -> Result<Self> {
        state::detached(&Cache::open()?)?
            .context("no lab is up; start one with `cargo xtask lab up`")
    }

    /// Ends the lab that [`Lab::up_detached`] started, if there is one, and what others left behind.
    pub fn end_detached() -> Result<()> {
        let cache = Cache::open()?;
        if let Some(mut lab) = state::detached(&cache)? {
            lab.end();
        }
        state::sweep(&cache)
    }

    /// A guest is running.
    pub(crate) fn has_guest(&self) -> bool {
        self.guests.iter().any(|guest| guest.process.is_alive())
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
        /// Scripts that this process has started.
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let access = self.guest(host)?.access.clone();
        let mark = format!(
            "/run/lab-started-{}-{}",
            std::process::id(),
            STARTED.fetch_add(1, Ordering::Relaxed)
        );
        let guarded = crate::ssh::guarded(script, limit);
        let child = access.start(&format!("echo $$ > {mark}; exec {guarded}"))?;
        Ok(Running {
            child,
            script: script.to_string(),
            host: host.to_string(),
            limit,
            access,
            mark,
        })
    }

    /// The fabric's control connection.
    pub fn fabric(&self) -> Result<Client> {
        ensure!(self.fabric.is_some(), "this lab has no cables");
        Ok(Client::connect(&self.dir.join("control.sock"))?)
    }

    /// Fails if a guest's kernel, or our module, has complained since the last call. `expected`
    /// are parts of lines that the test provokes.
    pub fn check(&mut self, expected: &[&str]) -> Result<()> {
        let mut complaints = Vec::new();
        for guest in &mut self.guests {
            if guest.process.is_alive() {
                // What the kernel said last tells more than that it says nothing now.
                if let Err(error) = guest.let_console_catch_up() {
                    complaints.push(format!("{error:#}"));
                }
            }
            let bytes = fs::read(&guest.console)?;
            let log = String::from_utf8_lossy(bytes.get(guest.seen..).unwrap_or(&[])).into_owned();
            guest.seen = bytes.len();
            for symptom in health::symptoms(&log, expected) {
                complaints.push(format!("kernel of {}:\n{symptom}", guest.name));
            }
            if !guest.process.is_alive() {
                complaints.push(format!("guest {} is gone", guest.name));
                continue;
            }
            let errors = guest
                .access
                .run("dmesg --read-clear --level=emerg,alert,crit,err", SHORT);
            match errors {
                Ok(errors) => {
                    for line in health::module_errors(&errors, expected) {
                        complaints.push(format!("module on {}: {line}", guest.name));
                    }
                }
                Err(error) => complaints.push(format!("guest {}: {error:#}", guest.name)),
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
            // What the module thinks, stacks of what is stuck, everything the guest's systemd knows.
            let stuck = "grep -rs . /sys/kernel/debug/tbrdma; ls -l /sys/bus/thunderbolt/devices; \
                         echo w > /proc/sysrq-trigger; dmesg; journalctl --no-pager -b -n 2000";
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

    /// What is likely to tell why something failed, for who sees nothing but what a test prints: what each module thinks,
    /// what is stuck, and the last that each kernel said.
    pub fn digest(&self) -> String {
        const LAST: &str = "cat /sys/kernel/debug/tbrdma/state; \
            ps -eo stat=,comm=,wchan:32= | grep ^D; dmesg | tail -n 30";
        let alive = self.guests.iter().filter(|guest| guest.process.is_alive());
        let told = alive.map(|guest| {
            let said = match guest.access.output(LAST, SHORT) {
                Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
                Err(error) => format!("{error:#}\n"),
            };
            format!("-- host {}\n{said}", guest.name)
        });
        told.collect()
    }

    /// Ends everything.
    pub(crate) fn end(&mut self) {
        for guest in self.guests.drain(..) {
            if let Some(connection) = guest.connection {
                connection.end();
            }
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
    access: Access,
    /// File in the guest with the script's process number.
    mark: String,
}

impl Running {
    /// It has not come to its end yet.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits for its end, and returns what it printed if it succeeded.
    pub fn finish(self) -> Result<String> {
        let Self {
            child,
            script,
            host,
            limit,
            ..
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

    /// Ends it, unless it ends by itself within some seconds, and returns its outcome. For what may wait for ever for
    /// somebody who has failed.
    pub fn end(mut self) -> Result<(Option<i32>, String)> {
        let patience = Instant::now() + Duration::from_secs(5);
        while self.child.try_wait()?.is_none() {
            if Instant::now() > patience {
                // Where this fails the script's own limit ends it.
                let _ = self
                    .access
                    .output(&format!("kill $(cat {})", self.mark), SHORT);
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.outcome()
    }

    /// Where it runs.
    pub fn host(&self) -> &str {
        &self.host
    }
}
