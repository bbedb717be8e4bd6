//! Two hosts with one to four rails between them, each with a delay and a loss of its own. Rails
//! die and come back at either end at any time. Every frame arrives exactly once and in order as
//! long as one rail lives, and a host that has lost all never goes on where it was.

mod sim;

use sim::{Chance, Driver, Faults, Frame, Setting, Stream, Upper, Wire};
use std::collections::{BTreeMap, VecDeque};
use tbrdma_proto::bundle::{Epoch, Receiver, Rx, Sender, Stats, Verdict, ACK_SPAN, SPAN};

const PING_EVERY: u64 = 50_000;
const PROOF_TIME: u64 = 3_000_000;

/// What one host keeps for the other.
struct Peer {
    epoch: Epoch,
    tx: Sender,
    rx: Receiver,
    held: BTreeMap<u32, Frame>,
    /// Frames of dead rails.
    orphans: VecDeque<Frame>,
    out: Stream,
    into: Stream,
    /// Frames that the rail may send in this run.
    quota: u32,
    hastened: u32,
}

impl Peer {
    fn new(mine: u64, plan: &Plan) -> Self {
        Self {
            epoch: Epoch { mine, yours: 0 },
            tx: Sender::new(),
            rx: Receiver::new(),
            held: BTreeMap::new(),
            orphans: VecDeque::new(),
            out: Stream::new(mine, plan.frames, 0).slow(plan.pause),
            into: Stream::new(0, 0, 0),
            quota: 0,
            hastened: 0,
        }
    }

    /// Its contents follow from the other end's nonce: frames of another bundle are not right.
    fn begin(&mut self, yours: u64) {
        self.epoch.yours = yours;
        self.into = Stream::new(yours, 0, u64::MAX);
    }

    fn hand_up(&mut self, mut frame: Frame, now: u64) {
        frame.header.bundle = 0;
        self.into.deliver(frame, now);
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.tx.stats(&mut stats);
        self.rx.stats(&mut stats);
        stats
    }
}

impl Upper for Peer {
    fn deliver(&mut self, frame: Frame, now: u64) {
        match self.rx.on_frame(frame.header.bundle) {
            Rx::Deliver => {
                self.hand_up(frame, now);
                while let Some(seq) = self.rx.next_held() {
                    let frame = self.held.remove(&seq).expect("was kept");
                    self.hand_up(frame, now);
                }
            }
            Rx::Hold => {
                let old = self.held.insert(frame.header.bundle, frame);
                assert!(old.is_none() && self.held.len() < SPAN as usize);
            }
            Rx::Duplicate => {}
            Rx::Beyond => panic!("{} is beyond {}", frame.header.bundle, self.rx.expected()),
        }
    }

    fn want_send(&mut self, now: u64) -> Option<Frame> {
        if let Some(frame) = self.orphans.pop_front() {
            self.tx.orphan_sent();
            return Some(frame);
        }
        if self.quota == 0 || !self.tx.reserve() {
            return None;
        }
        let Some(mut frame) = self.out.want_send(now) else {
            self.tx.cancel();
            return None;
        };
        self.quota -= 1;
        frame.header.bundle = self.tx.commit();
        Some(frame)
    }

    fn next_timeout(&self) -> Option<u64> {
        if self.orphans.is_empty() {
            self.out.next_timeout()
        } else {
            Some(0)
        }
    }

    fn is_done(&self) -> bool {
        self.out.is_done()
    }
}

/// One end of a cable.
#[derive(Default)]
struct Side {
    driver: Option<Driver>,
    /// What the rail was made for.
    mine: u64,
    open: bool,
    /// What the last pong said, and when it is looked at.
    news: Option<(u64, Epoch)>,
    ping_at: u64,
    proof_until: u64,
    join_at: Option<u64>,
    leave_at: Option<u64>,
}

struct Cable {
    sides: [Side; 2],
    wires: [Wire; 2],
    /// Pulled until then.
    pulled_until: u64,
}

