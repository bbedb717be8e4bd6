//! Two hosts and a cable, driven as the drivers in two kernels do it.

use super::*;
use crate::frames::DELAY_MAX;
use crate::host::EVENT_RESEND;
use crate::layout::{descriptor, nhi, port};
use crate::packet::{self, pdf, Packet, FROM_ROUTER};
use crate::protocol::{FaultKind, When};

const MEMORY: u64 = 0x10_0000;
const SIZE: u64 = 0x4_0000;
/// Descriptors and buffers of ring n of a direction: 16 descriptors, 16 buffers of 512 bytes.
fn descriptors(tx: bool, ring: usize) -> u64 {
    MEMORY + (ring as u64 * 2 + u64::from(tx)) * 0x4000
}
const RING_SIZE: u32 = 16;
const BUFFER_SIZE: u64 = 512;

struct Bed {
    fabric: Fabric,
    tx_index: Vec<[u32; 4]>,
    rx_index: Vec<[u32; 4]>,
    rx_seen: Vec<[u32; 4]>,
}

fn buffer(tx: bool, ring: usize, index: u32) -> u64 {
    descriptors(tx, ring) + 0x1000 + u64::from(index) * BUFFER_SIZE
}

impl Bed {
    fn new(cable: &str) -> Self {
        Self::of(&["a", "b"], &[cable])
    }

    fn of(names: &[&str], cables: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let cables: Vec<spec::Cable> = cables.iter().map(|c| c.parse().unwrap()).collect();
        let (fabric, _) = Fabric::new(&names, &cables).unwrap();
        let mut bed = Self {
            fabric,
            tx_index: vec![[0; 4]; names.len()],
            rx_index: vec![[0; 4]; names.len()],
            rx_seen: vec![[0; 4]; names.len()],
        };
        for host in 0..names.len() {
            bed.power_on(host);
        }
        bed
    }

    fn power_on(&mut self, host: usize) {
        self.fabric.set_power(host, true);
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        let memory = &mut self.fabric.hosts[host].nhi.memory;
        memory.clear();
        memory.map(MEMORY, SIZE, file, 0).unwrap();
        for ring in 0..4 {
            self.tx_index[host][ring] = 0;
            self.rx_index[host][ring] = 0;
            self.rx_seen[host][ring] = 0;
        }
        // The control channel
        self.start(host, true, 0, 0);
        self.start(host, false, 0, 0);
        self.give(host, 0, 15);
    }

    fn start(&mut self, host: usize, tx: bool, ring: usize, options: u32) {
        let (page, at) = if tx {
            (nhi::TX_RING, nhi::TX_OPTIONS)
        } else {
            (nhi::RX_RING, nhi::RX_OPTIONS)
        };
        let page = page + ring * nhi::RING_STRIDE;
        let base = descriptors(tx, ring) as u32;
        for (offset, value) in [(0, base), (4, 0), (12, 512 << 16 | RING_SIZE)] {
            self.fabric.write_register(host, page + offset, value);
        }
        let options = options | nhi::ENABLED;
        self.fabric
            .write_register(host, at + ring * nhi::OPTIONS_STRIDE, options);
    }

    fn stop(&mut self, host: usize, tx: bool, ring: usize) {
        let at = if tx { nhi::TX_OPTIONS } else { nhi::RX_OPTIONS };
        self.fabric
            .write_register(host, at + ring * nhi::OPTIONS_STRIDE, 0);
    }

    fn describe(&mut self, host: usize, tx: bool, ring: usize, index: u32, word: u32) {
        let memory = &self.fabric.hosts[host].nhi.memory;
        let at = descriptors(tx, ring) + u64::from(index) * descriptor::SIZE;
        assert!(memory.write(at, &buffer(tx, ring, index).to_le_bytes()));
        assert!(memory.write(at + 8, &word.to_le_bytes()));
    }

    /// Gives receive buffers.
    fn give(&mut self, host: usize, ring: usize, count: u32) {
        for _ in 0..count {
            let index = self.rx_index[host][ring];
            self.describe(host, false, ring, index, 0);
            self.rx_index[host][ring] = (index + 1) % RING_SIZE;
        }
        let at = nhi::RX_RING + ring * nhi::RING_STRIDE + 8;
        self.fabric
            .write_register(host, at, self.rx_index[host][ring]);
        self.work();
    }

