//! `cargo xtask test`: every test by its name.

mod cargo_tests;
mod docs;
mod lab_tests;
mod lint;
mod packages;
mod provider;

use anyhow::{bail, Result};
use clap::Args;
use std::process::ExitCode;
use std::time::Instant;

/// Which tests to run.
#[derive(Args)]
pub struct Arguments {
    /// Only tests with these names; `*` stands for anything. May be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the names instead of running.
    #[arg(long)]
    list: bool,
}

/// How a test is run.
pub enum Body {
    /// By itself.
    Plain(fn() -> Result<()>),
    /// The unit tests of a package whose names contain a word.
    Cargo(cargo_tests::Selection),
    /// A scenario in the lab.
    Lab(&'static tbrdma_scenarios::Scenario),
}

/// A named test.
pub struct Test {
    name: &'static str,
    body: Body,
}

/// All tests: the quick ones first, those in the lab last.
fn tests() -> Vec<Test> {
    let plain = |name, body| Test {
        name,
        body: Body::Plain(body),
    };
    let mut tests = vec![plain("lint-fmt", lint::fmt as fn() -> Result<()>)];
    tests.push(plain("lint-clippy", lint::clippy));
    tests.push(plain("lint-shellcheck", lint::shellcheck));
    for selection in cargo_tests::SELECTIONS {
        tests.push(Test {
            name: selection.name,
            body: Body::Cargo(selection),
        });
    }
    tests.push(plain("fuzz", crate::fuzz::test));
    tests.push(plain("provider-unit", provider::unit));
    tests.push(plain("provider-abi-trixie", provider::trixie));
    tests.push(plain("provider-abi-sid", provider::sid));
    tests.push(plain("docs-version", docs::version));
    tests.push(plain("docs-parameters", docs::parameters));
    tests.push(plain("lint-deb", lint::lintian));
    tests.push(plain("pkg-deb-install", packages::deb_install));
    for scenario in &tbrdma_scenarios::SCENARIOS {
        tests.push(Test {
            name: scenario.name,
            body: Body::Lab(scenario),
        });
    }
    tests
}

/// Runs or lists tests.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut tests = tests();
    for scenario in &tbrdma_scenarios::ON_REQUEST {
        if arguments.list || arguments.only.iter().any(|w| w == scenario.name) {
            tests.push(Test {
                name: scenario.name,
                body: Body::Lab(scenario),
            });
        }
    }
    if !arguments.only.is_empty() {
        for wanted in &arguments.only {
            if !tests
                .iter()
                .any(|test| glob_match::glob_match(wanted, test.name))
            {
                bail!("no test is called {wanted}; `cargo xtask test --list` shows the names");
            }
        }
        tests.retain(|test| {
            arguments
                .only
                .iter()
                .any(|w| glob_match::glob_match(w, test.name))
        });
    }
    if arguments.list {
        for test in &tests {
            println!("{}", test.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut failed = Vec::new();
    let mut bench = lab_tests::LabTests::default();
    let start = Instant::now();
    for test in &tests {
        let begin = Instant::now();
        let outcome = match &test.body {
            Body::Plain(body) => body(),
            Body::Cargo(selection) => cargo_tests::run(selection),
            Body::Lab(scenario) => bench.run(scenario),
        };
        let seconds = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("ok      {:<20} {seconds:7.1} s", test.name),
            Err(error) => {
                println!("FAILED  {:<20} {seconds:7.1} s\n{error:?}\n", test.name);
                failed.push(test.name);
            }
        }
    }
    drop(bench);
    println!("all in {:.0} s", start.elapsed().as_secs_f64());
    if !failed.is_empty() {
        println!("failed: {}", failed.join(" "));
    }
    println!(
        "{} passed, {} failed",
        tests.len() - failed.len(),
        failed.len()
    );
    Ok(if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
