//! Stock programs run between two guests, and what their output says.

use anyhow::{ensure, Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;
use tbrdma_scenarios::{facts, stock};

/// Emulated computers are slow; this only keeps a hang from lasting.
const LIMIT: Duration = Duration::from_secs(120);

/// An RDMA device that both guests have.
#[derive(Clone, Copy)]
pub(crate) struct Device<'a> {
    /// Name in both guests.
    pub(crate) name: &'a str,
    /// Index of the GID to use.
    pub(crate) gid: u32,
}

/// Something to measure.
pub(crate) struct Measurement {
    /// For people.
    pub(crate) title: &'static str,
    program: &'static str,
    server: &'static str,
    client: &'static str,
    read: fn(&str) -> Result<String>,
}

const fn from_b(
    title: &'static str,
    program: &'static str,
    read: fn(&str) -> Result<String>,
) -> Measurement {
    Measurement {
        title,
        program,
        server: "a",
        client: "b",
        read,
    }
}

/// What is measured with each device.
pub(crate) const MEASUREMENTS: [Measurement; 6] = [
    from_b(
        "ibv_rc_pingpong, 4 KiB, checked, b to a",
        "ibv_rc_pingpong -c -n 200",
        per_iteration,
    ),
    Measurement {
        title: "ibv_rc_pingpong, 4 KiB, checked, a to b",
        program: "ibv_rc_pingpong -c -n 200",
        server: "b",
        client: "a",
        read: per_iteration,
    },
    from_b("ib_send_lat, 64 B", "ib_send_lat -F -s 64 -n 200", latency),
    from_b(
        "ib_send_bw, 64 KiB",
        "ib_send_bw -F -s 65536 -n 100",
        bandwidth,
    ),
    from_b(
        "ib_write_bw, 64 KiB",
        "ib_write_bw -F -s 65536 -n 100",
        bandwidth,
    ),
    from_b(
        "ib_read_bw, 64 KiB",
        "ib_read_bw -F -s 65536 -n 100",
        bandwidth,
    ),
];

impl Measurement {
    /// Runs the program between both guests; returns its result with its unit.
    pub(crate) fn run(&self, lab: &Lab, device: Device) -> Result<String> {
        facts::until_measured(|| self.run_once(lab, device))
    }

    fn run_once(&self, lab: &Lab, device: Device) -> Result<String> {
        let Device { name, gid } = device;
        let gid_option = if self.program.starts_with("ibv_") {
            "-g"
        } else {
            "-x"
        };
        let program = format!("{} -d {name} {gid_option} {gid}", self.program);
        let printed = stock::both(lab, &program, self.server, self.client, LIMIT)?.client;
        ensure!(
            !printed.contains("invalid data"),
            "{program} received wrong data:\n{printed}"
        );
        (self.read)(&printed)
    }
}

fn bandwidth(printed: &str) -> Result<String> {
    Ok(format!("{:.1} MiB/s", facts::bandwidth(printed)?))
}

/// "500 iters in 0.5 seconds = 1000.00 usec/iter" as "1000 µs".
fn per_iteration(printed: &str) -> Result<String> {
    let time: f64 = printed
        .lines()
        .find_map(|line| line.trim().strip_suffix(" usec/iter")?.rsplit(' ').next())
        .with_context(|| format!("ibv_rc_pingpong says no time:\n{printed}"))?
        .parse()?;
    Ok(format!("{time:.0} µs"))
}

fn latency(printed: &str) -> Result<String> {
    Ok(format!(
        "{:.0} µs",
        facts::perftest_latency(printed)?.median_us
    ))
}

#[cfg(test)]
mod tests {
    use super::per_iteration;

    #[test]
    fn reads_pingpong() {
        let printed = "4096000 bytes in 0.98 seconds = 33.56 Mbit/sec\n\
                       500 iters in 0.98 seconds = 1952.92 usec/iter\n";
        assert_eq!(per_iteration(printed).unwrap(), "1953 µs");
        assert!(per_iteration("Failed to modify QP to RTR").is_err());
    }
}