    fn post(&mut self, host: usize, ring: usize, eof: u8, bytes: &[u8]) {
        let index = self.tx_index[host][ring];
        let memory = &self.fabric.hosts[host].nhi.memory;
        assert!(memory.write(buffer(true, ring, index), bytes));
        let word = bytes.len() as u32 | u32::from(eof) << 12 | 1 << 16;
        self.describe(host, true, ring, index, word);
        self.tx_index[host][ring] = (index + 1) % RING_SIZE;
        let at = nhi::TX_RING + ring * nhi::RING_STRIDE + 8;
        self.fabric
            .write_register(host, at, self.tx_index[host][ring] << 16);
        self.work();
    }

    fn work(&mut self) {
        let now = self.fabric.now;
        let ends = (0..10_000).any(|_| !self.fabric.work(now));
        assert!(ends, "there is always more to do");
    }

    /// What has arrived since the last time: EOF, CRC error, bytes.
    fn arrived(&mut self, host: usize, ring: usize) -> Vec<(u8, bool, Vec<u8>)> {
        let mut frames = Vec::new();
        loop {
            let index = self.rx_seen[host][ring];
            if index == self.rx_index[host][ring] {
                return frames;
            }
            let memory = &self.fabric.hosts[host].nhi.memory;
            let mut word = [0; 4];
            let at = descriptors(false, ring) + u64::from(index) * descriptor::SIZE + 8;
            assert!(memory.read(at, &mut word));
            let word = u32::from_le_bytes(word);
            if word & descriptor::DONE == 0 {
                return frames;
            }
            let mut bytes = vec![0; (word & descriptor::LENGTH) as usize];
            assert!(memory.read(buffer(false, ring, index), &mut bytes));
            frames.push((
                (word >> 12 & 0xf) as u8,
                word & descriptor::CRC_ERROR != 0,
                bytes,
            ));
            self.rx_seen[host][ring] = (index + 1) % RING_SIZE;
        }
    }

    /// Sends a control packet and returns what comes in until nothing does.
    fn ask(&mut self, host: usize, pdf: u8, words: &[u32]) -> Vec<Packet> {
        self.post(host, 0, pdf, &Packet::new(pdf, words.to_vec()).bytes());
        self.heard(host)
    }

    fn heard(&mut self, host: usize) -> Vec<Packet> {
        let mut packets = Vec::new();
        loop {
            let frames = self.arrived(host, 0);
            if frames.is_empty() {
                return packets;
            }
            self.give(host, 0, frames.len() as u32);
            packets.extend(
                frames
                    .iter()
                    .map(|(pdf, _, bytes)| Packet::parse(*pdf, bytes).unwrap()),
            );
        }
    }

    fn read(&mut self, host: usize, space: u32, number: u32, offset: usize) -> u32 {
        let address = offset as u32 | 1 << 13 | number << 19 | space << 25;
        let answer = self.ask(host, pdf::READ, &[0, 0, address]);
        assert_eq!(answer.len(), 1);
        assert_eq!(answer[0].pdf, pdf::READ);
        answer[0].words[3]
    }

    fn write(
        &mut self,
        host: usize,
        space: u32,
        number: u32,
        offset: usize,
        word: u32,
    ) -> Vec<Packet> {
        let address = offset as u32 | 1 << 13 | number << 19 | space << 25;
        let mut answers = self.ask(host, pdf::WRITE, &[0, 0, address, word]);
        assert_eq!(answers.remove(0).pdf, pdf::WRITE);
        answers
    }

    /// Wants plug events; returns what this makes happen.
    fn arm(&mut self, host: usize, number: u32) -> Vec<Packet> {
        let word = self.read(host, 1, number, port::CS_5);
        self.write(host, 1, number, port::CS_5, word & !port::NO_PLUG_EVENTS)
    }

    fn acknowledge(&mut self, host: usize, lane: u32) -> Vec<Packet> {
        self.ask(host, pdf::ERROR, &[0, 0, 7 | lane << 8])
    }

    /// A path from ring `ring` of one host to the same ring of the other, on HopID 8.
    fn connect(&mut self, from: usize, ring: u32, end_to_end: bool) {
        self.connect_over((from, 1), (1 - from, 1), ring, end_to_end);
    }

