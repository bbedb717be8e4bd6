//! `tbrdma status`.

mod gather;
mod model;
mod state_file;
mod text;

pub use model::{
    Cable, Device, Gid, Host, Link, Module, Netdev, Peer, Port, Rail, Status, DEVICE, MODULE,
};

use crate::args::StatusArgs;
use anyhow::Result;
use std::io::Write;
use std::process::ExitCode;

/// The exit status when there is no device.
pub const NO_DEVICE: u8 = 3;

/// Gathers the status and prints it to `out`.
pub fn run(args: &StatusArgs, out: &mut impl Write) -> Result<ExitCode> {
    let status = gather::gather(&args.root)?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&status)?)?;
    } else {
        text::write(&status, out)?;
    }
    out.flush()?;
    Ok(match status.device {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::from(NO_DEVICE),
    })
}
