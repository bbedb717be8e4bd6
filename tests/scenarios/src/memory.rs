//! Little memory for DMA: the rings step down, and the module comes up all the same.
//!
//! A guest with a small bounce buffer that everything must go through (`swiotlb=N,force`: N slots
//! of 2 KiB) refuses mappings when that is used up, as a machine short of memory does, and harms
//! nothing else: virtio devices do not use it.

use crate::bench::{wait_for_port, Shape};
use crate::{facts, Bench};
use anyhow::{ensure, Context, Result};

/// Room for about 1000 frames, far fewer than two rings of 4096 want.
const CMDLINE: &str = "swiotlb=2048,force";

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let shape = Shape {
        cmdline: CMDLINE,
        ..Shape::PAIR
    };
    bench.lab(shape.clone())?;
    // The kernel says so for every mapping that it refuses.
    bench.expect("swiotlb buffer is full");
    let lab = bench.lab(shape)?;
    wait_for_port(lab, "ACTIVE")?;
    // With another user of thunderbolt.ko, or `modprobe -r` takes that away as well.
    lab.run("b", "modprobe thunderbolt_net")?;
    lab.run("b", "modprobe -r tbrdma && modprobe tbrdma ring_size=4096")?;
    wait_for_port(lab, "ACTIVE")?;
    let asked = lab.run("b", "cat /sys/module/tbrdma/parameters/ring_size")?;
    ensure!(
        asked == "4096\n",
        "somebody else has loaded the module, with ring_size={asked}"
    );
    let log = lab.run("b", "dmesg")?;
    let taken = facts::ring_size_taken(&log, 4096)
        .context("the module did not say that it took fewer descriptors")?;
    ensure!(
        (32..4096).contains(&taken),
        "{taken} descriptors were taken instead of fewer than 4096"
    );
    crate::checked::transfer(lab, "--mode send --size 4096 --count 1000")?;
    crate::checked::transfer(lab, "--mode write --size 65536 --count 100").map(drop)
}
