//! Commands in a guest: SSH over QEMU's user network, with one connection kept open.

use crate::command::{describe, run};
use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How a guest is reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Access {
    /// Port on the loopback interface.
    pub port: u16,
    /// Private key.
    pub key: PathBuf,
    /// Socket of the connection that is kept open.
    pub control: PathBuf,
}

impl Access {
    fn options(&self, command: &mut Command) {
        command
            .args(["-F", "none", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"])
            .args([
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
            ])
            .args([
                "-o",
                "ServerAliveInterval=20",
                "-o",
                "ServerAliveCountMax=30",
            ])
            .args(["-o", "ConnectTimeout=20"])
            .arg("-i")
            .arg(&self.key)
            .arg("-o")
            .arg(format!("ControlPath={}", self.control.display()));
    }

    fn ssh(&self) -> Command {
        let mut command = Command::new("ssh");
        self.options(&mut command);
        command.args(["-p", &self.port.to_string(), "root@127.0.0.1"]);
        command
    }

    /// Opens the connection that all commands share; if `tied`, it ends when we end.
    pub(crate) fn connect(&self, tied: bool) -> Result<Child> {
        let mut command = Command::new("ssh");
        self.options(&mut command);
        command
            .args(["-M", "-N", "-p", &self.port.to_string(), "root@127.0.0.1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        crate::process::start(command, tied)
    }

    /// The connection is open.
    pub fn is_connected(&self) -> bool {
        let mut command = self.ssh();
        command.args(["-O", "check"]);
        self.control.exists() && run(&mut command).is_ok()
    }

    /// A command that runs `script` in the guest's shell; the caller starts it.
    pub fn command(&self, script: &str) -> Command {
        let mut command = self.ssh();
        command.arg("--").arg(script);
        command
    }

    /// Runs `script`, whatever its outcome, but not longer than `limit`.
    pub fn output(&self, script: &str, limit: Duration) -> Result<Output> {
        let child = self.start(&guarded(script, limit))?;
        wait(child, limit + Duration::from_secs(60)).with_context(|| format!("no end of: {script}"))
    }

    /// Starts `script`, whose output is then to be read.
    pub(crate) fn start(&self, script: &str) -> Result<Child> {
        let mut command = self.command(script);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().context("cannot run ssh")
    }

    /// Runs `script` and returns what it printed; an error has everything.
    pub fn run(&self, script: &str, limit: Duration) -> Result<String> {
        let output = self.output(script, limit)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "{script}: {}{}\n{text}{}",
            output.status,
            if output.status.code() == Some(124) {
                " (ran too long)"
            } else {
                ""
            },
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }

    /// Copies a file or folder into the guest.
    pub fn push(&self, from: &Path, to: &str) -> Result<()> {
        let mut command = Command::new("scp");
        self.options(&mut command);
        command.args(["-r", "-p", "-P", &self.port.to_string()]);
        run(command.arg(from).arg(format!("root@127.0.0.1:{to}"))).map(drop)
    }

    /// Copies a file or folder out of the guest.
    pub fn pull(&self, from: &str, to: &Path) -> Result<()> {
        let mut command = Command::new("scp");
        self.options(&mut command);
        command.args(["-r", "-p", "-P", &self.port.to_string()]);
        run(command.arg(format!("root@127.0.0.1:{from}")).arg(to)).map(drop)
    }
}

/// A command that ends `script` by itself after `limit`, so that nothing of it stays behind in the guest.
pub(crate) fn guarded(script: &str, limit: Duration) -> String {
    format!(
        "timeout -k 10 {} sh -c {}",
        limit.as_secs().max(1),
        quote(script)
    )
}

/// Waits for a child that prints, and ends it if it takes too long.
pub fn wait(mut child: Child, limit: Duration) -> Result<Output> {
    use std::io::Read;
    let drain = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let stdout = drain(
        child
            .stdout
            .take()
            .map(|p| Box::new(p) as Box<dyn Read + Send>),
    );
    let stderr = drain(
        child
            .stderr
            .take()
            .map(|p| Box::new(p) as Box<dyn Read + Send>),
    );
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            bail!("it was ended after {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let collect = |thread: std::thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    Ok(Output {
        status,
        stdout: collect(stdout),
        stderr: collect(stderr),
    })
}

/// One word for a shell.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Makes a key pair; returns the public half.
pub fn make_key(path: &Path) -> Result<String> {
    let mut command = Command::new("ssh-keygen");
    command
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f"])
        .arg(path);
    run(&mut command).with_context(|| describe(&command))?;
    let public = path.with_extension("pub");
    std::fs::read_to_string(&public).with_context(|| format!("cannot read {}", public.display()))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quoted_words_survive_a_shell() {
        let word = "it's \"a\" $HOME `x`";
        let script = format!("printf %s {}", quote(word));
        let out = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), word);
    }
}
