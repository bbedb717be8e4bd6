//! Two connected QPs over two rails whose wires lose, repeat and reorder frames: the message layer
//! and the rail layer together, as they ship.

mod sim;

use proptest::prelude::*;
use sim::{Chance, Faults, Frame, Setting, Upper, World};
use std::collections::VecDeque;
use tbrdma_proto::frame::{Header, Opcode};
use tbrdma_proto::rc::{
    AckEntries, AckEntry, Completion, Config, Delivery, Kind, NakCode, Next, Op, Placed, Requester,
    Responder, RethExt, Segment, SendExt, Status, Step, Wqe, WqeFlags, ACK_ENTRY_LEN,
};

/// Payload room of a frame; small, so that short messages have several frames.
const ROOM: u32 = 64;
const SQ: usize = 16;
const RECEIVE: usize = 512;
/// The lower half of a node's memory is written by the other node, the upper half is read.
const MEMORY: usize = 4096;
const READABLE: usize = MEMORY / 2;
const KEY: u32 = 77;
const LIMIT: u64 = 600_000_000;

/// What one message does.
#[derive(Clone, Debug)]
struct Message {
    op: Op,
    data: Vec<u8>,
    /// Of WRITE and READ.
    addr: u64,
    key: u32,
    fence: bool,
}

fn messages(seed: u64, count: usize) -> Vec<Message> {
    let mut chance = Chance::new(seed);
    (0..count)
        .map(|_| {
            let op = [Op::Send, Op::SendImm, Op::Write, Op::WriteImm, Op::Read]
                [chance.below(5) as usize];
            let len = match chance.below(4) {
                0 => 0,
                1 => chance.below(20),
                _ => chance.below(RECEIVE as u32),
            };
            let from = if op == Op::Read { READABLE } else { 0 };
            Message {
                op,
                data: (0..len).map(|_| chance.next() as u8).collect(),
                addr: (from + chance.below((READABLE - RECEIVE) as u32) as usize) as u64,
                key: KEY,
                fence: chance.happens(200),
            }
        })
        .collect()
}

/// One end: a requester with its sends, and a responder with its memory and receives.
struct Qp {
    requester: Requester,
    ring: Vec<Wqe>,
    /// Data of each entry: what is sent, or where a READ lands.
    data: Vec<Vec<u8>>,
    plan: Vec<Message>,
    posted: usize,
    completions: Vec<Completion>,
    /// What each READ brought, by message number.
    read: Vec<(u32, Vec<u8>)>,
    responder: Responder,
    memory: Vec<u8>,
    receives: VecDeque<Vec<u8>>,
    received: Vec<Received>,
    /// Messages of the other end that consume a receive.
    to_receive: usize,
    /// A receive is posted this often, microseconds.
    receive_pause: u64,
    next_receive: u64,
    wait_until: Option<u64>,
    /// Until then this end cannot receive: its QP is being set up.
    ready_at: u64,
    not_ready: Option<AckEntry>,
}

impl Qp {
    fn new(plan: Vec<Message>, other: &[Message], receive_pause: u64, ready_at: u64) -> Self {
        let config = Config {
            max_reads: 2,
            rnr_retry: 7,
            not_ready_limit_us: None,
        };
        Self {
            requester: Requester::new(config),
            ring: vec![Wqe::default(); SQ],
            data: vec![Vec::new(); SQ],
            plan,
            posted: 0,
            completions: Vec::new(),
            read: Vec::new(),
            responder: Responder::new(4, 1),
            memory: (0..MEMORY).map(|i| ((i * 31) >> 3) as u8).collect(),
            receives: VecDeque::new(),
            received: Vec::new(),
            to_receive: other.iter().filter(|m| takes_receive(m.op)).count(),
            receive_pause,
            next_receive: receive_pause,
            wait_until: None,
            ready_at,
            not_ready: None,
        }
    }

