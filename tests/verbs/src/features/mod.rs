//! Features of the device, each tried in this process alone: its QPs talk to each other.

mod events;
mod kit;
mod paths;
mod posting;
mod queues;
mod regions;

use anyhow::{ensure, Context, Result};
use kit::Device;

type Check = fn(&Device) -> Result<()>;

const CHECKS: [(&str, Check); 16] = [
    ("extended sends", posting::extended_sends),
    ("extended datagrams", posting::extended_datagrams),
    ("extended limits", posting::limits),
    ("path told", paths::told),
    ("connect again", paths::again),
    ("cq resize", queues::resize),
    ("cq resize under traffic", queues::resize_under_traffic),
    ("rereg rights", regions::rights),
    ("rereg translation", regions::translation),
    ("dma-buf", regions::dma_buf),
    ("no on-demand paging", regions::no_on_demand),
    ("event established", events::established),
    ("event drained", events::drained),
    ("event last receive", events::last_receive),
    ("event srq limit", events::srq_limit),
    ("event access", events::access),
];

/// Tries all, or the one that is wanted.
pub fn run(device: &str, gid_index: u8, wanted: &str) -> Result<()> {
    let mut tried = 0;
    for (name, check) in CHECKS {
        if !wanted.is_empty() && wanted != name {
            continue;
        }
        let device = Device::open(device, gid_index)?;
        check(&device).with_context(|| format!("feature: {name}"))?;
        println!("ok {name}");
        tried += 1;
    }
    ensure!(tried > 0, "there is no feature {wanted}");
    Ok(())
}
