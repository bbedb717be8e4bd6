//! Two hosts with everything below the verbs: HELLO over a lossy control channel, rails over lossy
//! wires, drivers that take time to come and go. They have to find each other again after
//! whatever happens, and a frame of an earlier agreement must never be taken for one of a later.

mod sim;

use sim::{Chance, Driver, Faults, Frame, Setting, Upper, Wire};
use std::collections::BTreeMap;
use tbrdma_proto::frame::{Header, Opcode};
use tbrdma_proto::hello::{Action, Agreed, Facts, Hello, Kind, Message, State, MAX_RAILS};

/// An answer to a request takes this long at most, microseconds.
const ANSWER_TIME: u64 = 500_000;
/// Frames that each agreement has to carry in each direction.
const FRAMES: u64 = 100;

fn facts(host: u8, host_nonce: u64) -> Facts {
    Facts {
        versions: (1, 1),
        features: 0,
        window: 64,
        rx_capacity: 60,
        host: [host; 16],
        host_nonce,
        link_nonce: 1,
        router: [host; 16],
        peer_router: [3 - host; 16],
        mac: [2, 0, 0, 0, 0, host],
        mtu: 4000,
        rails: 1,
        tx_hops: [8, 0, 0, 0],
    }
}

/// The pair of attempts that an agreement is about, as seen by one end.
type Pair = (u64, u64);

/// Frames that say of which agreement they are.
#[derive(Default)]
struct Tagged {
    /// Set when data may flow.
    pair: Option<Pair>,
    sent: u64,
    received: u64,
}

impl Upper for Tagged {
    fn deliver(&mut self, frame: Frame, _now: u64) {
        let (me, peer) = self.pair.expect("data may flow");
        let mut expected = peer.to_le_bytes().to_vec();
        expected.extend(me.to_le_bytes());
        expected.extend(self.received.to_le_bytes());
        assert_eq!(frame.payload, expected, "a frame of another agreement");
        self.received += 1;
    }

    fn want_send(&mut self, _now: u64) -> Option<Frame> {
        let (me, peer) = self.pair?;
        if self.sent == FRAMES {
            return None;
        }
        let mut payload = me.to_le_bytes().to_vec();
        payload.extend(peer.to_le_bytes());
        payload.extend(self.sent.to_le_bytes());
        self.sent += 1;
        Some(Frame {
            header: Header {
                opcode: Opcode::Datagram,
                ..Header::default()
            },
            ext: Vec::new(),
            payload,
        })
    }

    fn is_done(&self) -> bool {
        self.sent == FRAMES && self.received == FRAMES
    }
}

/// What a host's worker is busy with.
enum Work {
    Join(Agreed),
    Leave,
}

struct Host {
    number: u8,
    hello: Hello,
    driver: Option<Driver>,
    upper: Tagged,
    work: Option<(u64, Work)>,
    /// A request to be answered when the rail has been taken down.
    owed: Option<Message>,
    /// When the request under way is given up.
    answer_by: Option<u64>,
    next_hop: u16,
    /// HopIDs of the other end that are in use here.
    taken: Vec<u16>,
}

enum Control {
    Request(Message),
    Answer(Message),
}

struct World {
    now: u64,
    chance: Chance,
    hosts: [Host; 2],
    wires: [Wire; 2],
    /// Messages under way, by arrival time and a number, to a host.
    control: BTreeMap<(u64, u64), (usize, Control)>,
    count: u64,
    control_loss: u32,
    /// Count rails from 0 instead of from what was agreed on.
    from_zero: bool,
}

impl World {
    fn new(seed: u64, faults: Faults, control_loss: u32) -> Self {
        let host = |number: u8| Host {
            number,
            hello: Hello::new(facts(number, u64::from(number)), 1),
            driver: None,
            upper: Tagged::default(),
            work: None,
            owed: None,
            answer_by: None,
            next_hop: 8,
            taken: Vec::new(),
        };
        Self {
            now: 1,
            chance: Chance::new(seed),
            hosts: [host(1), host(2)],
            wires: [Wire::new(faults.clone()), Wire::new(faults)],
            control: BTreeMap::new(),
            count: 0,
            control_loss,
            from_zero: false,
        }
    }

    /// Puts a message on the control channel, which may lose, delay and repeat it.
    fn send_control(&mut self, to: usize, control: impl Fn() -> Control) {
        let copies = 1 + u32::from(self.chance.happens(30));
        for _ in 0..copies {
            if self.chance.happens(self.control_loss) {
                continue;
            }
            // A channel that loses may also be so late that nobody waits any more.
            let delay = match self.chance.below(20) {
                0 if self.control_loss > 0 => self.chance.below(900_000),
                _ => self.chance.below(20_000),
            };
            self.count += 1;
            let at = self.now + 100 + u64::from(delay);
            self.control.insert((at, self.count), (to, control()));
        }
    }