    /// Time has passed: receives are posted, and sends.
    fn tick(&mut self, now: u64) {
        while self.next_receive <= now {
            self.receives.push_back(vec![0; RECEIVE]);
            self.next_receive += self.receive_pause;
        }
        while let Some(message) = self.plan.get(self.posted) {
            let flags = WqeFlags {
                signaled: true,
                solicited: false,
                fence: message.fence,
            };
            let wqe = Wqe::new(
                message.op,
                flags,
                message.data.len() as u32,
                message.addr,
                message.key,
                self.posted as u32,
            );
            let Some(slot) = self.requester.post(&mut self.ring, wqe) else {
                break;
            };
            self.data[slot] = match message.op {
                Op::Read => vec![0; message.data.len()],
                _ => message.data.clone(),
            };
            self.posted += 1;
        }
    }

    /// Takes completions, which makes room for more sends.
    fn advance(&mut self, now: u64) {
        loop {
            self.tick(now);
            let before = self.completions.len();
            self.complete();
            if self.completions.len() == before {
                break;
            }
        }
    }

    fn complete(&mut self) {
        while let Some(done) = self.requester.complete(&self.ring) {
            let slot = done.msn as usize % SQ;
            if self.ring[slot].op == Op::Read && done.status == Status::Success {
                self.read.push((done.msn, self.data[slot].clone()));
            }
            self.completions.push(done);
        }
    }

    fn request(&mut self, segment: &Segment) -> Frame {
        let slot = segment.msn as usize % SQ;
        let wqe = self.ring[slot];
        let (opcode, ext) = match wqe.op {
            Op::Send | Op::SendImm => {
                let ext = SendExt {
                    total: wqe.len,
                    imm: wqe.imm,
                    sqpn: 1,
                };
                (Opcode::Send, ext.emit().to_vec())
            }
            op => {
                let ext = RethExt {
                    raddr: wqe.raddr,
                    rkey: wqe.rkey,
                    total: wqe.len,
                    imm: wqe.imm,
                    sqpn: 1,
                };
                let opcode = match op {
                    Op::Read => Opcode::ReadReq,
                    _ => Opcode::Write,
                };
                (opcode, ext.emit().to_vec())
            }
        };
        let from = segment.offset as usize;
        Frame {
            header: Header {
                opcode,
                first: segment.first,
                last: segment.last,
                imm: matches!(wqe.op, Op::SendImm | Op::WriteImm),
                dqpn: 1,
                msn: segment.msn,
                offset: segment.offset,
                ..Header::default()
            },
            ext: if segment.first { ext } else { Vec::new() },
            payload: match wqe.op {
                Op::Read => Vec::new(),
                _ => self.data[slot][from..from + segment.len as usize].to_vec(),
            },
        }
    }

    fn execute(&mut self, kind: Kind, frame: &Frame, now: u64) {
        let header = &frame.header;
        if now < self.ready_at {
            if header.first {
                self.not_ready = Some(AckEntry {
                    qpn: 1,
                    msn: header.msn,
                    syndrome: tbrdma_proto::rc::Syndrome::NotReady,
                });
            }
            return;
        }
        let payload = &frame.payload;
        let delivery = Delivery {
            kind,
            msn: header.msn,
            offset: header.offset,
            len: payload.len() as u32,
            first: header.first,
            last: header.last,
            imm: header.imm,
            solicited: header.solicited,
            ext: &frame.ext,
        };
        match self
            .responder
            .on_frame(&delivery, !self.receives.is_empty())
        {
            Step::Drop | Step::Answer => return,
            Step::Receive { total, offset } => {
                let buffer = &mut self.receives[0];
                assert!(total as usize <= buffer.len());
                let at = offset as usize;
                buffer[at..at + payload.len()].copy_from_slice(payload);
            }
            Step::Write { addr, rkey, .. } => {
                if rkey != KEY {
                    self.responder.refuse(NakCode::RemoteAccess);
                    return;
                }
                let at = addr as usize;
                self.memory[at..at + payload.len()].copy_from_slice(payload);
            }
            Step::Read { rkey, .. } => {
                if rkey != KEY {
                    self.responder.refuse_read(NakCode::RemoteAccess);
                }
                return;
            }
        }
        if let Placed::Receive {
            total, imm, write, ..
        } = self.responder.placed(&delivery)
        {
            let mut buffer = self.receives.pop_front().expect("a receive was claimed");
            buffer.truncate(if write { 0 } else { total as usize });
            self.received.push((buffer, imm));
        }
    }
}

