//! Labs for scenarios.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
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
pub(crate) struct Shape {
    pub(crate) hosts: usize,
    /// Between two hosts, or in a ring of more.
    pub(crate) cables: usize,
    pub(crate) kernel: &'static str,
    pub(crate) generation: u32,
    pub(crate) lanes: u32,
    /// More words for the guests' kernels.
    pub(crate) cmdline: &'static str,
}

impl Shape {
    /// Two hosts, one cable of two lanes, the newest kernel.
    pub(crate) const PAIR: Self = Self {
        hosts: 2,
        cables: 1,
        kernel: "7.3",
        generation: 3,
        lanes: 2,
        cmdline: "",
    };
}

/// Gives labs to scenarios.
pub struct Bench {
    setup: Setup,
    lab: Option<(Shape, Lab)>,
    /// Parts of the kernel's alarming lines and of our module's errors that the scenario provokes.
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

    /// The guests' root.
    pub(crate) fn root(&self) -> &Path {
        &self.setup.root.0
    }

    /// A lab of the shape that most scenarios share.
    pub fn pair(&mut self) -> Result<&mut Lab> {
        self.lab(Shape::PAIR)
    }

    /// One host without any cable.
    pub fn single(&mut self) -> Result<&mut Lab> {
        self.lab(Shape {
            hosts: 1,
            cables: 0,
            ..Shape::PAIR
        })
    }

    /// A lab of this shape.
    pub(crate) fn lab(&mut self, shape: Shape) -> Result<&mut Lab> {
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
                cmdline: shape.cmdline.to_string(),
                root: Some(self.setup.root.clone()),
                fabric: Some(self.setup.fabric.clone()),
                ..Options::default()
            };
            let lab = Lab::up(&options)?;
            let hosts: Vec<String> = lab.hosts().map(str::to_owned).collect();
            for host in &hosts {
                // A guest that is still busy with what it found when it booted may load a module that a scenario has
                // just unloaded.
                lab.run(host, "udevadm settle --timeout=100")
                    .context("a guest does not come to rest after it booted")?;
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

    /// The scenario provokes alarming lines of the kernel, or errors of our module, that contain
    /// this.
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
pub fn wait_for_port(lab: &Lab, state: &str) -> Result<()> {
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
