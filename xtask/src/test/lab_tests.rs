//! Scenarios in the lab.

use crate::build;
use crate::package::layer;
use anyhow::{Context, Result};
use tbrdma_scenarios::{Bench, Scenario, Setup};

/// Runs scenarios; what they need is built when the first one comes.
#[derive(Default)]
pub struct LabTests {
    bench: Option<Bench>,
}

impl LabTests {
    /// Runs one. A lab in which something failed is not used again.
    pub fn run(&mut self, scenario: &Scenario) -> Result<()> {
        let bench = match &mut self.bench {
            Some(bench) => bench,
            none => none.insert(Bench::new(Setup {
                root: layer::guest_with_packages()?,
                fabric: build::fabric()?,
                verbs_check: build::program("tbrdma-verbs-check", "tbrdma-verbs-check")?,
            })),
        };
        let outcome = (scenario.run)(bench).and_then(|()| bench.check());
        if outcome.is_err() {
            if let Some(lab) = bench.present() {
                println!("{}", lab.digest());
            }
            let logs = build::repository()
                .join("target/test-logs")
                .join(scenario.name);
            let saved = bench.present().map(|lab| lab.save_logs(&logs));
            bench.drop_lab();
            if let Some(Ok(())) = saved {
                return outcome.with_context(|| format!("logs are in {}", logs.display()));
            }
        }
        outcome
    }
}
