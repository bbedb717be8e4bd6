//! Hosts and cables, and what moves between them.

use crate::fault::Active;
use crate::layout::{adapter, FRAME_MAX, RINGS};
use crate::nhi::{Frame, Nhi, Room};
use crate::packet::{self, pdf, Address, Packet, FROM_ROUTER};
use crate::pcap::{Meta, Pcap};
use crate::protocol::{CableCounters, Counters, Direction, Fault, FaultKind};
use crate::router::{Effect, Link, PortKind, Router};
use crate::spec;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// A plug event that the connection manager does not acknowledge is sent again after this time ...
const EVENT_RESEND: Duration = Duration::from_millis(200);
/// ... this many times.
const EVENT_TRIES: u32 = 50;
/// A delayed frame that no other frame follows arrives after this time.
const DELAY_MAX: Duration = Duration::from_millis(20);
/// Control packets that wait for the host to read; beyond that it has hung.
const CONTROL_QUEUE: usize = 256;

/// A host and its router.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) nhi: Nhi,
    router: Router,
    /// A VMM is there.
    powered: bool,
    /// USB4 ports that are being reset.
    in_reset: [bool; adapter::PORTS],
    control: VecDeque<Packet>,
    events: VecDeque<PlugEvent>,
}

struct PlugEvent {
    port: usize,
    unplug: bool,
    sent: Option<Instant>,
    tries: u32,
}

/// A cable.
struct Cable {
    /// Host and port of both ends.
    ends: [(usize, usize); 2],
    generation: u8,
    plugged: bool,
    up: bool,
    bonded: bool,
    faults: [Option<Active>; 2],
    held: [Option<Held>; 2],
    pcap: Option<Pcap>,
    counters: CableCounters,
}

/// A frame that a fault holds back.
struct Held {
    host: usize,
    ring: usize,
    frame: Frame,
    bytes: Vec<u8>,
    since: Instant,
}

/// Where a frame goes.
#[derive(Clone, Copy)]
struct Way {
    cable: usize,
    direction: usize,
    host: usize,
    ring: usize,
}

/// Everything.
pub(crate) struct Fabric {
    pub(crate) hosts: Vec<Host>,
    cables: Vec<Cable>,
    /// Cable and end at each port of each host.
    at: Vec<[Option<(usize, usize)>; adapter::PORTS]>,
}

