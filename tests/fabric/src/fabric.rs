//! Hosts and cables: which links are up, and what is asked over the control socket. What moves over the links is in
//! `frames` and `control`.

use crate::fault::Active;
use crate::host::Host;
use crate::layout::adapter;
use crate::nhi::Frame;
use crate::pcap::Pcap;
use crate::protocol::{CableCounters, Counters, Direction, Fault};
use crate::router::{Effect, Link, PortKind};
use crate::spec;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Instant;

/// A cable.
pub(crate) struct Cable {
    /// Host and port of both ends.
    pub(crate) ends: [(usize, usize); 2],
    pub(crate) generation: u8,
    pub(crate) plugged: bool,
    pub(crate) up: bool,
    pub(crate) bonded: bool,
    pub(crate) faults: [Option<Active>; 2],
    pub(crate) held: [Option<Held>; 2],
    pub(crate) pcap: Option<Pcap>,
    pub(crate) counters: CableCounters,
}

/// A frame that a fault holds back.
pub(crate) struct Held {
    pub(crate) host: usize,
    pub(crate) ring: usize,
    pub(crate) frame: Frame,
    pub(crate) bytes: Vec<u8>,
    pub(crate) since: Instant,
}

/// Everything.
pub(crate) struct Fabric {
    pub(crate) hosts: Vec<Host>,
    /// When `work` was last done. Time comes from there only, so that tests decide on it.
    pub(crate) now: Instant,
    pub(crate) cables: Vec<Cable>,
    /// Cable and end at each port of each host.
    pub(crate) at: Vec<[Option<(usize, usize)>; adapter::PORTS]>,
}

impl Fabric {
    /// Builds it; returns also the file that each host's guest maps.
    pub(crate) fn new(
        names: &[String],
        specs: &[spec::Cable],
    ) -> Result<(Self, Vec<File>), String> {
        let mut at = vec![[None; adapter::PORTS]; names.len()];
        let mut kinds = vec![[PortKind::EMPTY; adapter::PORTS]; names.len()];
        let mut cables = Vec::new();
        for (number, spec) in specs.iter().enumerate() {
            let mut ends = [(0, 0); 2];
            for (side, end) in spec.ends.iter().enumerate() {
                let host = names
                    .iter()
                    .position(|name| *name == end.host)
                    .ok_or_else(|| {
                        format!(
                            "cable {number} ends at host {:?}, which is not there",
                            end.host
                        )
                    })?;
                let port = end.port - 1;
                let slot: &mut Option<(usize, usize)> = &mut at[host][port];
                if slot.is_some() {
                    return Err(format!(
                        "two cables are at port {} of host {}",
                        end.port, end.host
                    ));
                }
                *slot = Some((number, side));
                kinds[host][port] = PortKind {
                    generation: spec.generation,
                    lanes: spec.lanes,
                    paths: spec.paths,
                    credits: spec.credits,
                };
                ends[side] = (host, port);
            }
            cables.push(Cable {
                ends,
                generation: spec.generation,
                plugged: true,
                up: false,
                bonded: false,
                faults: [None, None],
                held: [None, None],
                pcap: None,
                counters: CableCounters::default(),
            });
        }
        let mut hosts = Vec::new();
        let mut files = Vec::new();
        for (number, name) in names.iter().enumerate() {
            if names[..number].contains(name) {
                return Err(format!("there are two hosts {name:?}"));
            }
            let newest = kinds[number].iter().map(|kind| kind.generation).max();
            let v2 = newest >= Some(4);
            let (host, file) =
                Host::new(name, number, kinds[number], v2).map_err(|e| e.to_string())?;
            files.push(file);
            hosts.push(host);
        }
        let fabric = Self {
            hosts,
            now: Instant::now(),
            cables,
            at,
        };
        Ok((fabric, files))
    }

    // --- power and links ---

    /// A VMM came or went.
    pub(crate) fn set_power(&mut self, host: usize, on: bool) {
        self.hosts[host].powered = false;
        self.update_links();
        self.hosts[host].reset();
        if !on {
            self.hosts[host].nhi.memory.clear();
        }
        self.hosts[host].powered = on;
        self.update_links();
        log::info!(
            "host {}: {}",
            self.hosts[host].name,
            if on { "on" } else { "off" }
        );
    }

    /// The host router resets itself: for its peers this is unplugging and plugging in.
    fn reset_router(&mut self, host: usize) {
        self.hosts[host].powered = false;
        self.update_links();
        self.hosts[host].reset();
        self.hosts[host].powered = true;
        self.update_links();
    }

    /// Puts a cable in or pulls it out.
    pub(crate) fn set_plugged(&mut self, cable: usize, plugged: bool) -> Result<(), String> {
        self.cable(cable)?.plugged = plugged;
        self.update_links();
        log::info!(
            "cable {cable}: {}",
            if plugged { "plugged in" } else { "pulled out" }
        );
        Ok(())
    }

