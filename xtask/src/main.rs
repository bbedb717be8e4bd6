//! `cargo xtask`: packages, tests, the lab, measurements and the demonstration.

mod bench;
mod build;
mod demo;
mod fuzz;
mod lab;
mod package;
mod table;
mod test;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Builds, packages, tests and demonstrates tbrdma.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show it working: two emulated computers, one cable, stock programs.
    Demo,
    /// Measure against everything else on the same cable.
    Bench(bench::Arguments),
    /// Run all tests, or some.
    Test(test::Arguments),
    /// Feed the parsers bytes that find their own way, for as long as wanted.
    Fuzz(fuzz::Arguments),
    /// Make the Debian packages.
    Package,
    /// Virtual machines joined by an emulated USB4 cable.
    #[command(subcommand)]
    Lab(lab::Command),
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    match Arguments::parse().command {
        Command::Demo => demo::run()?,
        Command::Bench(arguments) => bench::run(&arguments)?,
        Command::Fuzz(arguments) => fuzz::by_hand(&arguments)?,
        Command::Package => {
            for deb in package::package(&package::Options::new(build::repository()))? {
                println!("{}", deb.display());
            }
        }
        Command::Test(arguments) => return test::run(&arguments),
        Command::Lab(command) => return lab::run(command),
    }
    Ok(ExitCode::SUCCESS)
}
