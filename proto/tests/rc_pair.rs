//! Two connected QPs over a wire that keeps order: the message layer under random work, random
//! receive posting, slow connection set-up and refused accesses.

use proptest::prelude::*;
use std::collections::VecDeque;
use tbrdma_proto::frame::{Header, Opcode};
use tbrdma_proto::rc::{
    AckEntry, Completion, Config, Delivery, Due, Kind, NakCode, Next, Op, Placed, Requester,
    Responder, Response, RethExt, Segment, SendExt, Status, Step, Syndrome, Wqe, WqeFlags,
};

/// Payload room of a frame; small, so that short messages have several frames.
const ROOM: u32 = 64;
const MEMORY: usize = 4096;
const SQ: usize = 64;
const RECV: usize = 1024;

/// A frame on the wire.
#[derive(Clone, Debug)]
enum Frame {
    Request {
        header: Header,
        ext: Vec<u8>,
        data: Vec<u8>,
        rider: Option<AckEntry>,
    },
    Response {
        header: Header,
        data: Vec<u8>,
        rider: Option<AckEntry>,
    },
    Ack(AckEntry),
}

impl Frame {
    fn rider(&self) -> Option<AckEntry> {
        match self {
            Self::Request { rider, .. } | Self::Response { rider, .. } => *rider,
            Self::Ack(_) => None,
        }
    }
}

/// One side: a requester with its sends, and a responder with its memory and receives.
struct Node {
    requester: Requester,
    ring: Vec<Wqe>,
    /// Data of each entry: what is sent, or where a READ lands.
    data: Vec<Vec<u8>>,
    completions: Vec<Completion>,
    responder: Responder,
    memory: Vec<u8>,
    ready: bool,
    receives: VecDeque<Vec<u8>>,
    /// Data, immediate data and invalidated key.
    received: Vec<(Vec<u8>, Option<u32>, Option<u32>)>,
}

impl Node {
    fn new(config: Config) -> Self {
        Self {
            requester: Requester::new(config),
            ring: vec![Wqe::default(); SQ],
            data: vec![Vec::new(); SQ],
            completions: Vec::new(),
            responder: Responder::new(4, 1),
            memory: vec![0; MEMORY],
            ready: true,
            receives: VecDeque::new(),
            received: Vec::new(),
        }
    }

    fn post(&mut self, wqe: Wqe, data: Vec<u8>) {
        let slot = self
            .requester
            .post(&mut self.ring, wqe)
            .expect("the ring has room");
        self.data[slot] = data;
    }

    /// The next frame this node wants to send.
    fn next(&mut self, now: u64) -> Option<Frame> {
        let due = match self.responder.ack_due(now) {
            Due::No => false,
            Due::Now => true,
            Due::At(at) => at <= now,
        };
        if due {
            self.responder.rides_not();
            return self.responder.take_ack(1).map(Frame::Ack);
        }
        if let Some(response) = self.responder.next_response(ROOM) {
            self.responder.response_sent(&response);
            let rider = self.ride(now);
            let data = match response {
                Response::Read(read) => {
                    let at = read.addr as usize;
                    self.memory[at..at + read.len as usize].to_vec()
                }
                Response::Atomic { original, .. } => original.to_le_bytes().to_vec(),
            };
            let header = response.header(1);
            return Some(Frame::Response {
                header,
                data,
                rider,
            });
        }
        let Next::Frame(segment) = self.requester.next(&self.ring, now, ROOM) else {
            return None;
        };
        let slot = segment.msn as usize % SQ;
        let wqe = self.ring[slot];
        let from = segment.offset as usize;
        let data = self.data[slot][from..from + segment.len as usize].to_vec();
        let ack_req = self.requester.asks(&self.ring, &segment, false);
        self.requester.sent(&self.ring, &segment);
        Some(Frame::Request {
            header: Header {
                ack_req,
                ..wqe.header(&segment, 1).expect("not local")
            },
            ext: wqe.extension(&segment, 1).bytes().to_vec(),
            data,
            rider: self.ride(now),
        })
    }

    fn ride(&mut self, now: u64) -> Option<AckEntry> {
        let rider = self.responder.rider(1);
        self.responder.frame_sent(rider.is_some(), now);
        rider
    }

