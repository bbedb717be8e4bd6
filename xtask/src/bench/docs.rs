//! docs/benchmarks.md.

use super::candidate::Place;
use super::results::Results;
use super::Scope;
use std::fmt::Write;

/// What stays the same whatever was measured.
const HEAD: &str = "\
# Benchmarks

`cargo xtask bench --docs` measures and writes this page. There is no Thunderbolt hardware in it: two virtual machines with stock
Debian kernels, our packages, and [emulated USB4 routers and a cable](fabric.md) between them. Everything is emulated in software, so
times say nothing about real cables. What means something are the ratios between candidates, which suffer from the same emulation,
and the counts, which hardly depend on the machine.

## What is compared

| candidate | what it is | measured with |
|---|---|---|
| `tbrdma` | this project, over the cable | perftest |
| `rxe` | soft-RoCE (`rdma_rxe`) on `thunderbolt_net`, over the same cable | perftest |
| `tcp` | TCP on `thunderbolt_net`, over the same cable | iperf3 (bandwidth), sockperf ping-pong (latency) |
| `tbstream` | the kernel's own stream device (`thunderbolt_stream`), over the same cable | `tests/stream` |
| `raw` | a pair of bare DMA rings and nothing on top of them, over the same cable: the limit | `tests/rawring` |
| `tbrdma-loop` | this project with `loopback=1`, in one host without a cable | perftest |
| `rxe-loop` | soft-RoCE on a `dummy` interface, in one host | perftest |

- All candidates of a place are set up in the same machines at once, and measured one after the other, figure by figure; the next
  repetition begins when the last has been through everything, with the candidates in reverse order. A ratio is formed inside each
  repetition; the table has the median of the ratios, which need not be the ratio of the medians.
- perftest runs with `-u 18` (a local ACK timeout of one second) with every candidate, because its default of 67 ms makes emulated
  machines repeat what was not lost, and bandwidth with `-t 128`, RC, the port's own MTU, no inline size given.
- The one host of `tbrdma-loop` and `rxe-loop` has a clock that counts instructions, 1 ns each (QEMU's `-icount`): what is measured
  there are instructions, whatever else the computer does.
- Latency is half of a round trip (READ: a whole one), both ends polling; \"events\": both sleep until their completion channel wakes
  them. perftest has no events for WRITE latency. sockperf blocks in `recvfrom`; it has no messages below 14 bytes.
- Bandwidth goes from the client to the server (READ: the other way); \"both ways\" is the sum of both directions at once. iperf3
  writes at most 1 MiB at a time, so at 4 MiB it is measured with that.
- `tbstream` has rings of 1024 frames, as tbrdma and `raw`, and its `busy_poll` is on; its programs block in `read`.
- `raw` runs in the kernel at both ends, which poll without a pause, send no copies, acknowledgements or credits, and let the
  rings' end-to-end flow control slow them down. Its frames carry 4096 bytes whatever the size of messages that others send.
- The message rate is that of 64-byte writes, posted in lists of 64.
- How many messages a run has follows from a short calibration of each candidate. It is the same in all repetitions.
";

const COUNTS: &str = "
Counts are taken from the emulated routers around a run of known size: frames and bytes of both directions, interrupts and doorbell
writes of both hosts. Control frames carry no payload: in one-way runs those against the direction of the payload, and those that
the sender's driver says it has sent; in a ping-pong all beyond one for each message. Doorbell writes that follow each other faster
than an emulated router looks (20 µs) are seen as one. System calls are the client's, by strace, and those that come with starting and
ending are taken out by the difference of two runs.
";

/// The whole page.
pub(crate) fn page(results: &Results, scope: &Scope) -> String {
    let mut page = String::from(HEAD);
    let _ = write!(
        page,
        "\n## Results\n\nVersion {}, kernel {}, {}; both machines, the routers and the cable share {} processors.\n",
        crate::package::VERSION,
        scope.kernel,
        match scope.runs {
            1 => "one repetition".to_owned(),
            runs => format!("{runs} repetitions"),
        },
        scope.processors,
    );
    for table in Place::ALL
        .iter()
        .filter_map(|place| results.figures(*place))
    {
        let _ = write!(page, "\n{}", table.markdown());
    }
    if let Some(table) = results.targets() {
        let _ = write!(page, "\n## What we want\n\n{}", table.markdown());
    }
    page.push_str("\n## Counts\n");
    page.push_str(COUNTS);
    for table in Place::ALL.iter().filter_map(|place| results.counts(*place)) {
        let _ = write!(page, "\n{}", table.markdown());
    }
    page.push_str("\n## Noise\n\n");
    match results.noise_line() {
        Some(line) => {
            let _ = writeln!(page, "{line}");
            for table in Place::ALL.iter().filter_map(|place| results.noise(*place)) {
                let _ = write!(page, "\n{}", table.markdown());
            }
        }
        None => page.push_str("Unknown: there was one repetition only.\n"),
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::{Figure, Kind, Operation};
    use crate::bench::results::What;

    #[test]
    fn the_page_has_what_was_measured() {
        let mut results = Results::default();
        let what = What::figure(Figure {
            kind: Kind::Bandwidth,
            operation: Operation::Write,
            size: 64 << 10,
        });
        for (name, value) in [("tbrdma-loop", 30.0), ("rxe-loop", 5.0)] {
            results.add(name, Place::Loopback, what, value, None);
        }
        let scope = Scope {
            kernel: "7.3.4".to_owned(),
            runs: 1,
            processors: 2,
        };
        let page = page(&results, &scope);
        assert!(page.contains("| bandwidth write 64 KiB | MiB/s | 30.0 | 5.00 | 6.00 |"));
        assert!(page.contains("tbrdma-loop / rxe-loop | at least 3 | 6.00 | holds |"));
        assert!(page.contains("kernel 7.3.4, one repetition;"));
        assert!(page.contains("Unknown: there was one repetition only."));
    }
}
