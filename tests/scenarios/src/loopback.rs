//! One host without a cable, `loopback=1`: two of its processes talk to each other.

use crate::bench::wait_for_port;
use crate::{facts, stock, Bench};
use anyhow::{ensure, Result};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.single()?;
    lab.run("a", "modprobe tbrdma")?;
    let down = lab.run("a", "ibv_devinfo -d tbrdma0")?;
    ensure!(
        facts::devinfo(&down, "state")?.starts_with("PORT_DOWN"),
        "without a cable and loopback the port is not down:\n{down}"
    );
    lab.run("a", "modprobe -r tbrdma && modprobe tbrdma loopback=1")?;
    ensure!(
        lab.run("a", "cat /sys/module/tbrdma/parameters/loopback")?
            .trim()
            == "Y",
        "the parameter does not show what was set"
    );
    ensure!(
        lab.run("a", "cat /sys/module/tbrdma/parameters/ring_size")?
            .trim()
            == "1024",
        "ring_size does not show its default"
    );
    wait_for_port(lab, "ACTIVE")?;
    let programs = [
        "ibv_rc_pingpong -d tbrdma0 -g 0 -c -n 2000",
        "ib_send_bw -F -d tbrdma0 -x 0 -n 500",
        "ib_write_bw -F -d tbrdma0 -x 0 -n 500",
        "ib_read_bw -F -d tbrdma0 -x 0 -n 500 -s 65536",
    ];
    for program in programs {
        stock::both(lab, program, "a", "a", LIMIT)?;
    }
    for mode in ["send", "write", "read"] {
        let check = format!(
            "{} --mode {mode} --size 4099 --count 500",
            crate::checked::CHECK
        );
        let server = lab.start("a", &format!("{check} --server 127.0.0.1"), LIMIT)?;
        lab.run_for("a", &format!("{check} --client 127.0.0.1"), LIMIT)?;
        server.finish()?;
    }
    lab.run("a", "modprobe -r tbrdma").map(drop)
}