    /// The same over the cable between these lane adapters of two hosts.
    fn connect_over(
        &mut self,
        (from, lane_out): (usize, u32),
        (to, lane_in): (usize, u32),
        ring: u32,
        end_to_end: bool,
    ) {
        self.start(from, true, ring as usize, 0);
        let options = if end_to_end { nhi::END_TO_END } else { 0 };
        self.start(to, false, ring as usize, options);
        let nhi = adapter::NHI as u32;
        let out = 1 << 31 | lane_out << 11 | 8;
        self.write(from, 0, nhi, ring as usize * 2, out);
        self.write(to, 0, lane_in, 16, 1 << 31 | nhi << 11 | ring);
    }

    fn fault(&mut self, kind: FaultKind, n: u64) {
        let when = When::Nth { n };
        self.fabric
            .set_fault(0, Direction::Both, &Fault { kind, when })
            .unwrap();
    }

    fn bytes(&mut self, host: usize, ring: usize) -> Vec<Vec<u8>> {
        self.arrived(host, ring)
            .into_iter()
            .map(|(_, _, bytes)| bytes)
            .collect()
    }
}

#[test]
fn a_router_answers_for_itself() {
    let mut bed = Bed::new("a:1-b:1");
    assert_eq!(bed.read(0, 2, 0, 0), 0x05b4_1234);
    assert_eq!(bed.read(0, 2, 0, 4), 0x20 << 24);
    assert_ne!(bed.read(0, 2, 0, 7), bed.read(1, 2, 0, 7), "UIDs differ");
    let no_adapter = 1 << 13 | 20 << 19 | 1 << 25;
    let answer = bed.ask(0, pdf::READ, &[0, 0, no_adapter]);
    assert_eq!(answer[0].pdf, pdf::ERROR);
    assert_eq!(answer[0].words[2] & 0xff, packet::error::INVALID_SPACE);
}

#[test]
fn a_host_behind_a_cable_is_no_router() {
    let mut bed = Bed::new("a:1-b:1");
    let answer = bed.ask(0, pdf::READ, &[0, 1, 1 << 13 | 2 << 25]);
    assert_eq!((answer[0].pdf, answer[0].words[1]), (pdf::ERROR, 1));
}

#[test]
fn xdomain_requests_reach_the_peer_with_the_way_back() {
    let mut bed = Bed::new("a:1-b:2");
    assert!(bed.ask(0, pdf::XDOMAIN_REQUEST, &[0, 1, 0xabcd]).is_empty());
    let heard = bed.heard(1);
    assert_eq!(
        heard,
        [Packet::new(
            pdf::XDOMAIN_REQUEST,
            vec![FROM_ROUTER, 3, 0xabcd]
        )]
    );
    bed.ask(1, pdf::XDOMAIN_RESPONSE, &[0, 3, 0xef]);
    let heard = bed.heard(0);
    assert_eq!(
        heard,
        [Packet::new(
            pdf::XDOMAIN_RESPONSE,
            vec![FROM_ROUTER, 1, 0xef]
        )]
    );
    bed.fabric.set_plugged(0, false).unwrap();
    bed.ask(0, pdf::XDOMAIN_REQUEST, &[0, 1, 1]);
    assert!(bed.heard(1).is_empty());
}

#[test]
fn plugging_is_told_until_it_is_acknowledged() {
    let mut bed = Bed::new("a:1-b:1");
    let event = |unplug: u32| Packet::new(pdf::EVENT, vec![FROM_ROUTER, 0, 1 | unplug << 31]);
    assert_eq!(bed.arm(0, 1), [event(0)]);
    // Not acknowledged: once more, but not at once
    let now = bed.fabric.now;
    bed.fabric.work(now);
    assert!(bed.heard(0).is_empty());
    bed.fabric.work(now + EVENT_RESEND * 2);
    assert_eq!(bed.heard(0), [event(0)]);
    assert!(bed.acknowledge(0, 1).is_empty());
    bed.fabric.work(now + EVENT_RESEND * 9);
    assert!(bed.heard(0).is_empty());
    // Pulled out and put in again before the first is acknowledged: one after the other
    bed.fabric.set_plugged(0, false).unwrap();
    bed.fabric.set_plugged(0, true).unwrap();
    assert_eq!(bed.heard(0), [event(1)]);
    assert_eq!(bed.acknowledge(0, 1), [event(0)]);
    assert!(bed.acknowledge(0, 1).is_empty());
}

