//! Traffic over a stream device of the kernel, `/dev/tbstreamN`, to compare others with.
//!
//! The device is a pipe to the same device of the host at the other end of the cable: bytes, no
//! messages. Both ends open it, and agree over TCP on what is to be done. Everything that is
//! measured goes over the device. Messages have a size that both ends know; the first byte of the
//! last one is 1, of all others 0.

mod measure;
mod pipe;

use anyhow::{ensure, Context, Result};
use clap::{Parser, ValueEnum};
use pipe::Pipe;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measures a stream device. Without an address it waits for the other end, and does as that says.
#[derive(Parser, Clone, Debug)]
#[command(version)]
struct Arguments {
    /// The device.
    device: PathBuf,
    /// Address of the other end, beside the cable.
    #[arg(requires = "mode")]
    address: Option<String>,
    /// What to measure.
    #[arg(value_enum)]
    mode: Option<Mode>,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    size: u32,
    /// How long, milliseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    ms: u64,
    /// TCP port.
    #[arg(long, default_value_t = 18515)]
    port: u16,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Messages to and fro; half of a round trip.
    Pingpong,
    /// Messages one way, until the other end has them.
    Blast,
    /// The same in both directions at once.
    Both,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tbrdma-stream: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let pipe = Pipe::open(&arguments.device)
        .with_context(|| format!("cannot open {}", arguments.device.display()))?;
    match (&arguments.address, arguments.mode) {
        (Some(address), Some(mode)) => client(&pipe, address, mode, arguments),
        _ => server(&pipe, arguments.port),
    }
}

/// Says what is to be done, does it, and prints what came out.
fn client(pipe: &Pipe, address: &str, mode: Mode, arguments: &Arguments) -> Result<()> {
    let mut side = TcpStream::connect((address, arguments.port))
        .with_context(|| format!("cannot reach {address}"))?;
    let name = mode.to_possible_value().context("a mode without a name")?;
    writeln!(side, "{} {}", name.get_name(), arguments.size)?;
    // Only when the other end is ready is the device of use: before, bytes are lost.
    ensure!(line(&side)? == "ready", "the other end is not ready");
    let found = measure::client(
        pipe,
        mode,
        arguments.size as usize,
        Duration::from_millis(arguments.ms),
    )?;
    println!("{found}");
    Ok(())
}

/// Does what one client asks for.
fn server(pipe: &Pipe, port: u16) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port))
        .with_context(|| format!("cannot listen at port {port}"))?;
    let (mut side, _) = listener.accept()?;
    let asked = line(&side)?;
    let (mode, size) = parse(&asked).with_context(|| format!("asked for {asked:?}"))?;
    writeln!(side, "ready")?;
    measure::server(pipe, mode, size)?;
    // The client ends first: closing the device ends the stream for both.
    line(&side).map(drop)
}

/// What a client asks for: mode and size.
fn parse(asked: &str) -> Option<(Mode, usize)> {
    let (mode, size) = asked.split_once(' ')?;
    let size = size
        .parse()
        .ok()
        .filter(|size| (1..=1 << 24).contains(size))?;
    Some((Mode::from_str(mode, false).ok()?, size))
}

/// A line that the other end says; empty if it has ended.
fn line(side: &TcpStream) -> Result<String> {
    let mut text = String::new();
    BufReader::new(side).read_line(&mut text)?;
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        assert_eq!(parse("pingpong 64"), Some((Mode::Pingpong, 64)));
        assert_eq!(parse("both 4096"), Some((Mode::Both, 4096)));
        for wrong in [
            "",
            "blast",
            "blast 0",
            "blast x",
            "fly 64",
            "blast 99999999",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
