//! `cargo xtask demo`: two stock computers, one emulated cable, our packages, stock RDMA programs.

mod measure;

use crate::table::Table;
use crate::{build, package};
use anyhow::{ensure, Context, Result};
use measure::{Device, MEASUREMENTS};
use std::time::{Duration, Instant};
use tbrdma_lab::{Lab, Options};
use tbrdma_scenarios::facts;

/// Until a port or a network is usable. Generous: emulated computers are slow.
const READY: Duration = Duration::from_secs(120);
/// Our device, which nobody has to configure.
const OURS: Device = Device {
    name: "tbrdma0",
    gid: 0,
};
/// soft-RoCE; its GID 1 is that of the IPv4 address.
const SOFT_ROCE: Device = Device {
    name: "rxe0",
    gid: 1,
};

/// Runs it, and prints what was found.
pub(crate) fn run() -> Result<()> {
    let steps = Steps(Instant::now());
    steps.say("making the packages and installing them with apt into a Debian 13 system");
    let fabric = build::fabric()?;
    let root = package::layer::guest_with_packages()?;
    steps.say("booting two of these systems, joined by an emulated USB4 cable");
    let mut lab = Lab::up(&Options {
        fabric: Some(fabric),
        root: Some(root),
        ..Options::default()
    })?;
    let result = show(&steps, &mut lab);
    if result.is_err() {
        let logs = build::target().join("demo-logs");
        match lab.save_logs(&logs) {
            Ok(()) => eprintln!("the guests' logs are in {}", logs.display()),
            Err(error) => eprintln!("the guests' logs could not be saved: {error:#}"),
        }
    }
    result
}

/// Says what happens, with the time since the start.
struct Steps(Instant);

impl Steps {
    fn say(&self, what: &str) {
        eprintln!("[{:>4} s] {what}", self.0.elapsed().as_secs());
    }
}

fn show(steps: &Steps, lab: &mut Lab) -> Result<()> {
    steps.say("waiting for the ports");
    for host in ["a", "b"] {
        let state = "/sys/class/infiniband/tbrdma0/ports/1/state";
        lab.until(host, &format!("grep ACTIVE {state}"), READY)
            .with_context(|| format!("the port of {host} did not become active"))?;
    }
    let devices = devices(lab)?;
    steps.say("measuring with tbrdma");
    let ours = MEASUREMENTS
        .iter()
        .map(|what| what.run(lab, OURS))
        .collect::<Result<Vec<String>>>()?;
    lab.check(&[])?;

    steps.say("measuring with soft-RoCE over thunderbolt_net");
    set_soft_roce_up(lab)?;
    let mut table = Table::new(["over the cable", "tbrdma", "soft-RoCE on thunderbolt_net"]);
    for (what, ours) in MEASUREMENTS.iter().zip(ours) {
        // That is somebody else's work; that it fails at times is part of the comparison.
        let theirs = what.run(lab, SOFT_ROCE).unwrap_or_else(|error| {
            eprintln!("soft-RoCE: {error:#}");
            "failed".to_owned()
        });
        table.row([what.title.to_owned(), ours, theirs]);
    }
    lab.check(&[])?;

    println!("\n{devices}\n{table}");
    println!(
        "  Two emulated computers on this one, so the figures say that it works, not how fast a cable is.\n  \
         They took {} s. Try it yourself: cargo xtask lab up",
        steps.0.elapsed().as_secs()
    );
    Ok(())
}

/// What the hosts have.
fn devices(lab: &Lab) -> Result<Table> {
    let mut table = Table::new(["", "host a", "host b"]);
    let mut both = |title: &str, find: &dyn Fn(&str) -> Result<String>| -> Result<[String; 2]> {
        let found = [find("a")?, find("b")?];
        table.row([title.to_owned(), found[0].clone(), found[1].clone()]);
        Ok(found)
    };
    let printed = |script: &'static str| {
        move |host: &str| -> Result<String> { Ok(lab.run(host, script)?.trim().to_owned()) }
    };
    let info = |label: &'static str| {
        move |host: &str| -> Result<String> {
            let printed = lab.run(host, "ibv_devinfo -v -d tbrdma0")?;
            Ok(facts::devinfo(&printed, label)?.to_owned())
        }
    };
    both("system", &printed(". /etc/os-release; echo $PRETTY_NAME"))?;
    both("kernel", &printed("uname -r"))?;
    both("module tbrdma", &printed("cat /sys/module/tbrdma/version"))?;
    let version = "dpkg-query --show --showformat='${Version}' ";
    for (title, package) in [
        ("provider", "ibverbs-provider-tbrdma"),
        ("libibverbs", "libibverbs1"),
        ("perftest", "perftest"),
    ] {
        both(title, &|host| lab.run(host, &format!("{version}{package}")))?;
    }
    let guids = both("node GUID", &info("node_guid"))?;
    ensure!(
        guids[0] != guids[1],
        "both hosts have the node GUID {}",
        guids[0]
    );
    both(
        "GID 0",
        &printed("cat /sys/class/infiniband/tbrdma0/ports/1/gids/0"),
    )?;
    both("port", &info("state"))?;
    both("link", &|host| {
        let printed = lab.run(host, "ibv_devinfo -v -d tbrdma0")?;
        Ok(format!("{} Gb/s", facts::link_gbps(&printed)?))
    })?;
    Ok(table)
}

/// The kernel's RDMA in software, over the kernel's network driver for the same cable.
fn set_soft_roce_up(lab: &Lab) -> Result<()> {
    for (host, number) in [("a", 1), ("b", 2)] {
        lab.run(host, "modprobe thunderbolt_net && modprobe rdma_rxe")?;
        let address = format!(
            "ip link set thunderbolt0 up && ip addr replace 10.78.0.{number}/24 dev thunderbolt0"
        );
        lab.until(host, &address, READY)
            .with_context(|| format!("{host} has no thunderbolt0"))?;
        lab.run(host, "rdma link add rxe0 type rxe netdev thunderbolt0")?;
    }
    lab.until("a", "ping -c 1 -W 5 10.78.0.2", READY)?;
    for host in ["a", "b"] {
        let gid = "grep :ffff: /sys/class/infiniband/rxe0/ports/1/gids/1";
        lab.until(host, gid, READY)
            .with_context(|| format!("rxe0 of {host} has no GID for its IPv4 address"))?;
    }
    Ok(())
}
