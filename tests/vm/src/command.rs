//! Running programs, with errors that say what was run and what it said.

use anyhow::{bail, Context, Result};
use std::process::Command;

/// The command line, for people.
pub fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs to the end; an error has what was printed.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", describe(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!(
            "{}: {}\n{}{}",
            describe(command),
            output.status,
            text,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(text)
}
