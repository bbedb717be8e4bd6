//! Labs for scenarios.

use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Duration;
use tbrdma_lab::{Lab, Options};

/// Things that were built for the scenarios.
pub struct Setup {
    /// The guests' root with our packages installed, and what its content follows from.
    pub root: (PathBuf, String),
    /// Program that emulates routers and cables.
    pub fabric: PathBuf,
    /// Program that sends checked traffic, for the guests.
    pub verbs_check: PathBuf,
}

/// What distinguishes labs that cannot be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    hosts: usize,
    cables: usize,
    kernel: &'static str,
    generation: u32,
    lanes: u32,
}

/// Gives labs to scenarios.
pub struct Bench {
    setup: Setup,
    lab: Option<(Shape, Lab)>,
    /// Parts of our module's error lines that the scenario provokes.
    expected: Vec<&'static str>,
}

impl Bench {
    /// Without a lab so far.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            lab: None,
            expected: Vec::new(),
        }
    }

    /// Two hosts, one cable of two lanes, kernel 7.3.
    pub fn pair(&mut self) -> Result<&mut Lab> {
        self.pair_with(3, 2)
    }

    /// Two hosts, one cable of this generation and these lanes.
    pub fn pair_with(&mut self, generation: u32, lanes: u32) -> Result<&mut Lab> {
        self.lab(Shape {
            hosts: 2,
            cables: 1,
            kernel: "7.3",
            generation,
            lanes,
        })
    }

    /// Two hosts with an older kernel.
    pub fn pair_on(&mut self, kernel: &'static str) -> Result<&mut Lab> {
        self.lab(Shape {
            hosts: 2,
            cables: 1,
            kernel,
            generation: 3,
            lanes: 2,
        })
    }

    /// One host without any cable.
    pub fn single(&mut self) -> Result<&mut Lab> {
        self.lab(Shape {
            hosts: 1,
            cables: 0,
            kernel: "7.3",
            generation: 3,
            lanes: 2,
        })
    }

    fn lab(&mut self, shape: Shape) -> Result<&mut Lab> {
        if self
            .lab
            .as_ref()
            .is_none_or(|(present, _)| *present != shape)
        {
            self.drop_lab();
            let options = Options {
                hosts: shape.hosts,
                cables: shape.cables,
                kernel: shape.kernel.to_string(),
                generation: shape.generation,
                lanes: shape.lanes,
                root: Some(self.setup.root.clone()),
                fabric: Some(self.setup.fabric.clone()),
                ..Options::default()
            };
            let lab = Lab::up(&options)?;
            let hosts: Vec<String> = lab.hosts().map(str::to_owned).collect();
            for host in &hosts {
                lab.access(host)?
                    .push(&self.setup.verbs_check, "/usr/local/bin/tbrdma-verbs-check")
                    .context("cannot copy the checker into a guest")?;
            }
            self.lab = Some((shape, lab));
        }
        match &mut self.lab {
            Some((_, lab)) => Ok(lab),
            None => anyhow::bail!("no lab"),
        }
    }

    /// The lab in use, if there is one.
    pub fn present(&mut self) -> Option<&mut Lab> {
        self.lab.as_mut().map(|(_, lab)| lab)
    }

    /// The scenario provokes error lines of our module that contain this.
    pub fn expect(&mut self, part: &'static str) {
        self.expected.push(part);
    }

    /// Looks whether a kernel complained during the scenario.
    pub fn check(&mut self) -> Result<()> {
        let expected = std::mem::take(&mut self.expected);
        match &mut self.lab {
            Some((_, lab)) => lab.check(&expected),
            None => Ok(()),
        }
    }

    /// The next scenario gets a fresh lab.
    pub fn drop_lab(&mut self) {
        self.lab = None;
        self.expected.clear();
    }
}

/// Waits until the port of each host is in this state ("ACTIVE" or "DOWN").
pub(crate) fn wait_for_port(lab: &Lab, state: &str) -> Result<()> {
    let hosts: Vec<String> = lab.hosts().map(str::to_owned).collect();
    for host in hosts {
        lab.until(
            &host,
            &format!("grep -q {state} /sys/class/infiniband/tbrdma0/ports/1/state"),
            Duration::from_secs(90),
        )
        .with_context(|| format!("the port of {host} did not become {state}"))?;
    }
    Ok(())
}
