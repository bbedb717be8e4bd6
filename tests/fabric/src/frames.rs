//! How frames move: from a transmit ring along the paths through a cable into a receive ring.

use crate::fabric::{Fabric, Held};
use crate::fault::Active;
use crate::layout::{adapter, FRAME_MAX, RINGS};
use crate::nhi::{Frame, Room};
use crate::pcap::Meta;
use crate::protocol::FaultKind;
use std::time::{Duration, Instant};

/// A delayed frame that no other frame follows arrives after this time.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(20);

/// Where a frame goes.
#[derive(Clone, Copy)]
struct Way {
    cable: usize,
    direction: usize,
    host: usize,
    ring: usize,
}

impl Fabric {
    /// Does what is due: doorbells, frames that waited, events. True if anything moved.
    pub(crate) fn work(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut moved = false;
        let mut to_send = Vec::with_capacity(self.hosts.len());
        for host in &mut self.hosts {
            let (tx, rx) = host.nhi.doorbells();
            if rx & 1 != 0 {
                host.flush_control();
            }
            to_send.push(tx);
            moved |= rx != 0;
        }
        // Before the senders: what was held back longest gets a new buffer first.
        for number in 0..self.cables.len() {
            for direction in 0..2 {
                let due = self.cables[number].held[direction]
                    .as_ref()
                    .is_some_and(|held| now.duration_since(held.since) >= DELAY_MAX);
                moved |= due && self.release(number, direction);
            }
        }
        for (host, tx) in to_send.into_iter().enumerate() {
            for ring in (0..RINGS).filter(|ring| tx >> ring & 1 != 0) {
                moved |= self.transmit(host, ring);
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
                self.release(way.cable, way.direction);
                // One frame at most is held back. If its receiver still has no room, this one goes on undelayed.
                if self.cables[way.cable].held[way.direction].is_none() {
                    let cable = &mut self.cables[way.cable];
                    cable.counters.delayed += 1;
                    cable.held[way.direction] = Some(Held {
                        host: way.host,
                        ring: way.ring,
                        frame,
                        bytes: bytes.to_vec(),
                        since: self.now,
                    });
                    return;
                }
                self.deliver(way.host, way.ring, frame, bytes, false);
                return;
            }
        }
        self.release(way.cable, way.direction);
    }

    /// Lets a delayed frame go on, unless its receiver makes it wait. True if it went.
    pub(crate) fn release(&mut self, cable: usize, direction: usize) -> bool {
        let Some(held) = self.cables[cable].held[direction]
            .take_if(|held| self.hosts[held.host].nhi.room(held.ring) != Room::Wait)
        else {
            return false;
        };
        self.deliver(held.host, held.ring, held.frame, &held.bytes, false);
        true
    }

    fn deliver(&mut self, host: usize, ring: usize, frame: Frame, bytes: &[u8], crc_error: bool) {
        let nhi = &mut self.hosts[host].nhi;
        if nhi.room(ring) == Room::Yes {
            nhi.receive(ring, frame.sof, frame.eof, bytes, crc_error);
        } else {
            nhi.lost(ring);
        }
    }
}