    /// Takes a frame; returns an answer that does not come from the responder's state.
    fn take(&mut self, frame: &Frame, now: u64) -> Option<Frame> {
        if let Some(entry) = frame.rider() {
            assert!(self.requester.on_ack(&self.ring, &entry, now), "{entry:?}");
        }
        match frame {
            Frame::Ack(entry) => {
                assert!(self.requester.on_ack(&self.ring, entry, now), "{entry:?}");
            }
            Frame::Response { header, data, .. } => {
                let segment = Segment::of(header, data);
                let slot = match header.opcode {
                    Opcode::AtomicResp => self.requester.atomic_slot(&self.ring, &segment),
                    _ => self.requester.read_slot(&self.ring, &segment),
                };
                if let Some(slot) = slot {
                    let at = segment.offset as usize;
                    self.data[slot][at..at + data.len()].copy_from_slice(data);
                    self.requester.read_placed(&mut self.ring, &segment);
                }
            }
            Frame::Request {
                header, ext, data, ..
            } => {
                if !self.ready {
                    return header.first.then_some(Frame::Ack(AckEntry::new(
                        1,
                        header.msn,
                        Syndrome::NotReady,
                    )));
                }
                self.execute(header, ext, data);
            }
        }
        while let Some(done) = self.requester.complete(&self.ring) {
            self.completions.push(done);
        }
        None
    }

    fn execute(&mut self, header: &Header, ext: &[u8], data: &[u8]) {
        let frame = Delivery::new(header, ext, data).expect("a request");
        match self.responder.on_frame(&frame, !self.receives.is_empty()) {
            Step::Drop | Step::Answer => return,
            Step::Receive { total, offset } => {
                let buffer = &mut self.receives[0];
                assert!(total as usize <= buffer.len());
                let at = offset as usize;
                buffer[at..at + data.len()].copy_from_slice(data);
            }
            Step::Write { addr, rkey, .. } => {
                if rkey != KEY {
                    self.responder.refuse(NakCode::RemoteAccess);
                    return;
                }
                let at = addr as usize;
                self.memory[at..at + data.len()].copy_from_slice(data);
            }
            Step::Read { rkey, .. } => {
                if rkey != KEY {
                    self.responder.refuse_read(NakCode::RemoteAccess);
                }
                return;
            }
            Step::Atomic { addr, rkey, op } => {
                if rkey != KEY {
                    self.responder.refuse(NakCode::RemoteAccess);
                    return;
                }
                let at = addr as usize;
                let place: &mut [u8; 8] = (&mut self.memory[at..at + 8]).try_into().unwrap();
                let original = u64::from_le_bytes(*place);
                if let Some(value) = op.apply(original) {
                    *place = value.to_le_bytes();
                }
                self.responder.executed(original);
                return;
            }
        }
        if let Placed::Receive {
            total,
            imm,
            inv,
            write,
            ..
        } = self.responder.placed(&frame)
        {
            let mut buffer = self.receives.pop_front().expect("a receive was claimed");
            buffer.truncate(if write { 0 } else { total as usize });
            self.received.push((buffer, imm, inv));
        }
    }
}

const KEY: u32 = 77;

/// What one message should do.
#[derive(Clone, Debug)]
struct Message {
    op: Op,
    data: Vec<u8>,
    addr: u64,
    fence: bool,
}

fn message() -> impl Strategy<Value = Message> {
    let op = prop_oneof![
        Just(Op::Send),
        Just(Op::SendImm),
        Just(Op::SendInv),
        Just(Op::Write),
        Just(Op::WriteImm),
        Just(Op::Read)
    ];
    (
        op,
        prop::collection::vec(any::<u8>(), 0..300),
        0..2048u64,
        any::<bool>(),
    )
        .prop_map(|(op, data, addr, fence)| Message {
            op,
            data,
            addr,
            fence,
        })
}

fn wqe(message: &Message, rkey: u32, number: u32) -> Wqe {
    let flags = WqeFlags {
        signaled: true,
        solicited: false,
        fence: message.fence,
    };
    Wqe::new(
        message.op,
        flags,
        message.data.len() as u32,
        message.addr,
        rkey,
        number,
    )
}

fn config() -> Config {
    Config {
        reliable: true,
        max_reads: 2,
        rnr_retry: 7,
        not_ready_limit_us: None,
    }
}

