//! More than two hosts, and more than one cable.

use crate::bench::{wait_for_port, Shape};
use crate::{bundle, pingpong, Bench};
use anyhow::{ensure, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(120);

/// Three hosts, each joined to both others: everybody reaches everybody.
pub(crate) fn ring(bench: &mut Bench) -> Result<()> {
    let lab = bench.lab(Shape {
        hosts: 3,
        cables: 3,
        ..Shape::PAIR
    })?;
    wait_for_port(lab, "ACTIVE")?;
    for (number, (one, other)) in [("a", "b"), ("b", "c"), ("c", "a")].into_iter().enumerate() {
        reaches_over_tbnet(lab, number, one, other, 1)?;
        pingpong::checked(lab, one, other)?;
    }
    Ok(())
}

/// Two hosts with two cables between them.
pub(crate) fn two_cables(bench: &mut Bench) -> Result<()> {
    let lab = bench.lab(Shape {
        cables: 2,
        ..Shape::PAIR
    })?;
    wait_for_port(lab, "ACTIVE")?;
    reaches_over_tbnet(lab, 0, "a", "b", 2)?;
    pingpong::checked(lab, "a", "b")?;
    pingpong::checked(lab, "b", "a")?;
    bundle::run(lab)
}

/// Stock thunderbolt_net has an interface for each of the `cables` between the two hosts, and pings
/// over every one of them.
fn reaches_over_tbnet(
    lab: &Lab,
    number: usize,
    one: &str,
    other: &str,
    cables: usize,
) -> Result<()> {
    for (host, peer, last) in [(one, other, 1), (other, one, 2)] {
        let script = format!(
            "modprobe thunderbolt_net; n=0\n\
             for i in /sys/class/net/thunderbolt*; do\n\
             test \"$(cat \"$i/device/../device_name\")\" = {peer} || continue\n\
             ip link set \"${{i##*/}}\" up\n\
             ip addr replace 10.78.{number}$n.{last}/24 dev \"${{i##*/}}\"\n\
             n=$((n + 1))\ndone\n\
             test $n = {cables} || {{ echo \"$n interfaces lead to {peer}\" >&2; exit 1; }}"
        );
        lab.until(host, &script, LIMIT)?;
    }
    for cable in 0..cables {
        // The interfaces of the two hosts may be numbered in another order, if there are several.
        let address = format!("10.78.{number}{cable}.2");
        lab.until(one, &format!("ping -c 1 -W 5 {address}"), LIMIT)?;
        let printed = lab.run(one, &format!("ping -c 20 -i 0.1 -W 20 {address}"))?;
        ensure!(
            printed.contains(" 0% packet loss"),
            "packets were lost between {one} and {other}:\n{printed}"
        );
    }
    Ok(())
}
