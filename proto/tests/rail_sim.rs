//! A deterministic two-node simulator: two rails joined by a wire that loses, repeats, delays and
//! reorders, in virtual time.

use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use tbrdma_proto::frame::{patch_rail_fields, Header, Opcode, FRAME_MAX};
use tbrdma_proto::rail::{Config, Rail, Rx, CONTROL_MAX};

const WINDOW: u32 = 128;

/// A source of chance that gives the same again for the same seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    /// True in `permille` of 1000 cases.
    fn happens(&mut self, permille: u32) -> bool {
        self.next() % 1000 < permille
    }
}

/// What the wire does to frames, in 1/1000.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    loss: u32,
    duplication: u32,
    reordering: u32,
    corruption: u32,
}

struct Node {
    rail: Rail,
    sent: Vec<Option<Vec<u8>>>,
    held: Vec<Option<Vec<u8>>>,
    received: Vec<u64>,
    next_value: u64,
    to_send: u64,
    broken: u64,
}

impl Node {
    fn new(config: Config, to_send: u64) -> Self {
        Self {
            rail: Rail::new(config, 0),
            sent: vec![None; WINDOW as usize],
            held: vec![None; WINDOW as usize],
            received: Vec::new(),
            next_value: 0,
            to_send,
            broken: 0,
        }
    }

    /// Frames that go out now.
    fn output(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        self.rail.on_timeout(now);
        let mut from = self.rail.una();
        while let Some(seq) = self.rail.next_retransmit(from) {
            let (ack, credit) = self.rail.fields();
            let frame = self.sent[(seq % WINDOW) as usize]
                .as_mut()
                .expect("kept until acked");
            assert!(patch_rail_fields(frame, ack, credit));
            out.push(frame.clone());
            self.rail.retransmitted(seq, now);
            from = seq.wrapping_add(1);
        }
        while self.next_value < self.to_send && self.rail.reserve() {
            let mut header = Header {
                opcode: Opcode::Datagram,
                ..Header::default()
            };
            let seq = self.rail.commit(&mut header, now);
            let mut frame = vec![0; 64];
            let at = header.emit(&[], 8, &mut frame).expect("fits");
            frame[at..at + 8].copy_from_slice(&self.next_value.to_le_bytes());
            frame.truncate(at + 8);
            self.next_value += 1;
            self.sent[(seq % WINDOW) as usize] = Some(frame.clone());
            out.push(frame);
        }
        let mut payload = [0; CONTROL_MAX];
        while let Some((header, len)) = self.rail.poll_control(now, &mut payload) {
            let mut frame = vec![0; FRAME_MAX];
            let at = header.emit(&[], len, &mut frame).expect("fits");
            frame[at..at + len].copy_from_slice(&payload[..len]);
            frame.truncate(at + len);
            out.push(frame);
        }
        out
    }

    fn input(&mut self, frame: &[u8], now: u64) {
        let Ok((header, _, payload)) = Header::parse(frame) else {
            self.broken += 1;
            return;
        };
        match self.rail.on_frame(&header, payload, now) {
            Rx::Deliver => {
                self.deliver(payload.to_vec());
                while let Some(seq) = self.rail.next_held() {
                    let kept = self.held[(seq % WINDOW) as usize].take();
                    self.deliver(kept.expect("was kept"));
                }
            }
            Rx::Hold => {
                let old = self.held[(header.seq % WINDOW) as usize].replace(payload.to_vec());
                assert!(old.is_none(), "two frames in one place");
            }
            Rx::Duplicate | Rx::Outside | Rx::Control => {}
        }
    }

    fn deliver(&mut self, payload: Vec<u8>) {
        self.received
            .push(u64::from_le_bytes(payload.try_into().expect("8 bytes")));
    }
}

/// Frames on their way, by arrival time and a number that keeps order within it.
struct Wire {
    frames: BTreeMap<(u64, u64), Vec<u8>>,
    count: u64,
    faults: Faults,
    lost: u64,
}

const DELAY: u64 = 30;
const FRAME_TIME: u64 = 2;

