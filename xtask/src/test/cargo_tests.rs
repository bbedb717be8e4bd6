//! Unit, property and simulator tests: cargo's own, by package and name.

use crate::build::cargo;
use anyhow::{ensure, Context, Result};
use tbrdma_lab::command::describe;

/// Some of a package's tests.
#[derive(Clone, Copy)]
pub struct Selection {
    /// Name in `cargo xtask test`.
    pub name: &'static str,
    package: &'static str,
    /// Only tests whose names contain this.
    filter: &'static str,
    /// Leave those out whose names contain one of these.
    skip: &'static [&'static str],
}

/// All of a package's tests.
pub const fn all(name: &'static str, package: &'static str) -> Selection {
    Selection {
        name,
        package,
        filter: "",
        skip: &[],
    }
}

const fn some(name: &'static str, package: &'static str, filter: &'static str) -> Selection {
    Selection {
        name,
        package,
        filter,
        skip: &[],
    }
}

/// What there is.
pub const SELECTIONS: [Selection; 10] = [
    some("proto-prop", "tbrdma-proto", "prop_"),
    some("proto-sim", "tbrdma-proto", "sim_"),
    Selection {
        name: "proto-unit",
        package: "tbrdma-proto",
        filter: "",
        skip: &["prop_", "sim_"],
    },
    all("fabric-unit", "tbrdma-fabric"),
    all("cli-unit", "tbrdma-cli"),
    all("verbs-check-unit", "tbrdma-verbs-check"),
    all("stream-unit", "tbrdma-stream"),
    all("lab-unit", "tbrdma-lab"),
    all("xtask-unit", "xtask"),
    all("scenarios-unit", "tbrdma-scenarios"),
];

/// Runs them; that none was run is a failure.
pub fn run(selection: &Selection) -> Result<()> {
    let mut command = cargo();
    command.args([
        "test",
        "--quiet",
        "--locked",
        "-p",
        selection.package,
        "--no-fail-fast",
    ]);
    command.args(["--", selection.filter]);
    for skip in selection.skip {
        command.args(["--skip", skip]);
    }
    let output = command
        .output()
        .with_context(|| format!("cannot run {}", describe(&command)))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(
        count(&printed) > 0,
        "{} ran no test:\n{printed}",
        describe(&command)
    );
    Ok(())
}

/// Tests that passed, over all the test programs of the run.
fn count(printed: &str) -> u32 {
    printed
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<u32>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn counts_over_several_programs() {
        let printed = "running 2 tests\n..\ntest result: ok. 2 passed; 0 failed\n\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed\ntest result: ok. 3 passed; 0 failed\n";
        assert_eq!(count(printed), 5);
        assert_eq!(
            count("running 0 tests\ntest result: ok. 0 passed; 0 failed"),
            0
        );
    }
}