    fn receive_control(&mut self, k: usize, control: &Control) {
        let now = self.now;
        let host = &mut self.hosts[k];
        match control {
            Control::Request(message) => {
                let answer = host.hello.on_request(message, now);
                let active = host.driver.is_some() || host.work.is_some();
                if host.hello.state() == State::Greeting && active {
                    host.owed = Some(*message);
                } else {
                    self.send_control(1 - k, || Control::Answer(answer));
                }
            }
            Control::Answer(message) => {
                // Nobody can tell which request it answers.
                if host.answer_by.take().is_some() {
                    host.hello.on_response(message, now);
                }
            }
        }
    }

    /// What one host does now.
    fn run(&mut self, k: usize) {
        let now = self.now;
        let host = &mut self.hosts[k];
        if host.answer_by.is_some_and(|at| at <= now) {
            host.answer_by = None;
            host.hello.on_request_failed(now);
        }
        if let Some((_, work)) = host.work.take_if(|(at, _)| *at <= now) {
            self.finish(k, work);
        }
        let host = &mut self.hosts[k];
        if let Some(driver) = &mut host.driver {
            driver.run(&mut host.upper, now);
            let nonce = host.hello.me().link_nonce;
            if driver.pongs.drain(..).any(|pong| pong == nonce) {
                host.hello.proven();
            }
            if driver.rail.is_dead(now) {
                host.hello.broken(now);
            }
            if let Some(frame) = driver.transmit(now) {
                self.wires[k].send(frame, now, &mut self.chance);
            }
        }
        // The worker does one thing after the other.
        while self.hosts[k].work.is_none() && self.hosts[k].answer_by.is_none() {
            let Some(action) = self.hosts[k].hello.poll(now) else {
                break;
            };
            self.act(k, action);
        }
    }

    fn act(&mut self, k: usize, action: Action) {
        let now = self.now;
        let after = now + u64::from(self.chance.below(30_000));
        let host = &mut self.hosts[k];
        match action {
            Action::Request(message) => {
                let message = Message::parse(&message.emit()).expect("sound");
                host.answer_by = Some(now + ANSWER_TIME);
                self.send_control(1 - k, || Control::Request(message));
            }
            Action::EnablePaths(agreed) => host.work = Some((after, Work::Join(agreed))),
            Action::Down => {
                host.upper.pair = None;
                if let Some(driver) = &mut host.driver {
                    driver.open = false;
                }
                host.work = Some((after, Work::Leave));
            }
            Action::Ping => {
                let nonce = host.hello.me().link_nonce;
                if let Some(driver) = &mut host.driver {
                    driver.ping(nonce);
                }
            }
            Action::Ready(agreed) => {
                host.upper = Tagged {
                    pair: Some((host.hello.me().link_nonce, agreed.peer.link_nonce)),
                    ..Tagged::default()
                };
                let driver = host.driver.as_mut().expect("the paths are enabled");
                driver.open = true;
                driver.ask_run(now);
            }
            Action::OtherHops => {
                host.next_hop += 1;
                let mut hops = [0; MAX_RAILS];
                hops[0] = host.next_hop;
                host.hello.set_hops(hops, now);
            }
            Action::Refused(_) => {}
        }
    }

    fn finish(&mut self, k: usize, work: Work) {
        let now = self.now;
        let from_zero = self.from_zero;
        let host = &mut self.hosts[k];
        match work {
            Work::Join(agreed) => {
                if host.taken.contains(&agreed.rx_hops[0]) {
                    host.hello.paths_failed(true, now);
                } else {
                    let setting = Setting {
                        window: u32::from(agreed.window),
                        rx_capacity: u32::from(agreed.window),
                        tx_size: 100,
                        rx_size: usize::from(agreed.window) + 16,
                        dead_after: 2_000_000,
                        first_seqs: if from_zero { (0, 0) } else { agreed.first_seqs },
                        ..Setting::default()
                    };
                    let mut driver = Driver::new(setting, now);
                    driver.open = false;
                    host.driver = Some(driver);
                    host.hello.paths_enabled(now);
                }
            }
            Work::Leave => host.driver = None,
        }
        // As in the module: an answer that was owed goes out when the rail is down.
        if host.driver.is_none() {
            if let Some(message) = host.owed.take() {
                let answer = host.hello.on_request(&message, now);
                self.send_control(1 - k, || Control::Answer(answer));
            }
        }
    }

