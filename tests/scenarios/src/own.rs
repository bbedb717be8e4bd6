//! The lab itself: commands and files get through, and its alarms ring.

use crate::{stock, Bench};
use anyhow::{bail, ensure, Context, Result};
use std::fs;
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(120);

/// Commands with their exit status and both outputs, several at a time; files in and out.
pub(crate) fn exec(bench: &mut Bench) -> Result<()> {
    let lab = bench.single()?;
    let access = lab.access("a")?;
    let script = "echo 'to \"stdout\"'; echo to stderr >&2; exit 37";
    let output = access.output(script, LIMIT)?;
    ensure!(
        output.status.code() == Some(37)
            && output.stdout == b"to \"stdout\"\n"
            && output.stderr == b"to stderr\n",
        "a command's outcome was not passed on: {output:?}"
    );
    let slow = access.output("sleep 1000", Duration::from_secs(2))?;
    ensure!(
        slow.status.code() == Some(124),
        "a command that runs too long was not ended: {slow:?}"
    );
    ensure!(
        lab.run("a", "exit 3").is_err() && lab.run("e", "true").is_err(),
        "a failing command, or one for an unknown host, counts as success"
    );
    // The first ends only if the second runs meanwhile.
    let waiting = lab.start("a", "mkfifo /run/lab-fifo; cat /run/lab-fifo", LIMIT)?;
    lab.until(
        "a",
        "test -p /run/lab-fifo && echo met > /run/lab-fifo",
        LIMIT,
    )?;
    let met = waiting.finish()?;
    ensure!(met == "met\n", "two commands did not meet: {met:?}");
    // It waits for nobody, and is not to be left to its limit.
    let forlorn = lab.start("a", "echo waiting; sleep 98765; echo went on", LIMIT)?;
    let (status, said) = forlorn.end()?;
    ensure!(
        ![Some(0), Some(stock::TIMED_OUT)].contains(&status) && said == "waiting\n",
        "a command that waits was not ended, but ended with {status:?}: {said}"
    );
    ensure!(
        lab.run("a", "pgrep -x -f 'sleep 98765'").is_err(),
        "something of a command that was ended still runs"
    );
    let done = lab.start("a", "echo done", LIMIT)?.end()?;
    ensure!(
        done == (Some(0), "done\n".to_owned()),
        "a command that ends by itself was not left to: {done:?}"
    );

    let dir = lab.dir().join("files");
    fs::create_dir_all(&dir)?;
    let (sent, received) = (dir.join("sent"), dir.join("received"));
    // Every byte value, and no length that some block size divides.
    let bytes: Vec<u8> = (0..4_000_037u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    fs::write(&sent, &bytes)?;
    access.push(&sent, "/tmp/lab-file")?;
    access.pull("/tmp/lab-file", &received)?;
    ensure!(
        fs::read(&received)? == bytes,
        "a file came back from the guest changed"
    );
    lab.run("a", "rm /tmp/lab-file /run/lab-fifo").map(drop)
}

/// What the kernel or our module complains about is found, and only once.
pub(crate) fn alarms(bench: &mut Bench) -> Result<()> {
    let lab = bench.single()?;
    lab.check(&[])
        .context("something was wrong before anything was provoked")?;

    // The kernel's own traces of what its CPUs do look like those of a warning.
    lab.run("a", "echo l > /proc/sysrq-trigger")?;
    raised(lab, "Call Trace:")?;

    lab.run("a", "echo '<3>tbrdma: provoked by the test' > /dev/kmsg")?;
    raised(lab, "module on a:")?;
    lab.run("a", "echo '<3>tbrdma: provoked by the test' > /dev/kmsg")?;
    lab.check(&["provoked by the test"])
        .context("an error that was announced counts as a failure")?;

    let thawed = hung_task(lab);
    // Whatever happened: the guest is to be as it was.
    let restored = lab.run(
        "a",
        "fsfreeze -u /run/lab-mount; umount -l /run/lab-mount; rm -f /run/lab-disk; \
         sysctl -q kernel.hung_task_timeout_secs=60",
    );
    thawed?;
    restored?;
    lab.check(&[]).context("an alarm rings for ever")
}

/// A program that waits for a frozen file system hangs as one does that waits for a driver.
fn hung_task(lab: &mut Lab) -> Result<()> {
    lab.run(
        "a",
        "modprobe -a loop ext4 && truncate -s 16M /run/lab-disk && \
         mke2fs -q -F -t ext4 /run/lab-disk && mkdir -p /run/lab-mount && \
         mount -o loop /run/lab-disk /run/lab-mount && sysctl -q kernel.hung_task_timeout_secs=5 && \
         fsfreeze -f /run/lab-mount",
    )?;
    lab.run(
        "a",
        "setsid touch /run/lab-mount/file < /dev/null > /dev/null 2>&1 &",
    )?;
    lab.until(
        "a",
        "journalctl --no-pager -k -b | grep -q 'blocked for more than'",
        LIMIT,
    )
    .context("the guest's kernel did not find a task that hangs")?;
    raised(lab, "blocked for more than")
}

/// The lab's check fails, and says this.
fn raised(lab: &mut Lab, what: &str) -> Result<()> {
    match lab.check(&[]) {
        Ok(()) => bail!("the lab did not notice: {what}"),
        Err(error) => {
            let said = format!("{error:#}");
            ensure!(
                said.contains(what),
                "the lab noticed something else than {what}: {said}"
            );
            Ok(())
        }
    }
}
