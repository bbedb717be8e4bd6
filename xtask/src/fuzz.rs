//! `cargo xtask fuzz`: bytes that find their own way through every parser of what a peer or a user says.
//!
//! The targets are in `proto/fuzz/targets`; libFuzzer runs them. The compiler's own passes report which branches
//! were taken, so no nightly toolchain and no cargo-fuzz is needed. `proto` has no `unsafe`, so there is nothing
//! for a sanitizer to find: what fuzzing finds are panics, overflows, endless loops and broken promises.

use crate::build::{cargo, repository, target};
use anyhow::{ensure, Context, Result};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tbrdma_lab::command::run;
use tbrdma_lab::debian::host_needs;

/// What the compiler adds for libFuzzer.
const FLAGS: [&str; 9] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions=yes",
    "-Coverflow-checks=yes",
];

/// Longest input, bytes: a frame and then some.
const LONGEST: usize = 5000;
/// An input on which a target works longer than this hangs.
const HANG: Duration = Duration::from_secs(10);
/// In a test: all targets together.
const MINUTE: Duration = Duration::from_secs(60);
/// Inputs that a target tries in its part of [`MINUTE`] at the very least, on the slowest machine.
const FEW: u64 = 500;

/// Which target, and how long.
#[derive(Args)]
pub struct Arguments {
    /// Name of a target; all, one after the other, if there is none.
    target: Option<String>,
    /// How long each target runs, minutes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: u64,
}

/// Fuzzes for as long as is asked for.
pub fn by_hand(arguments: &Arguments) -> Result<()> {
    let mut names = names()?;
    if let Some(wanted) = &arguments.target {
        ensure!(
            names.contains(wanted),
            "no target is called {wanted}; there are {}",
            names.join(" ")
        );
        names.retain(|name| name == wanted);
    }
    let programs = build()?;
    for name in &names {
        let runs = fuzz(&programs, name, Duration::from_secs(arguments.minutes * 60))?;
        println!("{name}: {runs} inputs, nothing found");
    }
    Ok(())
}

/// Fuzzes all targets for a minute in total.
pub fn test() -> Result<()> {
    let names = names()?;
    ensure!(!names.is_empty(), "there are no fuzz targets");
    let programs = build()?;
    let each = MINUTE / u32::try_from(names.len())?;
    for name in &names {
        let runs = fuzz(&programs, name, each)?;
        ensure!(runs >= FEW, "{name} has tried {runs} inputs only");
    }
    Ok(())
}

/// Names of all targets.
fn names() -> Result<Vec<String>> {
    let dir = repository().join("proto/fuzz/targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.file_stem().unwrap_or_default();
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Where everything of fuzzing is kept.
fn dir() -> PathBuf {
    target().join("fuzz")
}

/// Compiles all targets; returns the folder with the programs.
fn build() -> Result<PathBuf> {
    host_needs(&[("c++", "g++")])?;
    let about = run(Command::new("rustc").arg("-vV"))?;
    let host = about
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc does not say for what it compiles")?;
    // With a target named, build scripts are compiled without the flags.
    run(cargo()
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", FLAGS.join(" "))
        .env("CARGO_TARGET_DIR", dir())
        .args(["build", "--quiet", "--release", "--locked", "--bins"])
        .args(["--target", host, "--manifest-path"])
        .arg(repository().join("proto/fuzz/Cargo.toml")))
    .context("the fuzz targets do not compile")?;
    Ok(dir().join(host).join("release"))
}

/// Runs a target for some time; returns how many inputs it has tried. Inputs that led to something new are kept, and
/// tried first the next time. What breaks the target is an error that says where the input is.
fn fuzz(programs: &Path, name: &str, time: Duration) -> Result<u64> {
    let [corpus, found] = ["corpus", "found"].map(|kind| dir().join(kind).join(name));
    for folder in [&corpus, &found] {
        fs::create_dir_all(folder)?;
    }
    let output = Command::new(programs.join(name))
        .arg(format!("-max_total_time={}", time.as_secs().max(1)))
        .arg(format!("-timeout={}", HANG.as_secs()))
        .arg(format!("-max_len={LONGEST}"))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .arg("-print_final_stats=1")
        .arg(&corpus)
        .output()
        .with_context(|| format!("cannot run the fuzz target {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "the fuzz target {name} has found something:\n{}",
        tail(&said)
    );
    inputs(&said).with_context(|| format!("{name} does not say what it did:\n{}", tail(&said)))
}

/// Inputs that were tried, as libFuzzer says at its end.
fn inputs(said: &str) -> Option<u64> {
    let line = said
        .lines()
        .find(|line| line.contains("number_of_executed_units:"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// The last lines of much text.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_a_program() {
        let manifest = fs::read_to_string(repository().join("proto/fuzz/Cargo.toml")).unwrap();
        let names = names().unwrap();
        assert!(names.len() >= 7, "{names:?}");
        for name in names {
            assert!(
                manifest.contains(&format!("path = \"targets/{name}.rs\"")),
                "{name}"
            );
        }
    }

    #[test]
    fn reads_statistics() {
        let said =
            "Done 5 runs in 1 second(s)\nstat::number_of_executed_units: 12345\nstat::new: 3\n";
        assert_eq!(inputs(said), Some(12345));
        assert_eq!(inputs("==1== ERROR: libFuzzer: deadly signal"), None);
    }
}