    /// What happens now; the time goes on to the next event, but not beyond `end`.
    fn step(&mut self, end: u64) {
        let now = self.now;
        while let Some(entry) = self.control.first_entry().filter(|e| e.key().0 <= now) {
            let (k, control) = entry.remove();
            self.receive_control(k, &control);
        }
        for k in 0..2 {
            while let Some(frame) = self.wires[k].receive(now) {
                // Without a path the hardware drops it.
                if let Some(driver) = &mut self.hosts[1 - k].driver {
                    driver.arrive(frame, now, &mut self.chance);
                }
            }
        }
        for k in 0..2 {
            self.run(k);
        }
        let control = self.control.keys().next().map(|(at, _)| *at);
        let wires = self.wires.iter().filter_map(Wire::next_arrival);
        let hosts = self.hosts.iter().flat_map(|host| {
            let busy = host.work.is_some() || host.answer_by.is_some();
            [
                host.work.as_ref().map(|(at, _)| *at),
                host.answer_by,
                host.driver.as_ref().and_then(|d| d.next_event(None)),
                if busy {
                    None
                } else {
                    host.hello.next_timeout()
                },
            ]
        });
        let next = control
            .into_iter()
            .chain(wires)
            .chain(hosts.flatten())
            .min();
        // A pair that is joined and quiet has no next event.
        self.now = next.unwrap_or(end).clamp(now + 1, end.max(now + 1));
    }

    fn run_for(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.step(end);
        }
    }

    /// Both are ready for each other's present attempt, and all frames have arrived.
    fn is_joined(&self) -> bool {
        let [a, b] = &self.hosts;
        let swapped = b.upper.pair.map(|(me, peer)| (peer, me));
        a.upper.pair.is_some() && a.upper.pair == swapped && a.upper.is_done() && b.upper.is_done()
    }

    fn run_until_joined(&mut self, limit: u64) {
        let end = self.now + limit;
        while !self.is_joined() {
            self.step(end);
            assert!(
                self.now < end,
                "not joined:\n{:?}\n{:?}",
                self.hosts[0].hello,
                self.hosts[1].hello
            );
        }
    }

    /// Something happens to host `k`.
    fn disturb(&mut self, k: usize) {
        let now = self.now;
        let what = self.chance.below(4);
        let host = &mut self.hosts[k];
        match what {
            0 => host.hello.broken(now),
            // A reboot, of which nobody is told, or the module is loaded anew, with a good-bye.
            1 | 2 => {
                let new = Hello::new(facts(host.number, 1000 + now), now);
                let bye = std::mem::replace(&mut host.hello, new).bye();
                assert_eq!(bye.kind, Kind::Bye);
                host.driver = None;
                host.upper = Tagged::default();
                host.work = None;
                host.owed = None;
                host.answer_by = None;
                host.next_hop = 8;
                if what == 2 {
                    self.send_control(1 - k, || Control::Request(bye));
                }
            }
            _ => {
                let time = u64::from(self.chance.below(6_000_000));
                for wire in &mut self.wires {
                    wire.faults.cut = now..now + time;
                }
            }
        }
    }
}

/// They find each other in less than a second if nothing is lost, and with little traffic.
#[test]
fn sim_two_hosts_join() {
    let mut world = World::new(1, Faults::default(), 0);
    world.run_until_joined(1_000_000);
    assert!(world.count < 12, "{} control messages", world.count);
    for host in &world.hosts {
        assert_eq!(host.hello.state(), State::Ready);
    }
    // And they stay together.
    let before = world.count;
    world.run_for(20_000_000);
    assert!(world.is_joined());
    assert_eq!(world.count, before);
}

/// HopIDs that are taken are passed over one by one.
#[test]
fn sim_taken_hops_are_passed_over() {
    let mut world = World::new(2, Faults::default(), 0);
    world.hosts[0].taken = vec![8, 9, 10, 11, 12];
    world.hosts[1].taken = vec![8, 10];
    world.run_until_joined(5_000_000);
    let hops = world
        .hosts
        .each_ref()
        .map(|host| host.hello.me().tx_hops[0]);
    assert_eq!(hops, [9, 13]);
    // Refusals that cross each other do not set the two off again and again.
    assert!(world.count < 60, "{} control messages", world.count);
}

/// Frames stay under way for up to 50 ms, as in the deep rings of a host that is slow, while the
/// hosts break, reboot and leave, and one control message in five is lost.
fn chaos(seed: u64, from_zero: bool) {
    let faults = Faults {
        delay: 50_000,
        loss: 10,
        duplication: 10,
        reordering: 10,
        ..Faults::default()
    };
    let mut world = World::new(seed, faults, 200);
    world.from_zero = from_zero;
    for host in &mut world.hosts {
        host.taken = (8..12).filter(|_| world.chance.happens(400)).collect();
    }
    for _ in 0..12 {
        let time = match world.chance.below(3) {
            0 => world.chance.below(100_000),
            1 => world.chance.below(1_000_000),
            _ => world.chance.below(10_000_000),
        };
        world.run_for(u64::from(time));
        let k = world.chance.below(2) as usize;
        world.disturb(k);
    }
    world.run_until_joined(120_000_000);
}

#[test]
fn sim_hosts_find_each_other_after_anything() {
    for seed in 0..60 {
        chaos(seed, false);
    }
}