struct Plan {
    seed: u64,
    faults: Vec<Faults>,
    /// Frames of a life of each peer, and the pause between two.
    frames: u64,
    pause: u64,
    dead_after: u64,
    /// From something that happens to what follows from it, at the most.
    slowness: u32,
    /// Believe that every rail belongs to the bundle.
    trusting: bool,
}

impl Plan {
    fn new(seed: u64, faults: Vec<Faults>, frames: u64) -> Self {
        Self {
            seed,
            faults,
            frames,
            pause: 1,
            dead_after: 2_000_000,
            slowness: 30_000,
            trusting: false,
        }
    }
}

struct World {
    now: u64,
    chance: Chance,
    plan: Plan,
    peers: [Peer; 2],
    cables: Vec<Cable>,
    next_nonce: u64,
    /// Times that a host has lost all rails.
    lives: [u64; 2],
    resent: u64,
}

impl World {
    fn new(plan: Plan) -> Self {
        let mut chance = Chance::new(plan.seed);
        let cables = plan.faults.iter().map(|faults| Cable {
            sides: [(); 2].map(|()| Side {
                join_at: Some(1 + u64::from(chance.below(plan.slowness))),
                ..Side::default()
            }),
            wires: [Wire::new(faults.clone()), Wire::new(faults.clone())],
            pulled_until: 0,
        });
        let cables = cables.collect();
        Self {
            now: 1,
            chance,
            peers: [Peer::new(1, &plan), Peer::new(2, &plan)],
            cables,
            next_nonce: 3,
            lives: [0; 2],
            resent: 0,
            plan,
        }
    }

    fn soon(&mut self) -> u64 {
        self.now + 1 + u64::from(self.chance.below(self.plan.slowness))
    }

    /// The cable's ends have agreed on a new attempt.
    fn join(&mut self, c: usize, k: usize) {
        let number = self.next_nonce;
        let plan = &self.plan;
        let side = &mut self.cables[c].sides[k];
        side.join_at = None;
        let setting = Setting {
            window: 64 << (c % 4),
            rx_capacity: 64 << (c % 4),
            tx_size: 600,
            rx_size: 600,
            tick: 1_000,
            dead_after: plan.dead_after,
            first_seqs: (number as u32, number as u32),
            ..Setting::default()
        };
        let mut driver = Driver::new(setting, self.now);
        driver.open = false;
        *side = Side {
            driver: Some(driver),
            mine: self.peers[k].epoch.mine,
            ping_at: self.now,
            proof_until: self.now + PROOF_TIME,
            ..Side::default()
        };
    }

    /// Both ends of the cable are down: HELLO gets through if the cable is there.
    fn meet(&mut self, c: usize) {
        let cable = &self.cables[c];
        let down =
            |side: &Side| side.driver.is_none() && side.join_at.is_some_and(|at| at <= self.now);
        if self.now >= cable.pulled_until && cable.sides.iter().all(down) {
            self.next_nonce += 1 + u64::from(self.chance.next());
            for k in 0..2 {
                self.join(c, k);
            }
        }
    }

    /// The end of a rail at one end; the other end hears of it.
    fn leave(&mut self, c: usize, k: usize) {
        let (soon, later) = (self.soon(), self.soon());
        let side = std::mem::take(&mut self.cables[c].sides[k]);
        let Some(mut driver) = side.driver else {
            self.cables[c].sides[k] = side;
            return;
        };
        self.cables[c].sides[k].join_at = Some(soon);
        let other = &mut self.cables[c].sides[1 - k];
        if other.driver.is_some() {
            other.leave_at.get_or_insert(later);
        }
        if !side.open {
            return;
        }
        self.take_acknowledged(k, &mut driver);
        let orphans = driver.into_unacknowledged();
        if self.cables.iter().any(|cable| cable.sides[k].open) {
            self.resent += orphans.len() as u64;
            self.peers[k].orphans.extend(orphans);
        } else {
            // The last one: the peer is lost.
            self.next_nonce += 1;
            self.lives[k] += 1;
            self.peers[k] = Peer::new(self.next_nonce, &self.plan);
        }
    }

