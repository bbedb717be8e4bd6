//! What people run on top of verbs: UCX, libfabric, and MPI over UCX.

use crate::bench::wait_for_port;
use crate::{facts, stock, Bench};
use anyhow::{ensure, Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

/// Against hanging only.
const LIMIT: Duration = Duration::from_secs(240);

/// One run of `ucx_perftest` each: its name in the output, and its options.
const UCX: [(&str, &str); 9] = [
    ("tag_small", "-t tag_lat -s 64 -n 200 -w 10"),
    ("tag_large", "-t tag_bw -s 262144 -n 20 -w 5"),
    ("put_lat", "-t ucp_put_lat -s 8 -n 100 -w 10"),
    ("put_bw", "-t ucp_put_bw -s 65536 -n 50 -w 10"),
    ("get", "-t ucp_get -s 65536 -n 50 -w 10"),
    ("fadd", "-t ucp_fadd -s 8 -n 100 -w 10"),
    ("cswap", "-t ucp_cswap -s 8 -n 100 -w 10"),
    ("active", "-t ucp_am_bw -s 65536 -n 50 -w 10"),
    ("stream", "-t stream_bw -s 4096 -n 100 -w 10"),
];

/// UCX takes our device and nothing else. Its strong fence, the default since 1.16, flushes at the remote end, which
/// its transport for HCAs that are not NVIDIA's does not offer (`UCX_FENCE_MODE=auto` asks for it all the same); the weak
/// one relies on the order in which a QP delivers.
const OURS: &str = "UCX_NET_DEVICES=tbrdma0:1 UCX_FENCE_MODE=weak UCX_TLS";

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    stock::addresses(lab)?;
    // IPv6 and IPv4: datagrams between them look different.
    for (transports, gid) in [
        ("rc_verbs,ud_verbs", 0),
        ("rc_verbs,ud_verbs", 1),
        ("ud_verbs", 1),
    ] {
        let what = format!("UCX with {transports} and GID {gid}");
        over_the_cable(lab, || ucx(lab, transports, gid)).context(what)?;
    }
    for options in ["-p verbs -e msg", "-p 'verbs;ofi_rxm' -e rdm"] {
        over_the_cable(lab, || libfabric(lab, options)).context(options)?;
    }
    trust(lab)?;
    over_the_cable(lab, || mpi(lab)).context("MPI over UCX")
}

/// What `go` does sends frames; else it went by another network.
fn over_the_cable(lab: &Lab, go: impl FnOnce() -> Result<()>) -> Result<()> {
    let sent = || -> Result<u64> {
        let printed = lab.run("b", "rdma statistic show link tbrdma0/1")?;
        facts::statistic(&printed, "tx_frames")
    };
    let before = sent()?;
    go()?;
    let frames = sent()? - before;
    ensure!(frames > 200, "only {frames} frames went over the cable");
    Ok(())
}

/// Runs a server on a, and a client on b once that listens at a TCP port; returns what the client printed.
fn served(lab: &Lab, port: u16, server: &str, client: &str) -> Result<String> {
    let listening = lab.start("a", &format!("{server} 2>&1"), LIMIT)?;
    let ran = lab
        .until("a", &format!("ss -Hltn sport = {port} | grep -q ."), LIMIT)
        .and_then(|_| lab.run_for("b", &format!("{client} 2>&1"), LIMIT));
    match ran {
        Ok(printed) => listening.finish().map(|_| printed),
        Err(error) => Err(stock::with_server(error, client, listening)),
    }
}

fn ucx(lab: &Lab, transports: &str, gid: u32) -> Result<()> {
    let lines: Vec<String> = UCX
        .iter()
        .map(|(name, options)| format!("{name} {options}"))
        .collect();
    let script = format!("printf '%s\\n' '{}' > /tmp/ucx", lines.join("' '"));
    for host in ["a", "b"] {
        lab.run(host, &script)?;
    }
    let program = |server: &str| {
        format!(
            "{OURS}={transports} UCX_IB_GID_INDEX={gid} ucx_perftest {server} -P 0 -f -b /tmp/ucx"
        )
    };
    let printed = served(lab, 13337, &program(""), &program("a"))?;
    // Its exit status says nothing.
    let done = |name: &str| {
        printed.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(name)
                && words.next().is_some_and(|word| word.parse::<u64>().is_ok())
        })
    };
    let missing: Vec<&str> = UCX
        .iter()
        .map(|test| test.0)
        .filter(|name| !done(name))
        .collect();
    ensure!(
        missing.is_empty() && !printed.contains("ERROR"),
        "{missing:?} did not succeed:\n{printed}"
    );
    Ok(())
}

/// `-c` compares the data.
fn libfabric(lab: &Lab, options: &str) -> Result<()> {
    for size in [64, 65536] {
        let program = format!("fi_pingpong {options} -c -I 100 -S {size}");
        let client = format!("{program} {}", stock::ADDRESS_OF_A);
        served(lab, 47592, &program, &client)?;
    }
    Ok(())
}

/// Lets root on b log in on a, as mpirun wants to.
fn trust(lab: &Lab) -> Result<()> {
    let key = lab.run(
        "b",
        "test -e .ssh/id_ed25519 || ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519; cat .ssh/id_ed25519.pub",
    )?;
    lab.run(
        "a",
        &format!("printf '\\n%s\\n' '{}' >> .ssh/authorized_keys", key.trim()),
    )
    .map(drop)
}

/// NetPIPE's ping-pong of messages that grow.
fn mpi(lab: &Lab) -> Result<()> {
    let words = [
        "mpirun --allow-run-as-root --host b,a -np 2 --mca pml ucx --mca btl self",
        "--mca plm_rsh_args '-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null'",
        "-x UCX_NET_DEVICES=tbrdma0:1 -x UCX_TLS=rc_verbs,ud_verbs,self",
        "NPopenmpi -l 1 -u 65536 -n 5 -p 0 -o /tmp/netpipe 2>&1",
    ];
    let printed = lab.run_for("b", &words.join(" "), LIMIT)?;
    ensure!(
        printed.contains(" 65536 bytes ") && !printed.contains("ERROR"),
        "NetPIPE did not come to its end:\n{printed}"
    );
    Ok(())
}
