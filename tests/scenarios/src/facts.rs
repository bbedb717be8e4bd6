//! Reading what tools print.

use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeSet;

/// The word after `label:` in the output of ibv_devinfo.
pub fn devinfo<'a>(output: &'a str, label: &str) -> Result<&'a str> {
    output
        .lines()
        .filter_map(|line| line.trim().split_once(':'))
        .find(|(found, _)| *found == label)
        .map(|(_, value)| value.trim())
        .with_context(|| format!("ibv_devinfo prints no {label}:\n{output}"))
}

/// Gb/s out of `active_width` and `active_speed` as ibv_devinfo prints them: "4X (2)" and
/// "10.0 Gbps (4)".
pub fn link_gbps(output: &str) -> Result<f64> {
    let number = |text: &str| -> Result<f64> {
        let digits = text.trim_start();
        let end = digits
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(digits.len());
        digits[..end]
            .parse()
            .with_context(|| format!("no number in {text}"))
    };
    Ok(number(devinfo(output, "active_width")?)? * number(devinfo(output, "active_speed")?)?)
}

/// What a bandwidth program of perftest (`ib_*_bw`) found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// Average, MiB/s; both directions together with `-b`.
    pub mib_per_s: f64,
    /// Messages per second; with `-b`, of both directions together.
    pub messages_per_s: f64,
}

/// What a latency program of perftest (`ib_*_lat`) found. Half a round trip for SEND and WRITE, a whole one for READ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Median, microseconds: perftest's `t_typical`.
    pub median_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
}

/// The last line of numbers only, with at least `columns` of them: perftest's result.
fn result_line(output: &str, columns: usize) -> Result<Vec<f64>> {
    output
        .lines()
        .rev()
        .filter_map(|line| {
            line.split_whitespace()
                .map(|word| word.parse().ok())
                .collect::<Option<Vec<f64>>>()
        })
        .find(|numbers| numbers.len() >= columns)
        .with_context(|| format!("no result line:\n{output}"))
}

/// Average bandwidth in MiB/s out of the result line of a perftest program.
pub fn bandwidth(output: &str) -> Result<f64> {
    Ok(perftest_bandwidth(output)?.mib_per_s)
}

/// The result line of a bandwidth program: bytes, iterations, peak, average, million messages per
/// second.
///
/// [`Unmeasured`] if the program could not tell.
pub fn perftest_bandwidth(output: &str) -> Result<Bandwidth> {
    let numbers = result_line(output, 5)?;
    let found = Bandwidth {
        mib_per_s: numbers[3],
        messages_per_s: numbers[4] * 1e6,
    };
    measured(found.mib_per_s, output)?;
    Ok(found)
}

/// The result line of a latency program: bytes, iterations, least, most, typical, average, standard deviation, 99th and
/// 99.9th percentile. [`Unmeasured`] if the program could not tell.
pub fn perftest_latency(output: &str) -> Result<Latency> {
    let numbers = result_line(output, 9)?;
    let found = Latency {
        median_us: numbers[4],
        p99_us: numbers[7],
    };
    measured(found.median_us, output)?;
    Ok(found)
}

/// perftest did not measure, for a reason of its own; what it printed.
#[derive(Debug)]
pub enum Unmeasured {
    /// It moved the data, but could not tell how fast. It counts cycles, and compares them with the time of day first, a
    /// few hundred times; where these do not lie on a line, as on a busy computer, it takes the frequency for 0 (its
    /// `get_clock.c`), and prints rates of 0 and infinite times.
    Time(String),
    /// Its client came before its server listened. With `-R` both tell each other that they are ready, then the server
    /// begins to listen while the client connects already. The client tries again when it is refused, but takes its
    /// connections for made then, and dies of a QP that it does not have (`rdma_cm_connect_error` in its
    /// `perftest_communication.c`).
    TooEarly(String),
}

impl std::error::Error for Unmeasured {}

