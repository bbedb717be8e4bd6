//! Two ends of a cable find each other, whatever is lost and whoever begins anew.

use proptest::prelude::*;
use tbrdma_proto::hello::{Action, Facts, Hello, Kind, Message, Refusal, MAX_RAILS};

fn facts(host: u8, nonce: u64) -> Facts {
    Facts {
        versions: (1, 1),
        features: 0,
        window: 256,
        rx_capacity: 200,
        host: [host; 16],
        host_nonce: nonce,
        link_nonce: nonce * 1000 + 1,
        router: [host; 16],
        peer_router: [3 - host; 16],
        mac: [2, 0, 0, 0, 0, host],
        mtu: 4000,
        rails: 2,
        tx_hops: [8, 9, 0, 0],
    }
}

struct End {
    hello: Hello,
    /// Paths are enabled.
    paths: bool,
    ready: bool,
    ready_times: u32,
    refused: Vec<Refusal>,
    /// HopIDs of the other end that cannot be reserved here.
    taken: Vec<u16>,
    next_hop: u16,
}

impl End {
    fn new(host: u8) -> Self {
        Self {
            hello: Hello::new(facts(host, u64::from(host)), 0),
            paths: false,
            ready: false,
            ready_times: 0,
            refused: Vec::new(),
            taken: Vec::new(),
            next_hop: 20,
        }
    }
}

struct Chance(u64);

impl Chance {
    fn happens(&mut self, percent: u64) -> bool {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % 100 < percent
    }
}

/// One step of end `k`; messages and answers are lost with the given chance.
fn step(ends: &mut [End; 2], k: usize, now: u64, loss: u64, chance: &mut Chance) {
    while let Some(action) = ends[k].hello.poll(now) {
        match action {
            Action::Request(message) => {
                let message = Message::parse(&message.emit()).expect("sound");
                if chance.happens(loss) {
                    ends[k].hello.on_request_failed(now);
                    continue;
                }
                let answer = ends[1 - k].hello.on_request(&message, now);
                if chance.happens(loss) {
                    ends[k].hello.on_request_failed(now);
                } else {
                    ends[k].hello.on_response(&answer, now);
                }
            }
            Action::EnablePaths(agreed) => {
                assert_eq!((agreed.version, agreed.rails, agreed.window), (1, 2, 200));
                let taken = agreed.rx_hops.iter().any(|hop| ends[k].taken.contains(hop));
                if taken {
                    ends[k].hello.paths_failed(true, now);
                } else {
                    ends[k].paths = true;
                    ends[k].hello.paths_enabled(now);
                }
            }
            Action::Ping => {
                if ends[1 - k].paths && !chance.happens(loss) {
                    ends[k].hello.proven();
                }
            }
            Action::Ready(agreed) => {
                assert_eq!(Some(&agreed.peer), ends[k].hello.peer());
                ends[k].ready = true;
                ends[k].ready_times += 1;
            }
            Action::Down => {
                ends[k].paths = false;
                ends[k].ready = false;
            }
            Action::OtherHops => {
                let hop = ends[k].next_hop;
                ends[k].next_hop += 2;
                let mut hops = [0; MAX_RAILS];
                hops[..2].copy_from_slice(&[hop, hop + 1]);
                ends[k].hello.set_hops(hops, now);
            }
            Action::Refused(reason) => ends[k].refused.push(reason),
        }
    }
}

/// Runs until both ends are ready and know each other's present nonce; returns the time.
fn run(ends: &mut [End; 2], start: u64, loss: u64, chance: &mut Chance) -> u64 {
    let mut now = start;
    while now < start + 300_000_000 {
        for k in 0..2 {
            step(ends, k, now, loss, chance);
        }
        let agree = |k: usize| {
            ends[k].ready
                && ends[k].hello.peer().map(|p| p.link_nonce)
                    == Some(ends[1 - k].hello.me().link_nonce)
        };
        if agree(0) && agree(1) {
            return now;
        }
        now += 10_000;
    }
    panic!("never ready: {:?} {:?}", ends[0].hello, ends[1].hello);
}

proptest! {
    /// Both become ready, again and again, after either breaks, restarts or leaves.
    #[test]
    fn prop_both_ends_become_ready(
        seed in any::<u64>(),
        loss in 0..60u64,
        events in prop::collection::vec((0..2usize, 0..3u8), 0..8),
        taken in prop::collection::vec(8..24u16, 0..6),
    ) {
        let mut chance = Chance(seed);
        let mut ends = [End::new(1), End::new(2)];
        ends[1].taken = taken;
        let mut now = run(&mut ends, 0, loss, &mut chance);
        for (generation, (k, event)) in events.into_iter().enumerate() {
            match event {
                0 => ends[k].hello.broken(now),
                1 => {
                    // A reboot: nothing is remembered.
                    let host = k as u8 + 1;
                    let taken = std::mem::take(&mut ends[k].taken);
                    ends[k] = End::new(host);
                    ends[k].taken = taken;
                    ends[k].hello = Hello::new(facts(host, 100 + generation as u64), now);
                }
                _ => {
                    // The driver leaves and begins again in the same life of the module.
                    now += 1000;
                    let nonce = ends[k].hello.me().host_nonce;
                    let new = Hello::new(facts(k as u8 + 1, nonce), now);
                    let bye = std::mem::replace(&mut ends[k].hello, new).bye();
                    ends[k].paths = false;
                    ends[k].ready = false;
                    if !chance.happens(loss) {
                        ends[1 - k].hello.on_request(&bye, now);
                    }
                }
            }
            now = run(&mut ends, now + 1, loss, &mut chance);
        }
    }
}

#[test]
fn unit_a_message_is_read_as_written() {
    let message = Message {
        kind: Kind::Hello,
        facts: facts(1, 7),
        heard: 99,
    };
    let mut bytes = message.emit().to_vec();
    bytes.extend([0; 4]);
    assert_eq!(Message::parse(&bytes), Some(message));
    assert_eq!(Message::parse(&bytes[..107]), None);
    bytes[88] |= 1;
    assert_eq!(Message::parse(&bytes), None, "a group MAC address");
}

#[test]
fn unit_versions_that_do_not_meet_are_refused_once() {
    let mut ends = [End::new(1), End::new(2)];
    ends[1].hello = Hello::new(
        Facts {
            versions: (2, 3),
            ..facts(2, 2)
        },
        0,
    );
    let mut chance = Chance(1);
    for step_no in 0..3000u64 {
        for k in 0..2 {
            step(&mut ends, k, step_no * 10_000, 0, &mut chance);
        }
    }
    for end in &ends {
        assert_eq!(end.refused, [Refusal::Version]);
        assert!(!end.ready);
    }
}

#[test]
fn unit_without_faults_it_takes_one_exchange() {
    let mut ends = [End::new(1), End::new(2)];
    let now = run(&mut ends, 0, 0, &mut Chance(1));
    assert!(now <= 200_000, "{now} us");
    assert_eq!((ends[0].ready_times, ends[1].ready_times), (1, 1));
}