fn takes_receive(op: Op) -> bool {
    !matches!(op, Op::Write | Op::Read)
}

fn ack_frame(entry: &AckEntry) -> Frame {
    Frame {
        header: Header {
            opcode: Opcode::QpAck,
            ..Header::default()
        },
        ext: Vec::new(),
        payload: entry.emit().to_vec(),
    }
}

impl Upper for Qp {
    fn deliver(&mut self, frame: Frame, now: u64) {
        self.tick(now);
        match frame.header.opcode {
            Opcode::QpAck => {
                assert_eq!(frame.payload.len() % ACK_ENTRY_LEN, 0);
                for entry in AckEntries::new(&frame.payload) {
                    assert!(
                        self.requester.on_ack(&mut self.ring, &entry, now),
                        "{entry:?}"
                    );
                    self.wait_until = None;
                }
            }
            Opcode::ReadResp => {
                let header = &frame.header;
                let segment = Segment {
                    msn: header.msn,
                    offset: header.offset,
                    len: frame.payload.len() as u32,
                    first: header.first,
                    last: header.last,
                };
                if let Some(slot) = self.requester.read_slot(&self.ring, &segment) {
                    let at = segment.offset as usize;
                    self.data[slot][at..at + frame.payload.len()].copy_from_slice(&frame.payload);
                    self.requester.read_placed(&mut self.ring, &segment);
                }
            }
            Opcode::Send => self.execute(Kind::Send, &frame, now),
            Opcode::Write => self.execute(Kind::Write, &frame, now),
            Opcode::ReadReq => self.execute(Kind::Read, &frame, now),
            other => panic!("{other:?}"),
        }
        self.advance(now);
    }

