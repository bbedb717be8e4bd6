//! See the library.

use clap::Parser;
use std::process::ExitCode;
use tbrdma_cli::args::{Args, Command};
use tbrdma_cli::status;

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Status(args) => status::run(&args, &mut std::io::stdout().lock()),
    };
    match result {
        Ok(code) => code,
        // The reader has seen enough (`tbrdma status | head -1`).
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("tbrdma: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