impl Wire {
    fn send(&mut self, frame: Vec<u8>, at: u64, chance: &mut Chance) {
        if chance.happens(self.faults.loss) {
            self.lost += 1;
            return;
        }
        let mut frame = frame;
        if chance.happens(self.faults.corruption) {
            // The hardware's CRC finds it: the driver sees the frame flagged and drops it.
            self.lost += 1;
            return;
        }
        let late = if chance.happens(self.faults.reordering) {
            40 + u64::from(chance.next() % 200)
        } else {
            0
        };
        let copies = 1 + u64::from(chance.happens(self.faults.duplication));
        for _ in 0..copies {
            self.count += 1;
            self.frames.insert(
                (at + DELAY + late, self.count),
                std::mem::take(&mut frame).clone(),
            );
            frame = self.frames[&(at + DELAY + late, self.count)].clone();
        }
    }
}

struct Outcome {
    end: u64,
    a: Node,
    b: Node,
    lost: u64,
}

/// Runs until both sides have received everything; panics if the rails stop moving.
fn simulate(
    seed: u64,
    a_sends: u64,
    b_sends: u64,
    faults: Faults,
    capacity: u32,
    start: u32,
) -> Outcome {
    let config = Config {
        window: WINDOW,
        rx_capacity: capacity,
        dead_after_us: 30_000_000,
    };
    let mut chance = Chance(seed);
    let mut nodes = [Node::new(config, a_sends), Node::new(config, b_sends)];
    nodes[0].rail.set_sequences(start, start);
    nodes[1].rail.set_sequences(start, start);
    let mut wires = [0, 1].map(|_| Wire {
        frames: BTreeMap::new(),
        count: 0,
        faults,
        lost: 0,
    });
    let mut queues = [VecDeque::new(), VecDeque::new()];
    let mut now = 0u64;
    let goals = [b_sends, a_sends];
    loop {
        for k in 0..2 {
            queues[k].extend(nodes[k].output(now));
            if let Some(frame) = queues[k].pop_front() {
                wires[k].send(frame, now, &mut chance);
            }
        }
        let mut arrived = false;
        for k in 0..2 {
            while let Some(entry) = wires[k].frames.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                let frame = entry.remove();
                arrived = true;
                nodes[1 - k].input(&frame, now);
            }
        }
        let done = (0..2).all(|k| {
            nodes[k].received.len() as u64 >= goals[k]
                && nodes[k].rail.una() == start.wrapping_add(nodes[k].to_send as u32)
        });
        if done {
            break;
        }
        for node in &nodes {
            assert!(!node.rail.is_dead(now), "dead: {:?}", node.rail);
        }
        // The next moment at which something happens.
        // A node that was called looks at once whether it has something to send.
        let busy = arrived || queues.iter().any(|q| !q.is_empty());
        let next = if busy { Some(now + FRAME_TIME) } else { None };
        let arrivals = wires
            .iter()
            .filter_map(|w| w.frames.keys().next().map(|k| k.0));
        let timers = nodes.iter().filter_map(|n| n.rail.next_timeout());
        now = next
            .into_iter()
            .chain(arrivals)
            .chain(timers)
            .min()
            .unwrap_or_else(|| {
                panic!(
                    "nothing will ever happen: {:?} {:?}",
                    nodes[0].rail, nodes[1].rail
                )
            })
            .max(now + 1);
        assert!(
            now < 600_000_000,
            "no end: {:?} {:?}",
            nodes[0].rail,
            nodes[1].rail
        );
    }
    let [a, b] = nodes;
    let lost = wires[0].lost + wires[1].lost;
    Outcome {
        end: now,
        a,
        b,
        lost,
    }
}

