//! Every kind of QP and operation, by stock programs.

use crate::bench::wait_for_port;
use crate::{facts, stock, Bench};
use anyhow::{ensure, Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(180);

/// Programs that find each other by TCP beside the cable.
const PROGRAMS: [&str; 16] = [
    "ibv_uc_pingpong -d tbrdma0 -g 0 -c -n 500",
    "ibv_rc_pingpong -d tbrdma0 -g 0 -c -n 500 -t",
    "ibv_rc_pingpong -d tbrdma0 -g 0 -c -n 500 -N",
    "ibv_srq_pingpong -d tbrdma0 -g 0 -c -n 500 -q 4",
    "ib_send_bw --use-srq -q 2 -s 4096 -n 300 -F -d tbrdma0 -x 0",
    "ibv_ud_pingpong -d tbrdma0 -g 0 -c -n 500",
    "ib_send_bw -c UC -s 65536 -n 300 -F -d tbrdma0 -x 0",
    "ib_send_bw -c UD -s 2048 -n 300 -F -d tbrdma0 -x 0",
    "ib_send_lat -c UD -s 64 -n 300 -F -d tbrdma0 -x 0",
    "ib_write_bw -c UC -s 65536 -n 300 -F -d tbrdma0 -x 0",
    "ib_atomic_bw -A FETCH_AND_ADD -n 300 -F -d tbrdma0 -x 0",
    "ib_atomic_lat -A CMP_AND_SWAP -n 300 -F -d tbrdma0 -x 0",
    "ib_send_lat -s 256 -I 256 -n 300 -F -d tbrdma0 -x 0",
    "ib_send_bw -e -b -s 4096 -n 500 -F -d tbrdma0 -x 0",
    "ib_write_bw -q 4 -s 65536 -n 200 -F -d tbrdma0 -x 0",
    "ib_write_bw -l 32 -s 64 -n 640 -F -d tbrdma0 -x 0",
];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    let before = frames(lab)?;
    for program in PROGRAMS {
        let printed = stock::both(lab, program, "a", "b", LIMIT)?;
        for text in [&printed.client, &printed.server] {
            ensure!(
                !text.contains("invalid data"),
                "{program} found wrong data:\n{text}"
            );
        }
    }
    let after = frames(lab)?;
    ensure!(
        after.0 > before.0 + 1000 && after.1 > before.1 + 1000,
        "rdma statistic went from {before:?} to {after:?} frames sent and received"
    );
    features(lab)?;
    details(lab)?;
    port_events(lab)
}

/// Each feature by itself, in one host; some of them make completions fail.
fn features(lab: &Lab) -> Result<()> {
    let refused = |lab: &Lab| -> Result<u64> {
        let printed = lab.run("b", "rdma statistic show link tbrdma0/1")?;
        facts::statistic(&printed, "completions_remote_access")
    };
    let before = refused(lab)?;
    lab.run_for("b", "tbrdma-verbs-check --device tbrdma0 --features", LIMIT)?;
    let after = refused(lab)?;
    ensure!(
        after > before,
        "{} completions failed for want of a right, which rdma statistic does not count",
        after - before
    );
    let told = "a send failed: remote access error; its peer is QP 0x";
    lab.run("b", &format!("dmesg | grep -q '{told}'"))
        .context("no line tells who is to blame for a failed completion")
        .map(drop)
}

/// What `rdma resource` tells of the objects of a program that waits for its client.
fn details(lab: &Lab) -> Result<()> {
    let command = "ibv_rc_pingpong -d tbrdma0 -g 0 -p 7177 > /dev/null & server=$!; \
                   for i in $(seq 100); do \
                   rdma resource show qp | grep -q rc_pingpong && break; sleep 0.1; done; \
                   for kind in qp cq mr; do rdma -d -d resource show $kind; done; \
                   kill $server";
    let printed = lab.run("b", command)?;
    for word in ["sq_outstanding", "rq_posted", "waiting", "access_flags"] {
        ensure!(
            printed.contains(word),
            "rdma resource does not tell {word}:\n{printed}"
        );
    }
    Ok(())
}

/// The port's events, as the cable goes and comes.
fn port_events(lab: &Lab) -> Result<()> {
    let watching = "timeout 60 stdbuf -oL ibv_asyncwatch -d tbrdma0 > /tmp/events";
    let watch = lab.start("b", watching, LIMIT)?;
    let seen = |event: &str| format!("grep -q {event} /tmp/events");
    lab.until("b", &seen("'async event FD'"), LIMIT)?;
    lab.fabric()?.unplug(0)?;
    wait_for_port(lab, "DOWN")?;
    lab.until("b", &seen("IBV_EVENT_PORT_ERR"), LIMIT)?;
    lab.fabric()?.plug(0)?;
    wait_for_port(lab, "ACTIVE")?;
    lab.until("b", &seen("IBV_EVENT_PORT_ACTIVE"), LIMIT)?;
    lab.run("b", "pkill -x ibv_asyncwatch")?;
    watch.outcome().map(drop)
}

/// Frames that b has sent and received, as `rdma statistic` tells.
fn frames(lab: &Lab) -> Result<(u64, u64)> {
    let printed = lab.run("b", "rdma statistic show link tbrdma0/1")?;
    Ok((
        facts::statistic(&printed, "tx_frames")?,
        facts::statistic(&printed, "rx_frames")?,
    ))
}

/// The connection manager: programs that find each other over the cable alone.
pub(crate) fn connection_manager(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    for (host, number) in [("a", 1), ("b", 2)] {
        lab.run(
            host,
            &format!(
                "modprobe rdma_ucm && ip addr replace 10.79.0.{number}/24 dev tbrdma0 && \
                 ip link set tbrdma0 up"
            ),
        )?;
    }
    lab.until("b", "ping -c 1 -W 5 10.79.0.1", LIMIT)
        .context("the network device does not reach the other host")?;
    for (server, client) in [
        (
            "rping -s -a 10.79.0.1 -p 7174 -C 200 -S 4000 -V",
            "rping -c -a 10.79.0.1 -p 7174 -C 200 -S 4000 -V",
        ),
        ("ucmatose -p 7174", "ucmatose -s 10.79.0.1 -p 7174"),
        ("rdma_server -p 7174", "rdma_client -s 10.79.0.1 -p 7174"),
        // With QPs of type RC. They send inline what they have asked no room for.
        (
            "rdma_xserver -c r -p 7174",
            "rdma_xclient -c r -s 10.79.0.1 -p 7174",
        ),
        (
            "ib_send_bw -R -n 300 -F -p 7174",
            "ib_send_bw -R -n 300 -F -p 7174 10.79.0.1",
        ),
        ("udaddy", "udaddy -s 10.79.0.1"),
    ] {
        over_cm(lab, server, client)?;
    }
    Ok(())
}

/// Runs a server on a, and a client on b until the server listens; both have to succeed.
fn over_cm(lab: &Lab, server: &str, client: &str) -> Result<()> {
    let listening = lab.start("a", server, LIMIT)?;
    let ran = lab
        .until("a", stock::LISTENS, LIMIT)
        .and_then(|_| lab.run_for("b", client, LIMIT));
    match ran {
        Ok(_) => listening.finish().map(drop),
        Err(error) => Err(stock::with_server(error, client, listening)),
    }
}
