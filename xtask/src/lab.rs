//! `cargo xtask lab`: the lab by hand.

use crate::build;
use anyhow::{bail, Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use tbrdma_fabric::protocol::{Direction, Fault, FaultKind, When};
use tbrdma_lab::{Lab, Options};

/// Things to do with the lab.
#[derive(Subcommand)]
pub enum Command {
    /// Boot guests joined by cables; they stay up.
    Up(Up),
    /// Run a command in a host (a, b, c, d); its exit status is passed on.
    Exec {
        /// Host.
        host: String,
        /// Command and arguments, after `--`.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Copy a file or folder into a host.
    Push {
        /// Host.
        host: String,
        /// From here.
        from: PathBuf,
        /// To there.
        to: String,
    },
    /// Copy a file or folder out of a host.
    Pull {
        /// Host.
        host: String,
        /// From there.
        from: String,
        /// To here.
        to: PathBuf,
    },
    /// Pull a cable out or put it in; cables are numbered from 0.
    Cable {
        /// Number of the cable.
        number: usize,
        /// What to do with it.
        action: CableAction,
    },
    /// Disturb data frames of a cable, or (`none`) stop that.
    Fault(FaultArguments),
    /// What the emulated hardware counted.
    Counters {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show a host's serial console.
    Console {
        /// Host.
        host: String,
    },
    /// End the lab.
    Down,
}

/// What to boot.
#[derive(Args)]
pub struct Up {
    /// Guests, 1 to 4.
    #[arg(long, default_value_t = 2)]
    hosts: usize,
    /// Cables: between two guests, or in a ring of three or four.
    #[arg(long, default_value_t = 1)]
    cables: usize,
    /// Kernel series.
    #[arg(long, default_value = "7.3")]
    kernel: String,
    /// USB4 generation of the cables: 3 (20 Gb/s per lane) or 4 (40 Gb/s).
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=4))]
    gen: u32,
    /// Lanes of the cables.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=2))]
    lanes: u32,
    /// Boot plain Debian, without our packages.
    #[arg(long)]
    plain: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum CableAction {
    /// Put it in.
    Plug,
    /// Pull it out.
    Unplug,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    None,
    Drop,
    Corrupt,
    Duplicate,
    Delay,
}

/// A fault to set.
#[derive(Args)]
pub struct FaultArguments {
    /// Number of the cable.
    #[arg(long, default_value_t = 0)]
    cable: usize,
    /// What happens to frames.
    kind: Kind,
    /// Probability, 0 to 1.
    #[arg(long, default_value_t = 0.01)]
    probability: f64,
    /// Equal seeds disturb equally.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the frame of this number, counted from now.
    #[arg(long)]
    nth: Option<u64>,
}

/// Does it.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Up(up) => boot(&up)?,
        Command::Exec { host, command } => return exec(&host, &command),
        Command::Push { host, from, to } => Lab::attach()?.access(&host)?.push(&from, &to)?,
        Command::Pull { host, from, to } => Lab::attach()?.access(&host)?.pull(&from, &to)?,
        Command::Cable { number, action } => {
            let mut fabric = Lab::attach()?.fabric()?;
            match action {
                CableAction::Plug => fabric.plug(number)?,
                CableAction::Unplug => fabric.unplug(number)?,
            }
        }
        Command::Fault(arguments) => set_fault(&arguments)?,
        Command::Counters { json } => counters(json)?,
        Command::Console { host } => {
            let lab = Lab::attach()?;
            let bytes = std::fs::read(lab.console(&host)?)?;
            print!("{}", String::from_utf8_lossy(&bytes));
        }
        Command::Down => Lab::end_detached()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn boot(up: &Up) -> Result<()> {
    let options = Options {
        hosts: up.hosts,
        cables: up.cables,
        kernel: up.kernel.clone(),
        generation: up.gen,
        lanes: up.lanes,
        fabric: if up.cables > 0 {
            Some(build::fabric()?)
        } else {
            None
        },
        root: if up.plain {
            None
        } else {
            Some(crate::package::layer::guest_with_packages()?)
        },
        ..Options::default()
    };
    let start = std::time::Instant::now();
    let lab = Lab::up_detached(&options)?;
    println!(
        "{} with kernel {} after {:.0} s; e.g. cargo xtask lab exec a -- ibv_devinfo",
        lab.hosts().collect::<Vec<_>>().join(" "),
        lab.kernel(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn exec(host: &str, command: &[String]) -> Result<ExitCode> {
    let lab = Lab::attach()?;
    // One argument is a script for the guest's shell, several are words.
    let script = match command {
        [script] => script.clone(),
        words => words
            .iter()
            .map(|w| tbrdma_lab::quote(w))
            .collect::<Vec<_>>()
            .join(" "),
    };
    let status = lab
        .access(host)?
        .command(&script)
        .status()
        .context("cannot run ssh")?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Ok(ExitCode::from(code)),
        None => bail!("{status}"),
    }
}

fn set_fault(arguments: &FaultArguments) -> Result<()> {
    let mut fabric = Lab::attach()?.fabric()?;
    let kind = match arguments.kind {
        Kind::None => return Ok(fabric.clear_faults()?),
        Kind::Drop => FaultKind::Drop,
        Kind::Corrupt => FaultKind::Corrupt,
        Kind::Duplicate => FaultKind::Duplicate,
        Kind::Delay => FaultKind::Delay,
    };
    let when = match arguments.nth {
        Some(n) => When::Nth { n },
        None => When::Chance {
            probability: arguments.probability,
            seed: arguments.seed,
        },
    };
    Ok(fabric.set_fault(arguments.cable, Direction::Both, Fault { kind, when })?)
}

fn counters(json: bool) -> Result<()> {
    let counters = Lab::attach()?.fabric()?.counters()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&counters)?);
        return Ok(());
    }
    for (number, cable) in counters.cables.iter().enumerate() {
        println!(
            "cable {number}: {}, {} frames, dropped {}, corrupted {}, repeated {}, delayed {}",
            if cable.up { "up" } else { "down" },
            cable.frames,
            cable.dropped,
            cable.corrupted,
            cable.duplicated,
            cable.delayed
        );
    }
    for (host, router) in &counters.routers {
        println!(
            "{host}: {} interrupts, {} accesses",
            router.interrupts, router.register_accesses
        );
        for (name, rings) in [("tx", &router.tx), ("rx", &router.rx)] {
            for (ring, count) in rings.iter().filter(|(_, count)| count.frames > 0) {
                println!(
                    "  {name} {ring}: {} frames, {} bytes, {} doorbells, {} drops, {} stalls",
                    count.frames, count.bytes, count.doorbells, count.drops, count.stalls
                );
            }
        }
    }
    Ok(())
}
