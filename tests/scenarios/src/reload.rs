//! The module goes and comes: under traffic, and again and again, without harm to others.

use crate::bench::wait_for_port;
use crate::Bench;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);
/// Loads and unloads while another service uses the cable.
const CYCLES: usize = 10;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;

    let check = "tbrdma-verbs-check --device tbrdma0 --gid-index 0 --mode write --size 65536 \
                 --count 100000000 --depth 32 --expect-error --error-limit 60";
    let server = lab.start("a", &format!("{check} --server 10.77.0.1"), LIMIT)?;
    let client = lab.start("b", &format!("{check} --client a"), LIMIT)?;
    std::thread::sleep(Duration::from_secs(3));
    // Either it unloads or it says that it is in use; it does so soon.
    let unload = "s=$(date +%s); modprobe -r tbrdma; e=$(date +%s); test $((e - s)) -le 5 || \
                  { echo \"modprobe -r took $((e - s)) s\"; exit 1; }";
    let unloaded = lab.run_for("a", unload, LIMIT);
    let (client, server) = (client.outcome()?, server.outcome()?);
    unloaded.with_context(|| format!("client: {client:?}\nserver: {server:?}"))?;
    for host in ["a", "b"] {
        lab.run(host, "modprobe tbrdma")?;
    }
    wait_for_port(lab, "ACTIVE")?;

    crate::tbnet::configure(lab)?;
    let count = CYCLES * 10;
    let ping = format!("ping -i 0.5 -c {count} -W 20 10.78.0.2");
    let pinging = lab.start("a", &ping, LIMIT)?;
    for _ in 0..CYCLES {
        lab.run("b", "modprobe -r tbrdma && modprobe tbrdma")?;
        std::thread::sleep(Duration::from_secs(2));
    }
    let printed = pinging.finish()?;
    ensure!(
        printed.contains(" 0% packet loss"),
        "thunderbolt_net lost packets:\n{printed}"
    );
    wait_for_port(lab, "ACTIVE")?;
    crate::loss::both(lab, "--mode send --size 4096 --count 200")?;

    // A ring that is larger than the default, without any contiguous memory set aside.
    ensure!(
        lab.run("a", "grep CmaTotal /proc/meminfo")?
            .contains(" 0 kB"),
        "there is CMA memory"
    );
    lab.run("b", "modprobe -r tbrdma && modprobe tbrdma ring_size=4096")?;
    wait_for_port(lab, "ACTIVE")?;
    crate::loss::both(lab, "--mode send --size 4096 --count 200")?;
    lab.run("b", "modprobe -r tbrdma && modprobe tbrdma")?;
    wait_for_port(lab, "ACTIVE")
}