#[test]
fn a_peer_that_is_switched_off_or_resets_its_port_is_gone() {
    let mut bed = Bed::new("a:1-b:1");
    bed.arm(0, 1);
    bed.acknowledge(0, 1);
    let unplugged = |packets: &[Packet]| {
        packets
            .iter()
            .map(|p| p.words[2] >> 31 == 1)
            .collect::<Vec<_>>()
    };
    bed.fabric.set_power(1, false);
    assert_eq!(unplugged(&bed.heard(0)), [true]);
    bed.acknowledge(0, 1);
    bed.power_on(1);
    assert_eq!(unplugged(&bed.heard(0)), [false]);
    bed.acknowledge(0, 1);
    bed.write(1, 1, 1, port::CS_19, 1);
    assert_eq!(unplugged(&bed.heard(0)), [true]);
    bed.acknowledge(0, 1);
    bed.write(1, 1, 1, port::CS_19, 0);
    assert_eq!(unplugged(&bed.heard(0)), [false]);
    assert!(bed.fabric.counters().cables[0].up);
}

#[test]
fn lanes_bond_when_both_ends_want_it() {
    let mut bed = Bed::new("a:1-b:1");
    let width =
        |bed: &mut Bed, host, number| bed.read(host, 1, number, port::LANE_CS_1) >> 20 & 0x3f;
    let set = |bed: &mut Bed, host, number, bits: u32| {
        let word = bed.read(host, 1, number, port::LANE_CS_1);
        bed.write(host, 1, number, port::LANE_CS_1, word & !(3 << 4) | bits);
    };
    for number in [1, 2] {
        set(&mut bed, 0, number, 3 << 4);
    }
    set(&mut bed, 0, 1, 3 << 4 | port::LANE_BONDING);
    assert_eq!(width(&mut bed, 0, 1), 1, "the other end does not want it");
    for number in [1, 2] {
        set(&mut bed, 1, number, 3 << 4);
    }
    set(&mut bed, 1, 1, 3 << 4 | port::LANE_BONDING);
    assert_eq!([width(&mut bed, 0, 1), width(&mut bed, 1, 2)], [2, 2]);
    bed.fabric.set_plugged(0, false).unwrap();
    bed.fabric.set_plugged(0, true).unwrap();
    assert_eq!(width(&mut bed, 0, 1), 1);
    let mut gen4 = Bed::new("a:1-b:1,gen=4");
    assert_eq!(width(&mut gen4, 0, 1), 2);
}

#[test]
fn frames_follow_the_paths() {
    let mut bed = Bed::new("a:1-b:1");
    bed.start(0, true, 1, 0);
    bed.post(0, 1, 3, b"nowhere");
    assert_eq!(bed.fabric.counters().routers["a"].tx[&1].drops, 1);
    let mut bed = Bed::new("a:1-b:1");
    bed.connect(0, 1, true);
    bed.give(1, 1, 4);
    bed.post(0, 1, 3, b"hello");
    assert_eq!(bed.arrived(1, 1), [(3, false, b"hello".to_vec())]);
    let counters = bed.fabric.counters();
    assert_eq!(counters.routers["b"].rx[&1].bytes, 5);
    assert_eq!(counters.cables[0].frames, 1);
    bed.fabric.set_plugged(0, false).unwrap();
    bed.post(0, 1, 3, b"lost");
    assert_eq!(bed.fabric.counters().routers["a"].tx[&1].drops, 1);
}