    fn take_acknowledged(&mut self, k: usize, driver: &mut Driver) {
        for seq in driver.acknowledged.drain(..) {
            self.peers[k].tx.acknowledged(seq);
        }
        self.peers[k].tx.take_resume();
    }

    /// The proof has come: does the rail belong to this bundle?
    fn judge(&mut self, c: usize, k: usize, theirs: &Epoch) {
        let peer = &mut self.peers[k];
        let verdict = if self.plan.trusting {
            Verdict::Join
        } else if self.cables[c].sides[k].mine != peer.epoch.mine {
            Verdict::Wait
        } else {
            peer.epoch.judge(theirs)
        };
        match verdict {
            Verdict::Join => {
                if peer.epoch.yours == 0 {
                    peer.begin(theirs.mine);
                }
                let tags = peer.epoch.tags();
                let side = &mut self.cables[c].sides[k];
                side.open = true;
                let driver = side.driver.as_mut().expect("it is joined");
                if !self.plan.trusting {
                    driver.rail.set_bundle(tags.0, tags.1);
                }
                driver.open = true;
                driver.ask_run(self.now);
            }
            Verdict::Wait => self.leave(c, k),
            Verdict::Over => {
                for c in 0..self.cables.len() {
                    if self.cables[c].sides[k].open {
                        self.leave(c, k);
                    }
                }
                self.leave(c, k);
            }
        }
    }

    /// What end `k` of cable `c` does now.
    fn run(&mut self, c: usize, k: usize) {
        let now = self.now;
        let side = &mut self.cables[c].sides[k];
        if side.leave_at.is_some_and(|at| at <= now) {
            self.leave(c, k);
            return;
        }
        let Some(mut driver) = side.driver.take() else {
            return;
        };
        let peer = &mut self.peers[k];
        if side.mine == peer.epoch.mine {
            driver.epoch = peer.epoch;
        }
        if !side.open && side.ping_at <= now {
            side.ping_at = now + PING_EVERY;
            driver.ping(side.mine);
        }
        if side.open {
            peer.quota = 1 + self.chance.below(8);
            driver.run(peer, now);
        } else {
            driver.run(&mut Stream::new(0, 0, 0), now);
            if driver.pongs.drain(..).any(|nonce| nonce == side.mine) && side.news.is_none() {
                let news = driver.heard.expect("the pong said so");
                let at = now + u64::from(self.chance.below(self.plan.slowness));
                side.news = Some((at, news));
            }
        }
        if let Some(frame) = driver.transmit(now) {
            if now >= self.cables[c].pulled_until {
                self.cables[c].wires[k].send(frame, now, &mut self.chance);
            }
        }
        let broken = driver.rail.is_dead(now);
        self.take_acknowledged(k, &mut driver);
        let side = &mut self.cables[c].sides[k];
        side.driver = Some(driver);
        let unproven = !side.open && side.news.is_none() && now >= side.proof_until;
        if broken || unproven {
            self.leave(c, k);
        } else if let Some((_, theirs)) = side.news.take_if(|(at, _)| *at <= now) {
            self.judge(c, k, &theirs);
        }
    }

    /// As the module does it: a rail that owes acknowledgements must not hold up the others.
    fn hasten(&mut self, k: usize) {
        let expected = self.peers[k].rx.expected();
        if expected.wrapping_sub(self.peers[k].hastened) < ACK_SPAN {
            return;
        }
        self.peers[k].hastened = expected;
        for cable in &mut self.cables {
            if let Some(driver) = cable.sides[k].driver.as_mut() {
                driver.rail.hasten_ack();
                driver.ask_run(self.now);
            }
        }
    }