fn assert_exactly_once(node: &Node, sent: u64) {
    let expected: Vec<u64> = (0..sent).collect();
    assert_eq!(node.received, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Everything arrives exactly once and in order, in both directions, whatever the wire does.
    #[test]
    fn prop_exactly_once_in_order(
        seed in any::<u64>(),
        a_sends in 0..2000u64,
        b_sends in 0..2000u64,
        loss in 0..200u32,
        duplication in 0..100u32,
        reordering in 0..100u32,
        corruption in 0..50u32,
        capacity in 1..=WINDOW,
        start in prop_oneof![Just(0u32), Just(u32::MAX - 500), any::<u32>()],
    ) {
        let faults = Faults { loss, duplication, reordering, corruption };
        let outcome = simulate(seed, a_sends, b_sends, faults, capacity, start);
        assert_exactly_once(&outcome.b, a_sends);
        assert_exactly_once(&outcome.a, b_sends);
    }

    /// No header that a peer could send breaks the books.
    #[test]
    fn prop_hostile_headers_do_no_harm(
        headers in prop::collection::vec(
            (any::<bool>(), any::<u32>(), any::<u32>(), any::<u32>(),
             prop::collection::vec(any::<u8>(), 0..160)),
            0..300,
        ),
    ) {
        let config = Config { window: WINDOW, rx_capacity: WINDOW, dead_after_us: 1_000_000 };
        let mut rail = Rail::new(config, 0);
        let mut sent = 0u32;
        let mut payload = [0; CONTROL_MAX];
        for (now, (nak, seq, ack, credit, bytes)) in headers.iter().enumerate() {
            let opcode = if *nak { Opcode::Nak } else { Opcode::Send };
            let header = Header {
                opcode,
                seq: *seq,
                ack: *ack,
                credit: *credit,
                ..Header::default()
            };
            rail.on_frame(&header, bytes, now as u64);
            while rail.next_held().is_some() {}
            let una = rail.una();
            prop_assert!(una <= sent, "acknowledged {una} of {sent}");
            if let Some(again) = rail.next_retransmit(una) {
                prop_assert!(again < sent);
            }
            if rail.reserve() {
                let mut header = Header::default();
                rail.commit(&mut header, now as u64);
                sent += 1;
                prop_assert!(sent - rail.una() <= WINDOW);
            }
            rail.poll_control(now as u64, &mut payload);
        }
    }
}

/// A single loss costs one repetition of one frame, and one round trip, not a timer.
#[test]
fn sim_a_gap_is_repaired_by_repeating_just_the_gap() {
    let faults = Faults {
        loss: 10,
        ..Faults::default()
    };
    let clean = simulate(7, 20_000, 0, Faults::default(), WINDOW, 0);
    let lossy = simulate(7, 20_000, 0, faults, WINDOW, 0);
    assert_exactly_once(&lossy.b, 20_000);
    let stats = lossy.a.rail.stats();
    assert!(lossy.lost > 150, "only {} frames were lost", lossy.lost);
    assert!(
        stats.retransmits <= lossy.lost * 2,
        "{} repetitions for {} losses",
        stats.retransmits,
        lossy.lost
    );
    let per_loss = (lossy.end - clean.end) / lossy.lost;
    assert!(
        per_loss < 5_000,
        "{per_loss} us of virtual time per lost frame"
    );
}

/// Without faults nothing is repeated and hardly anything but data is sent.
#[test]
fn sim_a_clean_wire_needs_no_repetition() {
    let outcome = simulate(1, 10_000, 0, Faults::default(), WINDOW, 0);
    let stats = outcome.a.rail.stats();
    assert_eq!((stats.retransmits, stats.timeouts), (0, 0));
    assert_eq!(outcome.b.rail.stats().naks_sent, 0);
}

/// The other side is gone: the rail says so, and not before the time agreed on.
#[test]
fn sim_a_silent_peer_is_found_dead() {
    let config = Config {
        window: 8,
        rx_capacity: 8,
        dead_after_us: 5_000_000,
    };
    let mut rail = Rail::new(config, 0);
    assert!(rail.reserve());
    rail.commit(&mut Header::default(), 1000);
    let mut now = 1000;
    let mut timeouts = 0;
    while !rail.is_dead(now) {
        now = rail
            .next_timeout()
            .expect("the timer runs while a frame is out");
        rail.on_timeout(now);
        if let Some(seq) = rail.next_retransmit(rail.una()) {
            rail.retransmitted(seq, now);
            timeouts += 1;
        }
        assert!(now < 60_000_000);
    }
    assert!(now >= 5_001_000);
    assert!((4..40).contains(&timeouts), "{timeouts} repetitions in 5 s");
}

/// Without credit nothing is sent, and credit that was lost comes again.
#[test]
fn unit_credit_bounds_what_is_sent() {
    let config = Config {
        window: 64,
        rx_capacity: 64,
        dead_after_us: 1_000_000,
    };
    let mut rail = Rail::new(config, 0);
    assert!(rail.reserve());
    assert!(!rail.reserve(), "one frame before any credit");
    rail.commit(&mut Header::default(), 0);
    let ack = Header {
        opcode: Opcode::Ack,
        ack: 1,
        credit: 4,
        ..Header::default()
    };
    assert_eq!(rail.on_frame(&ack, &[], 10), Rx::Control);
    assert_eq!(rail.room(), 3);
    let older = Header { credit: 2, ..ack };
    rail.on_frame(&older, &[], 11);
    assert_eq!(rail.room(), 3, "credit does not go back");
}
