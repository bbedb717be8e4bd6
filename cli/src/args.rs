//! The command line.

use clap::{Args as ClapArgs, Parser, Subcommand};
use std::path::PathBuf;

/// RDMA between computers joined by a USB4 or Thunderbolt cable.
#[derive(Debug, Parser)]
#[command(name = "tbrdma", version, disable_help_subcommand = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the RDMA device, the hosts it reaches, and the cables and rails to them
    ///
    /// Peers, links and rails are read from debugfs, which only root may do; everybody sees the
    /// device, its network interface and the cables. The exit status is 0 when the device is
    /// there, connected or not, and 3 when it is not.
    Status(StatusArgs),
}

/// Options of `tbrdma status`.
#[derive(Debug, ClapArgs)]
pub struct StatusArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Read from the sys directory in DIR instead of /sys
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}