    fn step(&mut self) {
        let now = self.now;
        for cable in &mut self.cables {
            for k in 0..2 {
                while let Some(frame) = cable.wires[k].receive(now) {
                    // Without a path the hardware drops it.
                    if let Some(driver) = &mut cable.sides[1 - k].driver {
                        driver.arrive(frame, now, &mut self.chance);
                    }
                }
            }
        }
        // Whoever comes first takes what there is to send.
        let first = self.chance.below(self.cables.len() as u32) as usize;
        for i in 0..self.cables.len() {
            let c = (first + i) % self.cables.len();
            self.meet(c);
            for k in 0..2 {
                self.run(c, k);
            }
        }
        for k in 0..2 {
            self.hasten(k);
        }
        let mut next = now + 20_000;
        for cable in &self.cables {
            let arrivals = cable.wires.iter().filter_map(Wire::next_arrival);
            next = arrivals.fold(next, u64::min);
            for (side, peer) in cable.sides.iter().zip(&self.peers) {
                let wanted = peer.next_timeout().filter(|at| side.open && *at > now);
                let times = [
                    side.leave_at,
                    side.join_at.filter(|at| *at > now),
                    side.news.map(|(at, _)| at),
                    side.driver.as_ref().and_then(|d| d.next_event(wanted)),
                ];
                next = times.into_iter().flatten().fold(next, u64::min);
            }
        }
        self.now = next.max(now + 1);
    }