    fn cable(&mut self, cable: usize) -> Result<&mut Cable, String> {
        let count = self.cables.len();
        self.cables
            .get_mut(cable)
            .ok_or_else(|| format!("there is no cable {cable}, only {count} (counted from 0)"))
    }

    fn update_links(&mut self) {
        for number in 0..self.cables.len() {
            let cable = &self.cables[number];
            let up = cable.plugged
                && cable.ends.iter().all(|&(host, port)| {
                    self.hosts[host].powered && !self.hosts[host].in_reset[port]
                });
            if up == cable.up {
                continue;
            }
            let ends = cable.ends;
            let cable = &mut self.cables[number];
            cable.up = up;
            // Generation 4 links come up bonded.
            cable.bonded = up && cable.generation >= 4;
            cable.held = [None, None];
            for (host, port) in ends {
                self.plug_event(host, port, !up);
            }
        }
    }

    fn plug_event(&mut self, host: usize, port: usize, unplug: bool) {
        let now = self.now;
        let host = &mut self.hosts[host];
        if host.powered && host.router.wants_plug_events(port) {
            host.plug_event(port, unplug, now);
        }
    }

    pub(crate) fn links(&self, host: usize) -> [Link; adapter::PORTS] {
        self.at[host].map(|end| {
            let cable = end.map(|(cable, _)| &self.cables[cable]);
            Link {
                up: cable.is_some_and(|c| c.up),
                bonded: cable.is_some_and(|c| c.bonded),
            }
        })
    }

    pub(crate) fn apply(&mut self, host: usize, effect: Effect) {
        match effect {
            Effect::PlugEventsWanted(port) => {
                if self.links(host)[port].up {
                    self.plug_event(host, port, false);
                }
            }
            Effect::PortReset(port, reset) => {
                self.hosts[host].in_reset[port] = reset;
                self.update_links();
            }
            Effect::Bond(port) => self.bond(host, port, true),
            Effect::Unbond(port) => self.bond(host, port, false),
        }
    }

    fn bond(&mut self, host: usize, port: usize, bond: bool) {
        let Some((number, _)) = self.at[host][port] else {
            return;
        };
        let cable = &self.cables[number];
        if !cable.up || cable.generation >= 4 {
            return;
        }
        let both = cable
            .ends
            .iter()
            .all(|&(host, port)| self.hosts[host].router.wants_bonding(port));
        self.cables[number].bonded = bond && both;
        log::info!("cable {number}: lanes bonded: {}", bond && both);
    }

    // --- registers ---

    pub(crate) fn read_register(&mut self, host: usize, offset: usize) -> u32 {
        self.hosts[host].nhi.read_register(offset)
    }

    pub(crate) fn write_register(&mut self, host: usize, offset: usize, value: u32) {
        if self.hosts[host].nhi.write_register(offset, value) {
            log::info!("host {}: router reset", self.hosts[host].name);
            self.reset_router(host);
        }
    }

    // --- what is asked over the control socket ---

    pub(crate) fn set_fault(
        &mut self,
        cable: usize,
        direction: Direction,
        fault: &Fault,
    ) -> Result<(), String> {
        // Both are checked before one is set.
        let mut new = [
            Some(Active::new(fault.clone())?),
            Some(Active::new(fault.clone())?),
        ];
        let cable = self.cable(cable)?;
        for side in sides(direction) {
            cable.faults[side] = new[side].take();
        }
        Ok(())
    }

    pub(crate) fn clear_faults(&mut self) {
        for cable in 0..self.cables.len() {
            self.cables[cable].faults = [None, None];
            for direction in 0..2 {
                self.release(cable, direction);
            }
        }
    }

    pub(crate) fn start_pcap(&mut self, cable: usize, path: &Path) -> Result<(), String> {
        let cable = self.cable(cable)?;
        let pcap =
            Pcap::create(path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        if let Some(old) = cable.pcap.replace(pcap) {
            old.finish().map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    pub(crate) fn stop_pcap(&mut self) -> io::Result<()> {
        for cable in &mut self.cables {
            if let Some(pcap) = cable.pcap.take() {
                pcap.finish()?;
            }
        }
        Ok(())
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            routers: self
                .hosts
                .iter()
                .map(|host| (host.name.clone(), host.nhi.counters()))
                .collect(),
            cables: self
                .cables
                .iter()
                .map(|cable| CableCounters {
                    up: cable.up,
                    ..cable.counters.clone()
                })
                .collect(),
        }
    }
}

fn sides(direction: Direction) -> std::ops::Range<usize> {
    match direction {
        Direction::Forth => 0..1,
        Direction::Back => 1..2,
        Direction::Both => 0..2,
    }
}

#[cfg(test)]
#[path = "fabric_tests.rs"]
mod tests;