#[test]
fn a_full_receiver_holds_the_sender_back_or_loses() {
    let mut bed = Bed::new("a:1-b:1");
    bed.connect(0, 1, true);
    bed.give(1, 1, 2);
    for n in 0..5 {
        bed.post(0, 1, 3, &[n]);
    }
    assert_eq!(bed.bytes(1, 1), [[0], [1]]);
    assert_eq!(bed.fabric.counters().routers["a"].tx[&1].stalls, 1);
    bed.give(1, 1, 2);
    assert_eq!(bed.bytes(1, 1), [[2], [3]]);
    bed.give(1, 1, 2);
    assert_eq!(bed.bytes(1, 1), [[4]]);

    let mut bed = Bed::new("a:1-b:1");
    bed.connect(0, 1, false);
    bed.give(1, 1, 2);
    for n in 0..5 {
        bed.post(0, 1, 3, &[n]);
    }
    bed.give(1, 1, 8);
    assert_eq!(bed.bytes(1, 1), [[0], [1]]);
    assert_eq!(bed.fabric.counters().routers["b"].rx[&1].drops, 3);
}

#[test]
fn a_stopped_receiver_loses_frames_and_frees_the_sender() {
    let mut bed = Bed::new("a:1-b:1");
    bed.connect(0, 1, true);
    bed.give(1, 1, 1);
    bed.post(0, 1, 3, b"x");
    bed.post(0, 1, 3, b"waits");
    assert_eq!(bed.fabric.counters().routers["a"].tx[&1].frames, 1);
    bed.stop(1, false, 1);
    bed.work();
    assert_eq!(bed.fabric.counters().routers["a"].tx[&1].frames, 2);
}

#[test]
fn pulling_the_cable_frees_a_sender_that_waits() {
    let mut bed = Bed::new("a:1-b:1");
    bed.connect(0, 1, true);
    bed.post(0, 1, 3, b"waits");
    assert_eq!(bed.fabric.counters().routers["a"].tx[&1].frames, 0);
    bed.fabric.set_plugged(0, false).unwrap();
    bed.work();
    assert_eq!(bed.fabric.counters().routers["a"].tx[&1].drops, 1);
}

#[test]
fn faults_do_what_they_say() {
    let mut bed = Bed::new("a:1-b:1");
    bed.connect(0, 1, true);
    bed.give(1, 1, 15);
    bed.fault(FaultKind::Drop, 2);
    for n in 0..3 {
        bed.post(0, 1, 3, &[n]);
    }
    assert_eq!(bed.bytes(1, 1), [[0], [2]]);
    bed.fault(FaultKind::Duplicate, 1);
    bed.post(0, 1, 3, &[7]);
    assert_eq!(bed.bytes(1, 1), [[7], [7]]);
    bed.fault(FaultKind::Delay, 1);
    for n in 0..3 {
        bed.post(0, 1, 3, &[n]);
    }
    assert_eq!(bed.bytes(1, 1), [[1], [0], [2]]);
    bed.fault(FaultKind::Corrupt, 1);
    bed.post(0, 1, 3, &[0; 8]);
    let frames = bed.arrived(1, 1);
    assert!(frames[0].1, "hardware notices");
    assert_eq!(frames[0].2.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
    bed.give(1, 1, 8);
    bed.fault(FaultKind::CorruptSilently, 1);
    bed.post(0, 1, 3, &[0; 8]);
    let frames = bed.arrived(1, 1);
    assert!(!frames[0].1);
    assert_ne!(frames[0].2, [0; 8]);
    let cable = bed.fabric.counters().cables[0].clone();
    assert_eq!(
        (
            cable.dropped,
            cable.duplicated,
            cable.delayed,
            cable.corrupted
        ),
        (1, 1, 1, 2)
    );
    bed.fabric.clear_faults();
    assert!(bed
        .fabric
        .set_fault(
            1,
            Direction::Both,
            &Fault {
                kind: FaultKind::Drop,
                when: When::Nth { n: 1 }
            }
        )
        .is_err());
}

#[test]
fn a_delayed_frame_that_nothing_follows_arrives_all_the_same() {
    let mut bed = Bed::new("a:1-b:1");
    bed.connect(0, 1, true);
    bed.give(1, 1, 4);
    bed.fault(FaultKind::Delay, 1);
    bed.post(0, 1, 3, b"late");
    assert!(bed.bytes(1, 1).is_empty());
    let now = bed.fabric.now;
    bed.fabric.work(now + DELAY_MAX);
    assert_eq!(bed.bytes(1, 1), [b"late"]);
}

#[path = "hostile_tests.rs"]
mod hostile;
#[path = "topology_tests.rs"]
mod topology;