    fn run_for(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// All frames of the present life of both have arrived.
    fn is_done(&self) -> bool {
        let [a, b] = &self.peers;
        let met = |one: &Peer, other: &Peer| {
            one.epoch.yours == other.epoch.mine && one.out.sent == other.into.received
        };
        met(a, b) && met(b, a) && a.is_done() && b.is_done()
    }

    fn run_until_done(&mut self, limit: u64) -> u64 {
        let (start, end) = (self.now, self.now + limit);
        while !self.is_done() {
            assert!(
                self.now < end,
                "not done: {:?} {:?}, sent {} {}, received {} {}",
                self.peers[0].epoch,
                self.peers[1].epoch,
                self.peers[0].out.sent,
                self.peers[1].out.sent,
                self.peers[0].into.received,
                self.peers[1].into.received,
            );
            self.step();
        }
        self.now - start
    }

    fn open_at_both(&self, c: usize) -> bool {
        self.cables[c].sides.iter().all(|side| side.open)
    }

    fn wait_for_all(&mut self) {
        let end = self.now + 20_000_000;
        while !(0..self.cables.len()).all(|c| self.open_at_both(c)) {
            assert!(self.now < end, "the rails do not come up");
            self.step();
        }
    }

    /// Something happens to cable `c`, for four times this time at the most.
    fn disturb(&mut self, c: usize, time: u32) {
        let k = self.chance.below(2) as usize;
        match self.chance.below(3) {
            0 => self.leave(c, k),
            1 => {
                let pulled = u64::from(self.chance.below(4 * time));
                self.cables[c].pulled_until = self.now + pulled;
                if self.chance.happens(500) {
                    // Both ends notice.
                    self.leave(c, k);
                    self.leave(c, 1 - k);
                }
            }
            _ => {
                let until = self.now + u64::from(self.chance.below(3 * time));
                let (cut, both) = (self.now..until, self.chance.happens(500));
                self.cables[c].wires[k].faults.cut = cut.clone();
                if both {
                    self.cables[c].wires[1 - k].faults.cut = cut;
                }
            }
        }
    }
}

fn clean(rails: usize) -> Vec<Faults> {
    vec![Faults::default(); rails]
}

/// Rails of all kinds.
fn mixed(seed: u64, rails: usize) -> Vec<Faults> {
    let mut chance = Chance::new(seed ^ 0xabcd);
    let faults = (0..rails).map(|_| Faults {
        delay: [2, 20, 300, 3_000][chance.below(4) as usize],
        loss: [0, 0, 10, 100][chance.below(4) as usize],
        duplication: [0, 10][chance.below(2) as usize],
        reordering: [0, 10][chance.below(2) as usize],
        ..Faults::default()
    });
    faults.collect()
}

#[test]
fn sim_frames_keep_their_order_on_unequal_rails() {
    for seed in 0..24 {
        let rails = 1 + seed as usize % 4;
        let mut plan = Plan::new(seed, mixed(seed, rails), 6_000);
        plan.pause = 30;
        let mut world = World::new(plan);
        world.run_until_done(60_000_000);
        assert_eq!(world.lives, [0, 0]);
        let held = world.peers[0].stats().held;
        assert_eq!(held > 0, rails > 1, "{held} of {rails} rails");
    }
}

/// Two rails carry half of the frames each, and take half of the time.
#[test]
fn sim_two_rails_are_twice_as_fast() {
    let time = |rails| {
        let mut world = World::new(Plan::new(1, clean(rails), 40_000));
        // Equal windows.
        world.wait_for_all();
        let (sent, start) = (world.peers[0].out.sent, world.now);
        world.run_until_done(60_000_000);
        let frames = world.peers[0].out.sent - sent;
        let shares: Vec<_> = world
            .cables
            .iter()
            .map(|cable| cable.wires[0].count)
            .collect();
        ((world.now - start) * 1000 / frames, shares)
    };
    let (one, _) = time(1);
    let (two, shares) = time(2);
    assert!(two * 10 < one * 7, "{one} and {two} ns per frame");
    let all: u64 = shares.iter().sum();
    assert!(
        shares.iter().all(|share| share * 10 > all * 3),
        "{shares:?}"
    );
}

/// One rail dies while the other lives: nothing is lost and nobody begins anew.
#[test]
fn sim_a_lost_rail_costs_no_frame() {
    let mut resent = 0;
    for seed in 0..4 {
        let mut plan = Plan::new(seed, mixed(seed, 2 + seed as usize % 3), 12_000);
        plan.pause = 400;
        plan.dead_after = 500_000;
        let mut world = World::new(plan);
        world.wait_for_all();
        for _ in 0..4 {
            let time = world.chance.below(200_000);
            world.run_for(time.into());
            let rails = world.cables.len() as u32;
            let c = world.chance.below(rails) as usize;
            world.disturb(c, 200_000);
            // One at a time.
            world.run_for(4 * 200_000 + 500_000);
            world.wait_for_all();
        }
        world.run_until_done(60_000_000);
        assert_eq!(world.lives, [0, 0], "seed {seed}");
        resent += world.resent;
    }
    assert!(resent > 10, "only {resent} frames had to be sent again");
}

/// Anything happens to any rail at any time.
fn chaos(seed: u64, trusting: bool) -> [u64; 2] {
    let rails = 1 + seed as usize % 4;
    let mut plan = Plan::new(seed, mixed(seed, rails), 4_000);
    plan.pause = 300;
    plan.slowness = 200_000;
    plan.trusting = trusting;
    let mut world = World::new(plan);
    for _ in 0..12 {
        let time = match world.chance.below(3) {
            0 => world.chance.below(2_000),
            1 => world.chance.below(100_000),
            _ => world.chance.below(2_000_000),
        };
        world.run_for(u64::from(time));
        let c = world.chance.below(rails as u32) as usize;
        world.disturb(c, 1_000_000);
    }
    world.run_until_done(120_000_000);
    world.lives
}

#[test]
fn sim_rails_come_and_go() {
    let mut lives = 0;
    for seed in 0..16 {
        lives += chaos(seed, false).iter().sum::<u64>();
    }
    assert!(lives > 10, "a peer was lost only {lives} times");
}

/// The test above would notice it if rails joined without asking which bundle they belong to.
#[test]
#[should_panic]
fn sim_trusting_ends_mix_bundles_up() {
    for seed in 0..80 {
        chaos(seed, true);
    }
}
