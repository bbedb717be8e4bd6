//! Stock ibv_devinfo and ibv_rc_pingpong over the cable, with nothing configured by hand.

use crate::bench::{wait_for_port, Shape};
use crate::{facts, stock, Bench};
use anyhow::{ensure, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    // The slow and the fast cable first, so that the pair that others share stays.
    for (generation, lanes, gbps) in [(3, 1, 20.0), (4, 2, 80.0), (3, 2, 40.0)] {
        let lab = bench.lab(Shape {
            generation,
            lanes,
            ..Shape::PAIR
        })?;
        wait_for_port(lab, "ACTIVE")?;
        let mut guids = Vec::new();
        for host in ["a", "b"] {
            let info = lab.run(host, "ibv_devinfo -d tbrdma0 -v")?;
            ensure!(
                facts::devinfo(&info, "state")?.starts_with("PORT_ACTIVE"),
                "{info}"
            );
            let found = facts::link_gbps(&info)?;
            ensure!(
                (found - gbps).abs() < 0.01,
                "the port of {host} says {found} Gb/s, the cable has {gbps}\n{info}"
            );
            guids.push(facts::devinfo(&info, "node_guid")?.to_owned());
            let gid = lab.run(host, "cat /sys/class/infiniband/tbrdma0/ports/1/gids/0")?;
            ensure!(
                gid.starts_with("fe80:"),
                "GID 0 of {host} is {gid}, not link-local"
            );
        }
        ensure!(
            guids[0] != guids[1],
            "both hosts have the node GUID {}",
            guids[0]
        );
        checked(lab, "a", "b")?;
        bench.check()?;
    }
    checked(bench.pair()?, "b", "a")
}

/// The same, shortly, with the older kernel.
pub(crate) fn on_7_2(bench: &mut Bench) -> Result<()> {
    let lab = bench.lab(Shape {
        kernel: "7.2",
        ..Shape::PAIR
    })?;
    ensure!(
        lab.kernel().starts_with("7.2."),
        "the kernel is {}",
        lab.kernel()
    );
    wait_for_port(lab, "ACTIVE")?;
    checked(lab, "a", "b")?;
    crate::perftest::bandwidths(lab, "b", "a")
}

/// ibv_rc_pingpong that compares what it received.
pub(crate) fn checked(lab: &Lab, server: &str, client: &str) -> Result<()> {
    let program = "ibv_rc_pingpong -d tbrdma0 -g 0 -c -n 1000";
    let printed = stock::both(lab, program, server, client, LIMIT)?;
    for text in [&printed.client, &printed.server] {
        ensure!(
            text.contains("1000 iters") && !text.contains("invalid data"),
            "ibv_rc_pingpong found wrong data:\n{text}"
        );
    }
    Ok(())
}