impl std::fmt::Display for Unmeasured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Time(printed) => write!(f, "perftest could not measure the time:\n{printed}"),
            Self::TooEarly(printed) => {
                write!(f, "perftest's server did not listen yet:\n{printed}")
            }
        }
    }
}

/// The failure of a perftest client, which is [`Unmeasured`] if it came too early. Nobody listens: reason 8 of a REJ (IBTA
/// 12.6.7.2, invalid service ID).
pub(crate) fn client_failure(error: anyhow::Error) -> anyhow::Error {
    let printed = format!("{error:#}");
    if printed.contains("RDMA_CM_EVENT_REJECTED; error: 8.") {
        Unmeasured::TooEarly(printed).into()
    } else {
        error
    }
}

fn measured(figure: f64, output: &str) -> Result<()> {
    ensure!(
        figure > 0.0 && figure.is_finite(),
        Unmeasured::Time(output.to_owned())
    );
    Ok(())
}

/// Runs what measures, again if it is [`Unmeasured`].
pub fn until_measured<T>(mut run: impl FnMut() -> Result<T>) -> Result<T> {
    const AGAIN: u32 = 3;
    for _ in 0..AGAIN {
        match run() {
            Err(error) if error.is::<Unmeasured>() => {}
            outcome => return outcome,
        }
    }
    run()
}

/// What sending bytes as fast as can be found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Bytes that arrived; both directions together if both were used.
    pub bytes: f64,
    /// MiB/s, likewise.
    pub mib_per_s: f64,
}

/// What `iperf3 --json` printed at its client.
pub fn iperf3(output: &str) -> Result<Stream> {
    let report: serde_json::Value = serde_json::from_str(output)
        .with_context(|| format!("iperf3 printed no JSON:\n{output}"))?;
    if let Some(error) = report.get("error") {
        bail!("iperf3 says {error}");
    }
    let number = |sum: &str, what: &str| report["end"][sum][what].as_f64();
    let mut found = Stream {
        bytes: 0.0,
        mib_per_s: 0.0,
    };
    for sum in ["sum_received", "sum_received_bidir_reverse"] {
        if let (Some(bytes), Some(rate)) = (number(sum, "bytes"), number(sum, "bits_per_second")) {
            found.bytes += bytes;
            found.mib_per_s += rate / 8.0 / f64::from(1 << 20);
        }
    }
    ensure!(found.bytes > 0.0, "iperf3 moved nothing:\n{output}");
    Ok(found)
}

/// What `sockperf ping-pong` found: latencies, half of a round trip, and the messages that were sent in each direction,
/// those before and after the valid part of the run included.
pub fn sockperf(output: &str) -> Result<(Latency, u64)> {
    let after = |start: &str, mark: &str| -> Option<f64> {
        let line = output.lines().find(|line| line.contains(start))?;
        let (_, rest) = line.split_once(mark)?;
        let word = rest.split([';', ' ']).find(|word| !word.is_empty())?;
        word.parse().ok()
    };
    let found = || {
        let latency = Latency {
            median_us: after("percentile 50.000", "=")?,
            p99_us: after("percentile 99.000", "=")?,
        };
        Some((latency, after("[Total Run]", "SentMessages=")? as u64))
    };
    found().with_context(|| format!("sockperf prints no result:\n{output}"))
}

/// `key=NUMBER` among words.
fn word(output: &str, key: &str) -> Option<u64> {
    output
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .find(|(name, _)| *name == key)?
        .1
        .parse()
        .ok()
}

/// What a ping-pong of bare rings or of a stream device found: latencies, half of a round trip, and the round trips.
pub fn pingpong(output: &str) -> Result<(Latency, u64)> {
    let found = || {
        let latency = Latency {
            median_us: word(output, "median_ns")? as f64 / 1e3,
            p99_us: word(output, "p99_ns")? as f64 / 1e3,
        };
        let trips = word(output, "trips")?;
        (trips > 0 && latency.median_us > 0.0).then_some((latency, trips))
    };
    found().with_context(|| format!("a ping-pong prints no result:\n{output}"))
}

