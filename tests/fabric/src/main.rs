//! Emulates USB4 host routers, one for each host, and the cables between them.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use tbrdma_fabric::{server, spec};

/// Emulates USB4 host routers and cables for virtual machines.
///
/// Each host's router is a PCI device that QEMU attaches with
/// -device '{"driver":"vfio-user-pci","x-no-posted-writes":true,"socket":{"type":"unix","path":"DIR/HOST.sock"}}'.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where the sockets come to lie; it must exist.
    #[arg(long)]
    dir: PathBuf,
    /// Name of a host.
    #[arg(long = "host", required = true)]
    hosts: Vec<String>,
    /// A cable: HOST:PORT-HOST:PORT[,gen=3|4][,lanes=1|2][,paths=1..24][,credits=3..1023].
    #[arg(long = "cable")]
    cables: Vec<spec::Cable>,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let arguments = Arguments::parse();
    match server::run(&arguments.dir, &arguments.hosts, &arguments.cables) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
