//! What manages networks gives `tbrdma0` an IPv4 address by what our packages install, and leaves
//! everything else as it is.

use crate::bench::wait_for_port;
use crate::{facts, stock, Bench};
use anyhow::{ensure, Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(120);

/// Addresses of everything but our device.
const OTHERS: &str = "ip -oneline address show | grep -v ' tbrdma0 '| awk '{ print $2, $3, $4 }'";

/// systemd-networkd on one host, NetworkManager on the other.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    // NetworkManager leaves a device alone that was given an address by hand.
    for host in ["a", "b"] {
        lab.run(host, "modprobe rdma_ucm && ip -4 address flush dev tbrdma0")?;
    }
    let outcome = managed(lab);
    for (host, services) in [
        ("a", "systemd-networkd.socket systemd-networkd.service"),
        ("b", "NetworkManager.service"),
    ] {
        lab.run(
            host,
            &format!("systemctl stop {services}; ip -4 address flush dev tbrdma0"),
        )?;
    }
    outcome
}

fn managed(lab: &Lab) -> Result<()> {
    let a = takes_address(lab, "a", "systemd-networkd.service")?;
    let b = takes_address(lab, "b", "NetworkManager.service")?;
    let complaints = lab.run(
        "a",
        "journalctl --no-pager -b -u systemd-networkd | grep -i -e ignoring -e 'unknown key' || true",
    )?;
    ensure!(
        complaints.is_empty(),
        "systemd-networkd does not like our file:\n{complaints}"
    );
    lab.run("b", &format!("ping -c 3 -W 10 -I tbrdma0 {a}"))?;
    lab.run("a", &format!("ping -c 3 -W 10 -I tbrdma0 {b}"))?;

    // The address is a GID, and stock programs use it.
    let (on_a, on_b) = (gid_index(lab, "a", &a)?, gid_index(lab, "b", &b)?);
    let program = |index: u32| format!("ib_write_bw -F -d tbrdma0 -x {index} -n 200 -p 18777");
    facts::until_measured(|| {
        let server = lab.start("a", &program(on_a), LIMIT)?;
        lab.until("a", "ss -Hltn sport = 18777 | grep -q .", LIMIT)?;
        let printed = lab.run_for("b", &format!("{} a", program(on_b)), LIMIT)?;
        server.finish()?;
        facts::bandwidth(&printed)
    })?;
    let cm = "ib_send_bw -R -F -n 200";
    facts::until_measured(|| stock::both_at(lab, cm, "a", "b", &a, LIMIT)).map(drop)
}

/// Starts what manages networks, and returns the address that our device then has.
fn takes_address(lab: &Lab, host: &str, service: &str) -> Result<String> {
    let before = lab.run(host, OTHERS)?;
    lab.run(host, &format!("systemctl start {service}"))?;
    let shown = lab
        .until(
            host,
            "ip -oneline -4 address show dev tbrdma0 | grep -F 'inet 169.254.'",
            LIMIT,
        )
        .with_context(|| format!("{service} on {host} gives tbrdma0 no address"))?;
    let after = lab.run(host, OTHERS)?;
    ensure!(
        before == after,
        "{service} changed addresses of others on {host}, from\n{before}to\n{after}"
    );
    let ours = lab.run(host, "ip -6 address show dev tbrdma0 scope link")?;
    ensure!(
        ours.matches("inet6").count() == 1,
        "{service} changed the link-local address of tbrdma0:\n{ours}"
    );
    shown
        .split_whitespace()
        .find(|word| word.starts_with("169.254."))
        .and_then(|word| word.split('/').next())
        .map(str::to_owned)
        .with_context(|| format!("no address in {shown}"))
}

/// Index of the IPv4-mapped GID of an address, RoCE v2.
fn gid_index(lab: &Lab, host: &str, address: &str) -> Result<u32> {
    let script = format!(
        "cd /sys/class/infiniband/tbrdma0/ports/1; \
         set -- $(echo {address} | tr . ' '); \
         gid=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' \"$@\"); \
         for i in $(seq 0 31); do \
         [ \"$(cat gids/$i)\" = \"$gid\" ] && grep -q v2 gid_attrs/types/$i && echo $i && exit; \
         done; echo \"no GID $gid\" >&2; exit 1"
    );
    lab.until(host, &script, LIMIT)?
        .trim()
        .parse()
        .context("no number")
}