impl Fabric {
    /// Builds it; returns also the file that each host's guest maps.
    pub(crate) fn new(
        names: &[String],
        specs: &[spec::Cable],
    ) -> Result<(Self, Vec<File>), String> {
        let mut at = vec![[None; adapter::PORTS]; names.len()];
        let mut kinds = vec![
            [PortKind {
                generation: 3,
                lanes: 2
            }; adapter::PORTS];
            names.len()
        ];
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
            let (nhi, file) = Nhi::new(if v2 { 0x40 } else { 0x10 }).map_err(|e| e.to_string())?;
            files.push(file);
            hosts.push(Host {
                name: name.clone(),
                nhi,
                router: Router::new(number as u32, if v2 { 0x40 } else { 0x20 }, kinds[number]),
                powered: false,
                in_reset: [false; adapter::PORTS],
                control: VecDeque::new(),
                events: VecDeque::new(),
            });
        }
        Ok((Self { hosts, cables, at }, files))
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
        let host = &mut self.hosts[host];
        if host.powered && host.router.wants_plug_events(port) {
            host.events.push_back(PlugEvent {
                port,
                unplug,
                sent: None,
                tries: 0,
            });
            host.send_events(Instant::now());
        }
    }

    fn links(&self, host: usize) -> [Link; adapter::PORTS] {
        self.at[host].map(|end| {
            let cable = end.map(|(cable, _)| &self.cables[cable]);
            Link {
                up: cable.is_some_and(|c| c.up),
                bonded: cable.is_some_and(|c| c.bonded),
            }
        })
    }

    fn apply(&mut self, host: usize, effect: Effect) {
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

    /// Does what is due: doorbells, frames that waited, events. True if anything moved.
    pub(crate) fn work(&mut self, now: Instant) -> bool {
        let mut moved = false;
        for host in 0..self.hosts.len() {
            let (tx, rx) = self.hosts[host].nhi.doorbells();
            if rx & 1 != 0 {
                self.hosts[host].flush_control();
            }
            for ring in (0..RINGS).filter(|ring| tx >> ring & 1 != 0) {
                moved |= self.transmit(host, ring);
            }
            moved |= rx != 0;
        }
        for number in 0..self.cables.len() {
            for direction in 0..2 {
                let due = self.cables[number].held[direction]
                    .as_ref()
                    .is_some_and(|held| now.duration_since(held.since) >= DELAY_MAX);
                if due {
                    self.release(number, direction);
                }
            }
        }
        for host in 0..self.hosts.len() {
            let waiting = self.hosts[host].nhi.waiting();
            for ring in (0..RINGS).filter(|ring| waiting >> ring & 1 != 0) {
                if !self.must_wait(self.way(host, ring)) {
                    moved |= self.transmit(host, ring);
                }
            }
        }
        for host in &mut self.hosts {
            host.send_events(now);
        }
        moved
    }

    // --- frames ---

    /// Sends from a ring until it is empty or the receiver has no room.
    fn transmit(&mut self, host: usize, ring: usize) -> bool {
        let mut buffer = [0; FRAME_MAX];
        let mut moved = false;
        while let Some(frame) = self.hosts[host].nhi.peek(ring, &mut buffer) {
            let bytes = &buffer[..frame.length];
            if ring == 0 {
                self.hosts[host].nhi.sent(0, &frame, false);
                self.control(host, frame.eof, bytes);
            } else {
                let way = self.way(host, ring);
                if self.must_wait(way) {
                    self.hosts[host].nhi.wait(ring);
                    break;
                }
                if let Some(way) = way {
                    self.carry(ring, way, frame, bytes);
                }
                self.hosts[host].nhi.sent(ring, &frame, way.is_none());
            }
            moved = true;
        }
        if moved {
            self.hosts[host].nhi.transmitted(ring);
        }
        moved
    }

    /// Along the paths that both connection managers have set up.
    fn way(&self, host: usize, ring: usize) -> Option<Way> {
        let out = self.hosts[host].router.way_out(ring)?;
        let (port, _) = adapter::lane(out.adapter)?;
        let (cable, side) = self.at[host][port]?;
        if !self.cables[cable].up {
            return None;
        }
        let (peer, peer_port) = self.cables[cable].ends[1 - side];
        let ring = self.hosts[peer]
            .router
            .way_in(adapter::lane0(peer_port), out.hop)?;
        Some(Way {
            cable,
            direction: side,
            host: peer,
            ring,
        })
    }

    /// Is there a receiver that will have room later?
    fn must_wait(&self, way: Option<Way>) -> bool {
        way.is_some_and(|way| self.hosts[way.host].nhi.room(way.ring) == Room::Wait)
    }

    /// Through the cable, with what faults do to it. The receiver does not have to be waited for.
    fn carry(&mut self, tx_ring: usize, way: Way, frame: Frame, bytes: &[u8]) {
        let cable = &mut self.cables[way.cable];
        cable.counters.frames += 1;
        let fault = cable.faults[way.direction].as_mut().and_then(Active::next);
        if let Some(pcap) = &mut cable.pcap {
            let meta = Meta {
                direction: way.direction as u8,
                tx_ring: tx_ring as u8,
                rx_ring: way.ring as u8,
                sof: frame.sof,
                eof: frame.eof,
                fault,
            };
            if let Err(error) = pcap.frame(&meta, bytes) {
                log::warn!("cable {}: pcap ended: {error}", way.cable);
                cable.pcap = None;
            }
        }
        let Some(fault) = fault else {
            self.deliver(way.host, way.ring, frame, bytes, false);
            self.release(way.cable, way.direction);
            return;
        };
        match fault {
            FaultKind::Drop => {
                self.cables[way.cable].counters.dropped += 1;
                return;
            }
            FaultKind::Corrupt | FaultKind::CorruptSilently => {
                let cable = &mut self.cables[way.cable];
                cable.counters.corrupted += 1;
                let mut wrong = bytes.to_vec();
                if let Some(active) = &mut cable.faults[way.direction] {
                    let (byte, bit) = active.bit(wrong.len());
                    wrong[byte] ^= bit;
                }
                let noticed = fault == FaultKind::Corrupt;
                self.deliver(way.host, way.ring, frame, &wrong, noticed);
            }
            FaultKind::Duplicate => {
                self.cables[way.cable].counters.duplicated += 1;
                self.deliver(way.host, way.ring, frame, bytes, false);
                self.deliver(way.host, way.ring, frame, bytes, false);
            }
            FaultKind::Delay => {
                self.cables[way.cable].counters.delayed += 1;
                self.release(way.cable, way.direction);
                self.cables[way.cable].held[way.direction] = Some(Held {
                    host: way.host,
                    ring: way.ring,
                    frame,
                    bytes: bytes.to_vec(),
                    since: Instant::now(),
                });
                return;
            }
        }
        self.release(way.cable, way.direction);
    }

    /// Lets a delayed frame go on.
    fn release(&mut self, cable: usize, direction: usize) {
        if let Some(held) = self.cables[cable].held[direction].take() {
            self.deliver(held.host, held.ring, held.frame, &held.bytes, false);
        }
    }

    fn deliver(&mut self, host: usize, ring: usize, frame: Frame, bytes: &[u8], crc_error: bool) {
        let nhi = &mut self.hosts[host].nhi;
        if nhi.room(ring) == Room::Yes {
            nhi.receive(ring, frame.sof, frame.eof, bytes, crc_error);
        } else {
            nhi.lost(ring);
        }
    }

    // --- control packets ---

    fn control(&mut self, host: usize, pdf: u8, frame: &[u8]) {
        let packet = match Packet::parse(pdf, frame) {
            Ok(packet) => packet,
            Err(reason) => {
                log::warn!("host {}: control packet: {reason}", self.hosts[host].name);
                self.hosts[host].nhi.guest_errors += 1;
                return;
            }
        };
        log::trace!("host {} says {packet:x?}", self.hosts[host].name);
        let route = packet.route();
        match pdf {
            pdf::XDOMAIN_REQUEST | pdf::XDOMAIN_RESPONSE => self.pass_to_peer(host, packet),
            pdf::ERROR
                if packet
                    .words
                    .get(2)
                    .is_some_and(|w| w & 0xff == packet::error::ACKNOWLEDGE_PLUG) =>
            {
                self.hosts[host].acknowledged((packet.words[2] >> 8 & 0x3f) as usize);
            }
            // There is no router behind a cable, but a host: its router answers with an error.
            pdf::READ | pdf::WRITE if route != 0 => {
                let lane = (route & 0x3f) as usize;
                let up = adapter::lane(lane).is_some_and(|(port, _)| self.links(host)[port].up);
                let code = if up { packet::error::LOOP } else { 0 };
                self.error(host, &packet, code, lane);
            }
            pdf::READ => self.read(host, &packet),
            pdf::WRITE => self.write(host, &packet),
            pdf::RESET => {
                let words = vec![packet.words[0] | FROM_ROUTER, packet.words[1]];
                self.hosts[host].send(Packet::new(pdf::RESET, words));
            }
            _ => {}
        }
    }

    /// To the connection manager at the other end of a cable.
    fn pass_to_peer(&mut self, host: usize, mut packet: Packet) {
        let lane = (packet.route() & 0x3f) as usize;
        let Some((port, 0)) = adapter::lane(lane) else {
            return;
        };
        let Some((cable, side)) = self.at[host][port] else {
            return;
        };
        if !self.cables[cable].up {
            return;
        }
        let (peer, peer_port) = self.cables[cable].ends[1 - side];
        packet.words[0] = FROM_ROUTER;
        packet.words[1] = adapter::lane0(peer_port) as u32;
        self.hosts[peer].send(packet);
    }

    fn error(&mut self, host: usize, to: &Packet, code: u32, number: usize) {
        let words = vec![
            to.words[0] | FROM_ROUTER,
            to.words[1],
            code | (number as u32) << 8,
        ];
        self.hosts[host].send(Packet::new(pdf::ERROR, words));
    }

    fn read(&mut self, host: usize, packet: &Packet) {
        let Some(&word) = packet.words.get(2) else {
            return;
        };
        let a = Address::parse(word);
        let links = self.links(host);
        match self.hosts[host]
            .router
            .read(a.space, a.adapter, a.offset, a.length, &links)
        {
            Some(data) => {
                let mut words = reply(packet, word);
                words.extend(data);
                self.hosts[host].send(Packet::new(pdf::READ, words));
            }
            None => self.error(host, packet, packet::error::INVALID_SPACE, a.adapter),
        }
    }

    fn write(&mut self, host: usize, packet: &Packet) {
        let Some((&word, data)) = packet.words.get(2..).and_then(<[u32]>::split_first) else {
            return;
        };
        let a = Address::parse(word);
        let written = if data.len() == a.length {
            self.hosts[host]
                .router
                .write(a.space, a.adapter, a.offset, data)
        } else {
            None
        };
        let Some(effects) = written else {
            self.error(host, packet, packet::error::INVALID_SPACE, a.adapter);
            return;
        };
        // The answer goes before the events that the write makes happen.
        self.hosts[host].send(Packet::new(pdf::WRITE, reply(packet, word)));
        for effect in effects {
            self.apply(host, effect);
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

impl Host {
    fn reset(&mut self) {
        self.nhi.reset();
        self.router.reset();
        self.in_reset = [false; adapter::PORTS];
        self.control.clear();
        self.events.clear();
    }

    /// Sends a control packet to the connection manager, when it has a buffer for it.
    fn send(&mut self, packet: Packet) {
        log::trace!("host {} hears {packet:x?}", self.name);
        if self.control.len() >= CONTROL_QUEUE {
            log::warn!(
                "host {} reads no control packets; one is dropped",
                self.name
            );
            return;
        }
        self.control.push_back(packet);
        self.flush_control();
    }

    fn flush_control(&mut self) {
        if !self.nhi.receiving(0) {
            self.control.clear();
            return;
        }
        while self.nhi.room(0) == Room::Yes {
            let Some(packet) = self.control.pop_front() else {
                return;
            };
            self.nhi.receive(0, 0, packet.pdf, &packet.bytes(), false);
        }
    }

    /// Sends the first event that waits, or sends it again.
    fn send_events(&mut self, now: Instant) {
        if !self.nhi.receiving(0) {
            return;
        }
        let Some(event) = self.events.front_mut() else {
            return;
        };
        if event
            .sent
            .is_some_and(|sent| now.saturating_duration_since(sent) < EVENT_RESEND)
        {
            return;
        }
        event.tries += 1;
        event.sent = Some(now);
        let word = adapter::lane0(event.port) as u32 | u32::from(event.unplug) << 31;
        if event.tries > EVENT_TRIES {
            log::warn!("host {} acknowledges no plug event", self.name);
            self.events.pop_front();
            return;
        }
        self.send(Packet::new(pdf::EVENT, vec![FROM_ROUTER, 0, word]));
    }

    fn acknowledged(&mut self, lane: usize) {
        let sent = self
            .events
            .front()
            .is_some_and(|event| event.sent.is_some() && adapter::lane0(event.port) == lane);
        if sent {
            self.events.pop_front();
            self.send_events(Instant::now());
        }
    }
}

/// The first words of an answer. The adapter is the one that the request came in at.
fn reply(to: &Packet, address: u32) -> Vec<u32> {
    let at = address & !(0x3f << 19) | (adapter::NHI as u32) << 19;
    vec![to.words[0] | FROM_ROUTER, to.words[1], at]
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