    fn want_send(&mut self, now: u64) -> Option<Frame> {
        self.advance(now);
        if let Some(entry) = self.not_ready.take() {
            return Some(ack_frame(&entry));
        }
        if let Some(read) = self.responder.next_read(ROOM) {
            let at = read.addr as usize;
            let payload = self.memory[at..at + read.len as usize].to_vec();
            self.responder.read_sent(&read);
            return Some(Frame {
                header: Header {
                    opcode: Opcode::ReadResp,
                    first: read.offset == 0,
                    last: read.last,
                    dqpn: 1,
                    msn: read.msn,
                    offset: read.offset,
                    ..Header::default()
                },
                ext: Vec::new(),
                payload,
            });
        }
        if let Some(entry) = self.responder.take_ack(1) {
            return Some(ack_frame(&entry));
        }
        self.wait_until = None;
        match self.requester.next(&self.ring, now, ROOM) {
            Next::Frame(segment) => {
                let frame = self.request(&segment);
                self.requester.sent(&self.ring, &segment);
                Some(frame)
            }
            Next::Until(at) => {
                self.wait_until = Some(at);
                None
            }
            Next::Idle => None,
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        self.wait_until
    }

    fn is_done(&self) -> bool {
        self.completions.len() == self.plan.len()
            && self.received.len() == self.to_receive
            && !self.responder.owes_ack()
    }
}

/// A message that used up a receive, and its immediate data.
type Received = (Vec<u8>, Option<u32>);

/// What the responder has to end with: its memory, and what it received.
fn model(plan: &[Message]) -> (Vec<u8>, Vec<Received>) {
    let mut memory = Qp::new(Vec::new(), &[], 1, 0).memory;
    let mut received = Vec::new();
    for (number, message) in plan.iter().enumerate() {
        let range = message.addr as usize..message.addr as usize + message.data.len();
        let imm = Some(number as u32);
        match message.op {
            Op::Send => received.push((message.data.clone(), None)),
            Op::SendImm => received.push((message.data.clone(), imm)),
            Op::Write => memory[range].copy_from_slice(&message.data),
            Op::WriteImm => {
                memory[range].copy_from_slice(&message.data);
                received.push((Vec::new(), imm));
            }
            Op::Read => {}
        }
    }
    (memory, received)
}

/// `by` is what the requester ended with, `at` the responder.
fn check(by: &Qp, at: &Qp) {
    let (memory, received) = model(&by.plan);
    assert!(at.received == received, "the receives differ");
    assert!(at.memory == memory, "the memory differs");
    for (number, done) in by.completions.iter().enumerate() {
        let msn = number as u32;
        let status = Status::Success;
        assert_eq!(*done, Completion { msn, status });
    }
    let reads = by.plan.iter().enumerate().filter(|(_, m)| m.op == Op::Read);
    assert_eq!(by.read.len(), reads.clone().count());
    for ((number, message), (msn, data)) in reads.zip(&by.read) {
        let from = message.addr as usize;
        assert_eq!(number as u32, *msn);
        assert_eq!(data[..], memory[from..from + message.data.len()]);
    }
}

fn world(
    seed: u64,
    setting: &Setting,
    faults: [Faults; 2],
    plans: [Vec<Message>; 2],
    receive_pause: [u64; 2],
    ready_at: u64,
) -> World<Qp> {
    let [a, b] = plans;
    let qps = [
        Qp::new(a.clone(), &b, receive_pause[0], 0),
        Qp::new(b, &a, receive_pause[1], ready_at),
    ];
    World::new(seed, setting, faults, qps)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every message is executed once, in order and with its bytes, in both directions at once,
    /// although frames are lost, receives are posted late and one end is set up late.
    #[test]
    fn prop_messages_survive_a_bad_wire(
        seed in any::<u64>(),
        loss in 0..150u32,
        duplication in 0..50u32,
        reordering in 0..50u32,
        counts in (0..60usize, 0..60usize),
        receive_pause in (1..2_000u64, 1..2_000u64),
        ready_at in prop_oneof![Just(0), 0..200_000u64],
        window in 1..=64u32,
    ) {
        let setting = Setting {
            window,
            rx_capacity: window,
            rx_size: window as usize + 16,
            tx_size: 80,
            dead_after: 60_000_000,
            ..Setting::default()
        };
        let faults = Faults { loss, duplication, reordering, ..Faults::default() };
        let plans = [messages(seed, counts.0), messages(!seed, counts.1)];
        let pause = [receive_pause.0, receive_pause.1];
        let mut world = world(seed, &setting, [faults.clone(), faults], plans, pause, ready_at);
        world.run(LIMIT);
        let [a, b] = &world.uppers;
        check(a, b);
        check(b, a);
    }
}

/// A refused message ends with its own status, those before it well, those after it flushed,
/// however the refusal and the acknowledgements are lost and repeated.
#[test]
fn sim_a_refusal_is_never_overtaken() {
    for seed in 0..40 {
        let mut plan = messages(seed, 30);
        let bad = seed as usize % 29;
        plan[bad].op = if seed % 2 == 0 { Op::Write } else { Op::Read };
        plan[bad].key = KEY + 1;
        let faults = [Faults::loss(100), Faults::loss(100)];
        let plans = [plan.clone(), Vec::new()];
        let mut world = world(seed, &Setting::default(), faults, plans, [1, 1], 0);
        // The responder does not receive what comes after the refusal.
        world.uppers[1].to_receive = plan[..bad].iter().filter(|m| takes_receive(m.op)).count();
        world.run(LIMIT);
        for (index, done) in world.uppers[0].completions.iter().enumerate() {
            let status = match index.cmp(&bad) {
                std::cmp::Ordering::Less => Status::Success,
                std::cmp::Ordering::Equal => Status::RemoteAccess,
                std::cmp::Ordering::Greater => Status::Flushed,
            };
            let msn = index as u32;
            assert_eq!(*done, Completion { msn, status }, "seed {seed}");
        }
        let (memory, received) = model(&plan[..bad]);
        assert!(world.uppers[1].received == received, "seed {seed}");
        assert!(world.uppers[1].memory == memory, "seed {seed}");
    }
}