/// What bytes sent as fast as can be found, over bare rings or a stream device.
pub fn blast(output: &str) -> Result<Stream> {
    let found = || {
        let bytes = word(output, "bytes").filter(|bytes| *bytes > 0)? as f64;
        let seconds = word(output, "ns").filter(|ns| *ns > 0)? as f64 / 1e9;
        Some(Stream {
            bytes,
            mib_per_s: bytes / seconds / f64::from(1 << 20),
        })
    };
    found().with_context(|| format!("a stream prints no result:\n{output}"))
}

/// System calls in the summary of `strace -c`.
pub fn system_calls(output: &str) -> Result<u64> {
    output
        .lines()
        .rev()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.len() >= 5 && words.last() == Some(&"total"))
        .and_then(|words| words[3].parse().ok())
        .with_context(|| format!("strace prints no summary:\n{output}"))
}

/// Sum of `key=NUMBER` over all lines that begin with `object`, in `/sys/kernel/debug/tbrdma/state`. `None`: no such line
/// has it.
pub fn state_sum(state: &str, object: &str, key: &str) -> Option<u64> {
    state
        .lines()
        .filter(|line| line.split_whitespace().next() == Some(object))
        .filter_map(|line| {
            line.split_whitespace()
                .filter_map(|word| word.split_once('='))
                .find(|(name, _)| *name == key)?
                .1
                .parse::<u64>()
                .ok()
        })
        .reduce(|sum, more| sum + more)
}

/// Sequence numbers that a ping which was stopped has sent and got no answer to. The very last one
/// may have been on its way when ping was stopped, and does not count.
pub fn lost_pings(output: &str) -> Result<Vec<u32>> {
    let sent: u32 = output
        .lines()
        .find_map(|line| line.split_once(" packets transmitted")?.0.parse().ok())
        .with_context(|| format!("ping prints no summary:\n{output}"))?;
    ensure!(sent > 1, "ping has sent nothing that counts:\n{output}");
    let answered: BTreeSet<u32> = output
        .lines()
        .filter(|line| line.contains("bytes from"))
        .filter_map(|line| {
            let (_, rest) = line.split_once("icmp_seq=")?;
            rest.split_whitespace().next()?.parse().ok()
        })
        .collect();
    Ok((1..sent).filter(|n| !answered.contains(n)).collect())
}

/// Descriptors that the module took last where `asked` were too many, out of its line in the kernel
/// log.
pub fn ring_size_taken(log: &str, asked: u32) -> Option<u32> {
    let words = format!("ring_size={asked} asked, ");
    let (_, rest) = log.rsplit_once(&words)?;
    rest.split_once(" taken")?.0.parse().ok()
}

