//! Reading what tools print.

use anyhow::{ensure, Context, Result};
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

/// Average bandwidth in MiB/s out of the result line of a perftest program.
pub fn bandwidth(output: &str) -> Result<f64> {
    let line = output
        .lines()
        .rev()
        .find(|line| {
            let mut words = line.split_whitespace();
            words.clone().count() >= 5 && words.all(|word| word.parse::<f64>().is_ok())
        })
        .with_context(|| format!("no result line:\n{output}"))?;
    let average = line
        .split_whitespace()
        .nth(3)
        .context("a short result line")?;
    Ok(average.parse()?)
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
    fn reads_perftest() {
        let output = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n 65536      500              770.43             640.89 \t\t     0.010254\n---\n";
        assert_eq!(bandwidth(output).unwrap(), 640.89);
    }
}
