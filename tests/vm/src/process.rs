//! Processes that belong to a lab, and end with it.

use crate::command::describe;
use anyhow::{Context, Result};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Starts a process; if it is `tied`, it ends when we end, however that comes.
pub(crate) fn start(mut command: Command, tied: bool) -> Result<Child> {
    let words = describe(&command);
    let child = if tied {
        die_with_parent(&mut command);
        spawn_for_good(command)
    } else {
        command.spawn()
    };
    child.with_context(|| format!("cannot run {words}"))
}

/// Spawns from a thread that lives as long as we do: "the parent" whose death ends a child is, to
/// the kernel, the thread that spawned it.
fn spawn_for_good(command: Command) -> std::io::Result<Child> {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, incoming) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in incoming {
                // If nobody waits for the answer any more, the child is dropped and goes on.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let gone = || std::io::Error::other("the thread that starts processes has ended");
    let (answer, child) = channel();
    spawner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

/// The process gets SIGKILL when the thread that spawns it ends.
fn die_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let ask = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // We may have ended before the request.
        if nix::unistd::getppid() != parent {
            return Err(std::io::Error::from_raw_os_error(nix::libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing (both
    // kinds of error are plain numbers), so it does not matter what other threads held at the fork.
    unsafe { command.pre_exec(ask) };
}

/// A process that was started before, perhaps by another run of the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pid: i32,
    /// When it started, in the kernel's ticks: with the pid, names it for good.
    start: u64,
}

impl Process {
    pub(crate) fn of(child: &Child) -> Self {
        // Linux's process numbers are positive and fit.
        Self::with_pid(child.id() as i32)
    }

    /// This very process.
    pub(crate) fn ours() -> Self {
        Self::with_pid(nix::unistd::getpid().as_raw())
    }

    fn with_pid(pid: i32) -> Self {
        Self {
            pid,
            // No process starts at tick 0 but the first.
            start: start_time(pid).unwrap_or(0),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_ends_and_its_number_does_not_stand_for_another() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let process = Process::of(&start(command, true).unwrap());
        assert!(process.is_alive());
        let other = Process {
            start: process.start + 1,
            ..process.clone()
        };
        assert!(!other.is_alive());
        other.end();
        assert!(process.is_alive());
        process.end();
        assert!(!process.is_alive());
    }

    #[test]
    fn a_thread_that_ends_takes_no_process_along() {
        let process = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("60");
            Process::of(&start(command, true).unwrap())
        })
        .join()
        .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(process.is_alive());
        process.end();
    }
}