struct Run {
    a: Node,
    b: Node,
    to_a: VecDeque<Frame>,
    to_b: VecDeque<Frame>,
    now: u64,
}

impl Run {
    fn new(config: Config) -> Self {
        Self {
            a: Node::new(config),
            b: Node::new(config),
            to_a: VecDeque::new(),
            to_b: VecDeque::new(),
            now: 0,
        }
    }

    /// Moves until `done`; `choose` picks what happens next out of four.
    fn until(&mut self, mut choose: impl FnMut() -> u8, done: impl Fn(&Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.now += 50;
            match choose() % 4 {
                0 => self.to_b.extend(self.a.next(self.now)),
                1 => self.to_a.extend(self.b.next(self.now)),
                2 => {
                    if let Some(frame) = self.to_b.pop_front() {
                        let answer = self.b.take(&frame, self.now);
                        self.to_a.extend(answer);
                    }
                }
                _ => {
                    if let Some(frame) = self.to_a.pop_front() {
                        self.a.take(&frame, self.now);
                    }
                }
            }
        }
        panic!("no progress: {:?} {:?}", self.a.requester, self.b.responder);
    }
}

/// A cheap source of choices.
fn chooser(mut seed: u64) -> impl FnMut() -> u8 {
    move || {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as u8
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every message is executed once, in order, with its bytes, however late receives are posted
    /// and however late the responder's QP becomes ready.
    #[test]
    fn prop_messages_are_executed_once_and_in_order(
        messages in prop::collection::vec(message(), 1..40),
        seed in any::<u64>(),
        ready_after in 0..300usize,
        receive_every in 1..200usize,
    ) {
        let mut run = Run::new(config());
        run.b.ready = ready_after == 0;
        run.b.memory = (0..MEMORY).map(|i| (i * 7) as u8).collect();
        let mut model = run.b.memory.clone();
        let mut expected = Vec::new();
        for (number, message) in messages.iter().enumerate() {
            let range = message.addr as usize..message.addr as usize + message.data.len();
            match message.op {
                Op::Send => expected.push((message.data.clone(), None, None)),
                Op::SendImm => expected.push((message.data.clone(), Some(number as u32), None)),
                Op::SendInv => expected.push((message.data.clone(), None, Some(number as u32))),
                Op::Write => model[range].copy_from_slice(&message.data),
                Op::WriteImm => {
                    model[range].copy_from_slice(&message.data);
                    expected.push((Vec::new(), Some(number as u32), None));
                }
                _ => {}
            }
            run.a.post(wqe(message, KEY, number as u32), message.data.clone());
        }
        let mut choose = chooser(seed);
        let mut steps = 0usize;
        let total = messages.len();
        while run.a.completions.len() < total {
            steps += 1;
            prop_assert!(steps < 100_000, "no progress");
            if steps == ready_after {
                run.b.ready = true;
            }
            if steps % receive_every == 0 {
                run.b.receives.push_back(vec![0; RECV]);
            }
            let before = run.a.completions.len();
            let left = std::cell::Cell::new(8);
            run.until(&mut choose, |run| {
                left.set(left.get() - 1);
                left.get() == 0 || run.a.completions.len() > before
            });
        }
        for (index, done) in run.a.completions.iter().enumerate() {
            prop_assert_eq!(*done, Completion { msn: index as u32, status: Status::Success });
        }
        prop_assert_eq!(&run.b.received, &expected);
        prop_assert_eq!(&run.b.memory, &model);
    }

    /// A refused message ends with its own status, those before it well, those after it flushed.
    #[test]
    fn prop_refusal_ends_exactly_there(
        messages in prop::collection::vec(message(), 1..30),
        bad in any::<prop::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let mut run = Run::new(config());
        let bad = bad.index(messages.len());
        for (number, message) in messages.iter().enumerate() {
            let mut message = message.clone();
            if number == bad {
                message.op = if seed % 2 == 0 { Op::Read } else { Op::Write };
            }
            let key = if number == bad { KEY + 1 } else { KEY };
            run.a.post(wqe(&message, key, 0), message.data.clone());
            run.b.receives.push_back(vec![0; RECV]);
        }
        let total = messages.len();
        run.until(chooser(seed), |run| run.a.completions.len() == total);
        for (index, done) in run.a.completions.iter().enumerate() {
            let status = match index.cmp(&bad) {
                std::cmp::Ordering::Less => Status::Success,
                std::cmp::Ordering::Equal => Status::RemoteAccess,
                std::cmp::Ordering::Greater => Status::Flushed,
            };
            prop_assert_eq!(*done, Completion { msn: index as u32, status });
        }
        prop_assert!(run.b.responder.is_dead());
    }

    /// READs bring the responder's bytes.
    #[test]
    fn prop_reads_bring_the_bytes(
        reads in prop::collection::vec((0..2048u64, 0..300usize), 1..20),
        seed in any::<u64>(),
    ) {
        let mut run = Run::new(config());
        run.b.memory = (0..MEMORY).map(|i| (i % 251) as u8).collect();
        for (addr, len) in &reads {
            let message =
                Message { op: Op::Read, data: vec![0; *len], addr: *addr, fence: false };
            run.a.post(wqe(&message, KEY, 0), message.data.clone());
        }
        run.until(chooser(seed), |run| run.a.completions.len() == reads.len());
        for (slot, (addr, len)) in reads.iter().enumerate() {
            let at = *addr as usize;
            prop_assert_eq!(&run.a.data[slot], &run.b.memory[at..at + len]);
        }
    }

    /// Whatever a peer sends, nothing panics, and what was not sent is not acknowledged.
    #[test]
    fn prop_hostile_frames_do_no_harm(
        frames in prop::collection::vec(
            (0..4u8, any::<u32>(), any::<u32>(), any::<u16>(), any::<(bool, bool, bool, bool)>(),
             prop::collection::vec(any::<u8>(), 0..50)),
            0..60,
        ),
        acks in prop::collection::vec((any::<u32>(), 0..4u8, any::<u8>()), 0..60),
    ) {
        let mut responder = Responder::new(4, 1);
        for (kind, msn, offset, len, (first, last, imm, inv), ext) in &frames {
            let kind = [Kind::Send, Kind::Write, Kind::Read, Kind::Atomic][usize::from(*kind)];
            let frame = Delivery {
                kind,
                msn: msn % 4,
                offset: *offset,
                len: u32::from(*len),
                first: *first,
                last: *last,
                imm: *imm,
                inv: *inv,
                solicited: false,
                ack_req: true,
                ext,
            };
            match responder.on_frame(&frame, true) {
                Step::Receive { total, offset } => {
                    prop_assert!(u64::from(offset) + u64::from(*len) <= u64::from(total));
                    responder.placed(&frame);
                }
                Step::Write { addr, .. } => {
                    prop_assert!(addr.checked_add(u64::from(*len)).is_some());
                    responder.placed(&frame);
                }
                Step::Atomic { addr, .. } => {
                    prop_assert_eq!(addr % 8, 0);
                    responder.executed(1);
                }
                Step::Read { .. } | Step::Answer | Step::Drop => {}
            }
            if let Some(response) = responder.next_response(64) {
                responder.response_sent(&response);
            }
            responder.take_ack(1);
        }
        let mut node = Node::new(config());
        for _ in 0..4 {
            let message = Message { op: Op::Send, data: vec![1; 10], addr: 0, fence: false };
            node.post(wqe(&message, KEY, 0), message.data.clone());
        }
        node.next(0);
        for (msn, kind, detail) in &acks {
            let mut bytes = [0; tbrdma_proto::rc::ACK_ENTRY_LEN];
            bytes[4..8].copy_from_slice(&msn.to_le_bytes());
            bytes[8] = *kind;
            bytes[9] = *detail;
            if let Some(entry) = AckEntry::parse(&bytes) {
                node.requester.on_ack(&node.ring, &entry, 0);
            }
        }
        let ok = std::iter::from_fn(|| node.requester.complete(&node.ring))
            .filter(|done| done.status == Status::Success)
            .count();
        prop_assert!(ok <= 1, "one message was sent, {ok} were completed");
    }
}

#[test]
fn unit_rnr_gives_up_after_the_retries_asked_for() {
    let mut run = Run::new(Config {
        rnr_retry: 2,
        ..config()
    });
    let message = Message {
        op: Op::Send,
        data: vec![5; 10],
        addr: 0,
        fence: false,
    };
    run.a.post(wqe(&message, KEY, 0), message.data.clone());
    run.until(chooser(1), |run| !run.a.completions.is_empty());
    let done = Completion {
        msn: 0,
        status: Status::RnrRetryExceeded,
    };
    assert_eq!(run.a.completions, [done]);
}

#[test]
fn unit_a_qp_that_never_becomes_ready_is_given_up() {
    let mut run = Run::new(Config {
        not_ready_limit_us: Some(500_000),
        ..config()
    });
    run.b.ready = false;
    let message = Message {
        op: Op::Send,
        data: vec![5; 10],
        addr: 0,
        fence: false,
    };
    run.a.post(wqe(&message, KEY, 0), message.data.clone());
    run.until(chooser(1), |run| !run.a.completions.is_empty());
    assert_eq!(run.a.completions[0].status, Status::RetryExceeded);
    assert!(run.now >= 500_000, "gave up after {} us", run.now);
}

#[test]
fn unit_a_wrapped_message_number_is_in_order() {
    use tbrdma_proto::rc::msn_before;
    assert!(msn_before(u32::MAX, 0));
    assert!(!msn_before(0, u32::MAX));
    assert!(!msn_before(5, 5));
}

#[test]
fn unit_rnr_timer_table_is_ibta_table_46() {
    use tbrdma_proto::rc::rnr_timer_us;
    assert_eq!(rnr_timer_us(0), 655_360);
    assert_eq!(rnr_timer_us(1), 10);
    assert_eq!(rnr_timer_us(12), 640);
    assert_eq!(rnr_timer_us(31), 491_520);
}

/// The only frame of a SEND of no bytes, whose extension says `key`.
fn send_of_nothing(imm: bool, inv: bool, ext: &[u8]) -> Delivery<'_> {
    Delivery {
        kind: Kind::Send,
        msn: 0,
        offset: 0,
        len: 0,
        first: true,
        last: true,
        imm,
        inv,
        solicited: false,
        ack_req: true,
        ext,
    }
}