/// A counter out of what `rdma statistic` prints.
pub fn statistic(output: &str, name: &str) -> Result<u64> {
    let mut words = output.split_whitespace();
    words
        .find(|word| *word == name)
        .and_then(|_| words.next()?.parse().ok())
        .with_context(|| format!("there is no counter {name}:\n{output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_statistics() {
        let output = "link tbrdma0/1 tx_frames 12 tx_retransmits 0 \n    rx_frames 345 \n";
        assert_eq!(statistic(output, "rx_frames").unwrap(), 345);
        assert_eq!(statistic(output, "tx_retransmits").unwrap(), 0);
        assert!(statistic(output, "tx").is_err());
    }

    #[test]
    fn reads_devinfo() {
        let output = "hca_id:\ttbrdma0\n\tnode_guid:\t\t\t00aa:bb\n\t\t\tactive_width:\t\t4X (2)\n\t\t\tactive_speed:\t\t10.0 Gbps (4)\n";
        assert_eq!(devinfo(output, "node_guid").unwrap(), "00aa:bb");
        assert_eq!(link_gbps(output).unwrap(), 40.0);
        assert!(devinfo(output, "state").is_err());
    }

    #[test]
    fn reads_ping() {
        let answer =
            |n: &u32| format!("64 bytes from 10.78.0.2: icmp_seq={n} ttl=64 time=2.3 ms\n");
        let summary = "--- 10.78.0.2 ping statistics ---\n4 packets transmitted, 3 received, 25% packet loss, time 3ms\n";
        let lines = |numbers: &[u32]| numbers.iter().map(answer).collect::<String>() + summary;
        assert!(lost_pings(&lines(&[1, 2, 3])).unwrap().is_empty());
        assert!(lost_pings(&lines(&[1, 2, 3, 4])).unwrap().is_empty());
        assert_eq!(lost_pings(&lines(&[1, 3, 4])).unwrap(), [2]);
        assert!(lost_pings("ping: connect: Network is unreachable\n").is_err());
    }

    #[test]
    fn reads_ring_sizes() {
        let log = "[1] tbrdma: ring_size=4096 asked, 1024 taken: memory is short\n\
                   [2] tbrdma: ring_size=4096 asked, 512 taken: memory is short\n";
        assert_eq!(ring_size_taken(log, 4096), Some(512));
        assert_eq!(ring_size_taken(log, 2048), None);
    }

    #[test]
    fn reads_perftest_bandwidth() {
        let output = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n 65536      500              770.43             640.89 \t\t     0.010254\n---\n";
        assert_eq!(bandwidth(output).unwrap(), 640.89);
        let found = perftest_bandwidth(output).unwrap();
        assert!((found.messages_per_s - 10254.0).abs() < 1e-6);
        assert!(perftest_bandwidth("Couldn't connect to a:18515\n").is_err());
        let nothing = " 65536      500              0.00             0.00 \t\t     0.000000\n";
        let error = perftest_bandwidth(nothing).unwrap_err();
        assert!(error.is::<Unmeasured>(), "{error}");
        // A line that begins with enough numbers and goes on with words is no result.
        assert!(perftest_bandwidth("1 2 3 4 5 iterations\n").is_err());
    }

    #[test]
    fn reads_perftest_latency() {
        let output = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n \
                       64      200          601.5          2100.0       744.4     \t   800.1   \t90.0\t\t1500.0  \t\t2100.0\n---\n";
        let found = perftest_latency(output).unwrap();
        assert_eq!((found.median_us, found.p99_us), (744.4, 1500.0));
        let short = " 64      200          601.5          2100.0       744.4\n";
        assert!(perftest_latency(short).is_err());
        let never = " 64 200 inf inf inf inf inf inf inf\n";
        assert!(perftest_latency(never).unwrap_err().is::<Unmeasured>());
    }

    #[test]
    fn measures_again_without_a_clock_only() {
        let mut runs = 0;
        let rate = until_measured(|| {
            runs += 1;
            let rate = if runs < 3 { 0.0 } else { 7.5 };
            let printed = format!("65536 500 {rate} {rate} {rate}\n");
            bandwidth(&printed).context("with a context")
        });
        assert_eq!((rate.unwrap(), runs), (7.5, 3));
        let mut runs = 0;
        let never = until_measured(|| {
            runs += 1;
            bandwidth("65536 500 0.00 0.00 0.00\n")
        });
        assert!(never.unwrap_err().is::<Unmeasured>() && runs == 4);
        let mut runs = 0;
        let broken = until_measured(|| {
            runs += 1;
            bandwidth("Couldn't connect to a:18515\n")
        });
        assert!(broken.is_err() && runs == 1);
    }

    #[test]
    fn tells_a_client_that_came_too_early() {
        let failed = |printed: &str| anyhow::anyhow!("exit status: 139\n{printed}");
        let early = "RDMA CM event error:\nEvent: RDMA_CM_EVENT_REJECTED; error: 8.\n";
        let error = client_failure(failed(early)).context("with a context");
        assert!(error.is::<Unmeasured>(), "{error}");
        for other in [
            "Event: RDMA_CM_EVENT_REJECTED; error: 28.\n",
            "Event: RDMA_CM_EVENT_UNREACHABLE; error: -110.\n",
        ] {
            let error = client_failure(failed(other)).context("with a context");
            assert!(!error.is::<Unmeasured>(), "{error}");
            assert!(format!("{error:#}").contains(other), "{error:#}");
        }
    }

    #[test]
    fn reads_iperf3() {
        let one = r#"{"end": {"sum_sent": {"bytes": 2000000, "bits_per_second": 9e9},
            "sum_received": {"bytes": 1048576, "bits_per_second": 8388608}}}"#;
        let found = iperf3(one).unwrap();
        assert_eq!((found.bytes, found.mib_per_s), (1_048_576.0, 1.0));
        let both = r#"{"end": {"sum_received": {"bytes": 1048576, "bits_per_second": 8388608},
            "sum_received_bidir_reverse": {"bytes": 1048576, "bits_per_second": 16777216}}}"#;
        assert_eq!(iperf3(both).unwrap().mib_per_s, 3.0);
        let failed = r#"{"end": {}, "error": "unable to connect to server"}"#;
        let error = iperf3(failed).unwrap_err().to_string();
        assert!(error.contains("unable to connect"), "{error}");
        assert!(iperf3("iperf3: parameter error").is_err());
    }

    #[test]
    fn reads_sockperf() {
        let output = "sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; SentMessages=56853; ReceivedMessages=56852\n\
                      sockperf: [Valid Duration] RunTime=0.550 sec; SentMessages=32993; ReceivedMessages=32993\n\
                      sockperf: ---> percentile 99.990 = 1930.362\n\
                      sockperf: ---> percentile 99.000 =   10.164\n\
                      sockperf: ---> percentile 50.000 =    6.870\n";
        let (latency, messages) = sockperf(output).unwrap();
        assert_eq!((latency.median_us, latency.p99_us), (6.870, 10.164));
        assert_eq!(messages, 56853);
        assert!(sockperf("sockperf: ERROR: Can't connect socket\n").is_err());
    }

    #[test]
    fn reads_bare_rings() {
        let (latency, trips) = pingpong("trips=1140 median_ns=48928 p99_ns=2825202\n").unwrap();
        assert_eq!((latency.median_us, latency.p99_us), (48.928, 2825.202));
        assert_eq!(trips, 1140);
        assert!(pingpong("trips=0 median_ns=0 p99_ns=0\n").is_err());
        let found = blast("bytes=2097152 ns=500000000\n").unwrap();
        assert_eq!((found.bytes, found.mib_per_s), (2_097_152.0, 4.0));
        for wrong in ["", "bytes=0 ns=5\n", "bytes=5 ns=0\n"] {
            assert!(blast(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_strace() {
        let with_errors = "% time     seconds  usecs/call     calls    errors syscall\n\
                           ------ ----------- ----------- --------- --------- ----------------\n \
                           60.00    0.000006           6         1           write\n\
                           ------ ----------- ----------- --------- --------- ----------------\n\
                           100.00    0.000010           0        45         2 total\n";
        assert_eq!(system_calls(with_errors).unwrap(), 45);
        let without = "100.00    0.000010           0        43           total\n";
        assert_eq!(system_calls(without).unwrap(), 43);
        assert!(system_calls("strace: Can't stat 'x'\n").is_err());
    }

    #[test]
    fn reads_the_state_file() {
        let state =
            "port active=1\nrail link=1 frames=9 control=3\nrail link=2 frames=1 control=4\n";
        assert_eq!(state_sum(state, "rail", "control"), Some(7));
        assert_eq!(state_sum(state, "rail", "colour"), None);
        assert_eq!(state_sum(state, "link", "control"), None);
    }
}
