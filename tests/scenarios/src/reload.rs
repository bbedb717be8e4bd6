//! The module goes and comes: under traffic, and again and again, without harm to others.

use crate::bench::wait_for_port;
use crate::{facts, Bench};
use anyhow::{ensure, Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(180);
/// Loads and unloads while another service uses the cable.
const CYCLES: usize = 10;
/// Loads and unloads of the whole Thunderbolt driver.
const WHOLE_CYCLES: usize = 4;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    whole_driver(lab)?;
    // With another user of thunderbolt.ko, or `modprobe -r` takes that away as well.
    crate::tbnet::configure(lab)?;

    let what =
        "--mode write --size 65536 --count 100000000 --depth 32 --expect-error --error-limit 60";
    let (server, client) = crate::checked::start(lab, what, LIMIT)?;
    crate::unplug::wait_for_traffic(lab)?;
    // That programs hold the device does not keep the module.
    let unload = "s=$(date +%s); modprobe -r tbrdma || exit 1; e=$(date +%s); \
                  test ! -e /sys/module/tbrdma || { echo tbrdma is still there; exit 1; }; \
                  test $((e - s)) -le 5 || { echo \"modprobe -r took $((e - s)) s\"; exit 1; }";
    let unloaded = lab.run_for("a", unload, LIMIT);
    let (client, server) = (client.outcome()?, server.outcome()?);
    unloaded.with_context(|| format!("client: {client:?}\nserver: {server:?}"))?;
    // Both programs were told; neither had to give up by itself.
    for (host, (status, printed)) in [("a", server), ("b", client)] {
        ensure!(
            status == Some(0),
            "the program on {host} did not end with an error of its device ({status:?}):\n{printed}"
        );
    }
    for host in ["a", "b"] {
        lab.run(host, "modprobe tbrdma")?;
    }
    wait_for_port(lab, "ACTIVE")?;

    // It goes on until it is told to stop, so that it covers every cycle.
    let ping = "echo $$ > /run/lab-ping.pid; exec ping -i 0.5 10.78.0.2";
    let pinging = lab.start("a", ping, LIMIT)?;
    for _ in 0..CYCLES {
        lab.run("b", "modprobe -r tbrdma && modprobe tbrdma")?;
        std::thread::sleep(Duration::from_secs(2));
    }
    lab.run("a", "kill -INT $(cat /run/lab-ping.pid)")?;
    let printed = pinging.finish()?;
    let lost = facts::lost_pings(&printed)?;
    ensure!(
        lost.is_empty(),
        "thunderbolt_net lost the packets {lost:?}:\n{printed}"
    );
    wait_for_port(lab, "ACTIVE")?;
    crate::checked::transfer(lab, "--mode send --size 4096 --count 200")?;

    // A ring that is larger than the default, without any contiguous memory set aside.
    ensure!(
        lab.run("a", "grep CmaTotal /proc/meminfo")?
            .contains(" 0 kB"),
        "there is CMA memory"
    );
    lab.run("b", "modprobe -r tbrdma && modprobe tbrdma ring_size=4096")?;
    wait_for_port(lab, "ACTIVE")?;
    crate::checked::transfer(lab, "--mode send --size 4096 --count 200")?;
    lab.run("b", "modprobe -r tbrdma && modprobe tbrdma")?;
    wait_for_port(lab, "ACTIVE")
}

/// The Thunderbolt driver itself goes and comes, as it does with `modprobe -r tbrdma` where nothing
/// else uses it: the cable is found again and udev loads our module.
fn whole_driver(lab: &Lab) -> Result<()> {
    for host in ["a", "b"].into_iter().cycle().take(WHOLE_CYCLES) {
        lab.run(
            host,
            "modprobe -r tbrdma; modprobe -r -q thunderbolt_net thunderbolt; \
             test ! -e /sys/module/thunderbolt && modprobe thunderbolt",
        )?;
        wait_for_port(lab, "ACTIVE")
            .with_context(|| format!("after thunderbolt.ko was loaded again on {host}"))?;
    }
    Ok(())
}