#[test]
fn unit_a_key_to_invalidate_is_told_before_the_message_ends() {
    let wqe = Wqe::new(Op::SendInv, WqeFlags::default(), 0, 0, 0, 99);
    let mut requester = Requester::new(config());
    let mut ring = [Wqe::default(); 2];
    assert!(requester.post(&mut ring, wqe).is_ok());
    let Next::Frame(segment) = requester.next(&ring, 0, ROOM) else {
        panic!("something to send");
    };
    let header = ring[0].header(&segment, 1).expect("not local");
    assert!(header.inv && !header.imm);
    let ext = ring[0].extension(&segment, 1);
    let frame = Delivery::new(&header, ext.bytes(), &[]).expect("a request");
    let mut responder = Responder::new(4, 1);
    let step = responder.on_frame(&frame, true);
    assert_eq!(
        step,
        Step::Receive {
            total: 0,
            offset: 0
        }
    );
    assert_eq!(responder.invalidates(&frame), Some(99));
    let placed = Placed::Receive {
        total: 0,
        imm: None,
        inv: Some(99),
        write: false,
        solicited: false,
    };
    assert_eq!(responder.placed(&frame), placed);
    assert_eq!(responder.invalidates(&frame), None);
}

#[test]
fn unit_immediate_data_and_a_key_to_invalidate_exclude_each_other() {
    let ext = SendExt {
        total: 0,
        imm: 99,
        sqpn: 1,
        skip: 0,
    }
    .emit();
    for (imm, inv) in [(true, false), (false, true), (true, true)] {
        let mut responder = Responder::new(4, 1);
        let step = responder.on_frame(&send_of_nothing(imm, inv, &ext), true);
        assert_eq!(step == Step::Answer, imm && inv);
        assert_eq!(responder.is_dead(), imm && inv);
    }
    // Only a SEND invalidates.
    let ext = RethExt {
        raddr: 0,
        rkey: 1,
        total: 0,
        imm: 99,
        sqpn: 1,
        skip: 0,
    }
    .emit();
    for kind in [Kind::Write, Kind::Read] {
        let mut responder = Responder::new(4, 1);
        let frame = Delivery {
            kind,
            ..send_of_nothing(false, true, &ext)
        };
        assert_eq!(responder.on_frame(&frame, true), Step::Answer);
        let entry = responder.take_ack(1).expect("a refusal");
        assert_eq!(entry.syndrome, Syndrome::Nak(NakCode::InvalidRequest));
    }
}
