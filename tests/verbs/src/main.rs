//! Verbs traffic with checked bytes between two hosts, or two processes of one host.
//!
//! Every byte that arrives is compared with what the sender must have sent. Both ends run the
//! same program with the same arguments, one as `--server`, one as `--client`.

mod endpoint;
mod features;
mod ffi;
mod pattern;
mod race;
mod side;
mod traffic;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use race::Race;
use std::process::ExitCode;
use std::time::Duration;

/// Sends checked traffic with verbs.
#[derive(Parser, Clone, Debug)]
#[command(version)]
struct Arguments {
    /// Wait for the other end at this address (beside the RDMA path).
    #[arg(long, conflicts_with = "client", required_unless_present_any = ["client", "features"])]
    server: Option<String>,
    /// Connect to the other end at this address (beside the RDMA path).
    #[arg(long)]
    client: Option<String>,
    /// Try features of the device within this process alone; with a name, only that one.
    #[arg(long, conflicts_with_all = ["server", "client"], num_args = 0..=1, default_missing_value = "")]
    features: Option<String>,
    /// TCP port for that; further transfers use those that follow.
    #[arg(long, default_value_t = 18600)]
    port: u16,
    /// RDMA device.
    #[arg(long, default_value = "tbrdma0")]
    device: String,
    /// Index of the GID to use.
    #[arg(long, default_value_t = 0)]
    gid_index: u8,
    /// How bytes are moved.
    #[arg(long, value_enum, default_value_t = Mode::Send)]
    mode: Mode,
    /// The server sends as well (send and write).
    #[arg(long)]
    both: bool,
    /// Bytes of a message; 8 for atomics.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    size: u32,
    /// Messages.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Messages under way at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: u32,
    /// Transfers at once, each like this and with a device context of its own, as other programs have.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    together: u16,
    /// Equal seeds give equal bytes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds without any progress after which it gives up.
    #[arg(long, default_value_t = 60)]
    stall_limit: u64,
    /// The transfer has to end with a completion error; anything else is a failure.
    #[arg(long)]
    expect_error: bool,
    /// Seconds within which that error has to come after the last progress.
    #[arg(long, default_value_t = 5)]
    error_limit: u64,
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// SEND with immediate data into posted receives.
    Send,
    /// RDMA WRITE with immediate data.
    Write,
    /// RDMA READ by the client.
    Read,
    /// FETCH_ADD by the client of 64-bit numbers, one for each message under way. What it reads, and
    /// what the server has in the end, tell whether each was executed once and in its turn.
    Atomic,
}

impl Mode {
    /// The server's program has no part in it.
    fn is_one_sided(self) -> bool {
        matches!(self, Mode::Read | Mode::Atomic)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tbrdma-verbs-check: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Some(wanted) = &arguments.features {
        return features::run(&arguments.device, arguments.gid_index, wanted);
    }
    let race = Race::new(arguments.together.into());
    let reports: Result<Vec<_>> = std::thread::scope(|scope| {
        let transfers: Vec<_> = (0..arguments.together)
            .map(|at| {
                let race = &race;
                scope.spawn(move || transfer(arguments, race, at))
            })
            .collect();
        let outcomes = transfers.into_iter().map(|transfer| {
            let outcome = transfer.join();
            outcome.unwrap_or_else(|_| anyhow::bail!("a transfer has panicked"))
        });
        outcomes.collect()
    });
    for report in reports? {
        println!("{}", serde_json::to_string(&report)?);
    }
    if arguments.together > 1 && arguments.client.is_some() {
        println!("{}", serde_json::json!({ "shares": race.shares() }));
    }
    Ok(())
}

/// Transfer `at` of those that run together.
fn transfer(arguments: &Arguments, race: &Race, at: u16) -> Result<traffic::Report> {
    let port = arguments
        .port
        .checked_add(at)
        .context("there are not so many TCP ports")?;
    let (side, is_server) = match (&arguments.server, &arguments.client) {
        (Some(address), _) => (side::accept(address, port)?, true),
        (None, Some(address)) => (side::connect(address, port)?, false),
        (None, None) => anyhow::bail!("either --server or --client is needed"),
    };
    let plan = traffic::Plan {
        mode: arguments.mode,
        sends: !is_server || (arguments.both && !arguments.mode.is_one_sided()),
        receives: is_server || (arguments.both && !arguments.mode.is_one_sided()),
        size: match arguments.mode {
            Mode::Atomic => 8,
            _ => arguments.size as usize,
        },
        count: arguments.count,
        depth: arguments.depth as usize,
        seed: arguments.seed,
        our_stream: u64::from(is_server),
        stall_limit: Duration::from_secs(arguments.stall_limit),
        expect_error: arguments
            .expect_error
            .then(|| Duration::from_secs(arguments.error_limit)),
        race: (race, at.into()),
    };
    traffic::run(&plan, &arguments.device, arguments.gid_index, side)
}
