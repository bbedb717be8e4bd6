//! What has to work between emulated computers: the lab's tests.
//!
//! Each scenario is a function that gets a [`Bench`], asks it for a lab, and fails with an error
//! that says what was wrong. Scenarios that need the same lab share one; each leaves it as it
//! found it.

mod bench;
mod bundle;
mod checked;
pub mod facts;
mod fair;
mod loopback;
mod loss;
mod matrix;
mod memory;
mod network;
mod own;
mod perftest;
mod pingpong;
mod programs;
mod pyverbs;
mod reload;
pub mod stock;
mod tbnet;
mod topology;
mod ulp;
mod unplug;
mod verbs;

pub use bench::{wait_for_port, Bench, Setup};
pub use tbnet::configure as configure_thunderbolt_net;

use anyhow::Result;

/// A named scenario.
pub struct Scenario {
    /// Its name in `cargo xtask test`.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&mut Bench) -> Result<()>,
}

/// All scenarios, in an order in which labs can be shared.
pub const SCENARIOS: [Scenario; 22] = [
    Scenario {
        name: "lab-pingpong",
        run: pingpong::run,
    },
    Scenario {
        name: "lab-perftest",
        run: perftest::run,
    },
    Scenario {
        name: "lab-perftest-matrix",
        run: matrix::run,
    },
    Scenario {
        name: "lab-verbs",
        run: verbs::run,
    },
    Scenario {
        name: "lab-cm",
        run: verbs::connection_manager,
    },
    Scenario {
        name: "lab-programs",
        run: programs::run,
    },
    Scenario {
        name: "lab-pyverbs",
        run: pyverbs::run,
    },
    Scenario {
        name: "lab-pyverbs-sid",
        run: pyverbs::sid,
    },
    Scenario {
        name: "lab-loss",
        run: loss::run,
    },
    Scenario {
        name: "lab-fair",
        run: fair::run,
    },
    Scenario {
        name: "lab-network",
        run: network::run,
    },
    Scenario {
        name: "lab-unplug",
        run: unplug::run,
    },
    Scenario {
        name: "lab-reload",
        run: reload::run,
    },
    Scenario {
        name: "lab-ulp",
        run: ulp::run,
    },
    Scenario {
        name: "fabric-tbnet",
        run: tbnet::run,
    },
    Scenario {
        name: "lab-memory",
        run: memory::run,
    },
    Scenario {
        name: "lab-two-cables",
        run: topology::two_cables,
    },
    Scenario {
        name: "lab-ring",
        run: topology::ring,
    },
    Scenario {
        name: "lab-exec",
        run: own::exec,
    },
    Scenario {
        name: "lab-alarms",
        run: own::alarms,
    },
    Scenario {
        name: "lab-loopback",
        run: loopback::run,
    },
    Scenario {
        name: "lab-kernel-7.2",
        run: pingpong::on_7_2,
    },
];

/// Scenarios that take long, and run only if they are asked for by their names.
pub const ON_REQUEST: [Scenario; 1] = [Scenario {
    name: "lab-perftest-full",
    run: matrix::full,
}];
