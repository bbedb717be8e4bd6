//! One end of a connection, driven as the kernel module does it.

use super::plan::{execute_atomic, initial_memory, takes_receive, Message, Received, KEY, RECEIVE};
use super::sim::{Frame, Upper};
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use tbrdma_proto::frame::{Header, Opcode};
use tbrdma_proto::rc::{
    AckEntries, AckEntry, Completion, Config, Delivery, Due, NakCode, Next, Placed, PostError,
    Requester, Responder, Response, Segment, Status, Step, Syndrome, Wqe, ACK_ENTRY_LEN,
};

/// Payload room of a frame; small, so that short messages have several frames.
const ROOM: u32 = 64;
const SQ: usize = 16;

const CONFIG: Config = Config {
    reliable: true,
    max_reads: 2,
    rnr_retry: 7,
    not_ready_limit_us: None,
};

/// Messages that were executed; shared with the other end, to compare.
pub type Log = Rc<RefCell<BTreeSet<u32>>>;

/// When the program posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// As much as there is room for.
    Stream,
    /// The next message when the one before is complete.
    OneByOne,
    /// A message, and the next for every one that comes.
    Ping,
    /// A message for every one that comes.
    Pong,
}

/// One end: a requester with its sends, and a responder with its memory and receives.
pub struct Qp {
    requester: Requester,
    ring: Vec<Wqe>,
    /// Data of each entry: what is sent, or where a READ lands.
    data: Vec<Vec<u8>>,
    pub plan: Vec<Message>,
    posted: usize,
    pub completions: Vec<Completion>,
    /// What READs and atomics brought, with their numbers.
    pub answers: Vec<(u32, Vec<u8>)>,
    pub responder: Responder,
    pub memory: Vec<u8>,
    receives: VecDeque<Vec<u8>>,
    pub received: Vec<Received>,
    /// Messages of the other end that consume a receive.
    pub to_receive: usize,
    /// A receive is posted this often, microseconds.
    receive_pause: u64,
    next_receive: u64,
    wait_until: Option<u64>,
    /// When the acknowledgement that is put off has to be sent.
    ack_at: Option<u64>,
    pub pattern: Pattern,
    /// Acknowledgements that went by themselves, and that rode on other frames.
    pub ack_frames: u64,
    pub riders: u64,
    /// Frames of requests, and refusals for lack of a receive.
    pub request_frames: u64,
    pub refusals: u64,
    /// This end tells how many receives it has.
    pub tells: bool,
    /// It has told that there are none, and tells of the next.
    told_none: bool,
    /// Messages that this end has executed for the other, and the other for this one.
    pub executed: Log,
    pub executed_there: Log,
    /// Local operations that were executed.
    locals: BTreeSet<u32>,
    /// The connection is a reliable one.
    reliable: bool,
    /// Of an unreliable one: messages of which frames came before this end was ready.
    pub missed: BTreeSet<u32>,
    /// Until then this end cannot receive: its QP is being set up.
    ready_at: u64,
    /// News that the QP is not ready. They may come late: they are not in order with the rest.
    not_ready: VecDeque<AckEntry>,
}

impl Qp {
    pub fn new(plan: Vec<Message>, other: &[Message], receive_pause: u64, ready_at: u64) -> Self {
        Self {
            requester: Requester::new(CONFIG),
            ring: vec![Wqe::default(); SQ],
            data: vec![Vec::new(); SQ],
            plan,
            posted: 0,
            completions: Vec::new(),
            answers: Vec::new(),
            responder: Responder::new(4, 1),
            memory: initial_memory(),
            receives: VecDeque::new(),
            received: Vec::new(),
            to_receive: other.iter().filter(|m| takes_receive(m.op)).count(),
            receive_pause,
            next_receive: receive_pause,
            wait_until: None,
            ack_at: None,
            pattern: Pattern::Stream,
            ack_frames: 0,
            riders: 0,
            request_frames: 0,
            refusals: 0,
            tells: true,
            told_none: false,
            executed: Log::default(),
            executed_there: Log::default(),
            locals: BTreeSet::new(),
            reliable: true,
            missed: BTreeSet::new(),
            ready_at,
            not_ready: VecDeque::new(),
        }
    }

    /// Makes the connection an unreliable one.
    pub fn unreliable(mut self) -> Self {
        self.requester = Requester::new(Config {
            reliable: false,
            ..CONFIG
        });
        self.responder = Responder::unreliable();
        self.reliable = false;
        self
    }

    /// Time has passed: receives are posted, and sends.
    fn tick(&mut self, now: u64) {
        while self.next_receive <= now {
            self.receives.push_back(vec![0; RECEIVE]);
            self.next_receive += self.receive_pause;
            if self.told_none {
                self.responder.receives_posted();
            }
        }
        while let Some(message) = self.plan.get(self.posted) {
            let waits = match self.pattern {
                Pattern::Stream => false,
                Pattern::OneByOne => self.completions.len() < self.posted,
                Pattern::Ping => self.received.len() < self.posted,
                Pattern::Pong => self.received.len() <= self.posted,
            };
            if waits {
                break;
            }
            let wqe = message.wqe(self.posted as u32);
            let slot = match self.requester.post(&mut self.ring, wqe) {
                Ok(slot) => slot,
                Err(error) => {
                    assert_eq!(error, PostError::Full);
                    break;
                }
            };
            self.data[slot] = if message.op.is_answered() {
                vec![0; message.data.len()]
            } else {
                message.data.clone()
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
            if self.ring[slot].op.is_answered() && done.status == Status::Success {
                self.answers.push((done.msn, self.data[slot].clone()));
            }
            self.completions.push(done);
        }
    }

    fn request(&mut self, segment: &Segment) -> Frame {
        let slot = segment.msn as usize % SQ;
        let wqe = self.ring[slot];
        let from = segment.offset as usize;
        Frame {
            header: wqe.header(segment, 1).expect("not local"),
            ext: wqe.extension(segment, 1).bytes().to_vec(),
            payload: self.data[slot][from..from + segment.len as usize].to_vec(),
        }
    }

    /// Receives, with the one that a message under way uses.
    fn tell(&mut self) -> Option<u32> {
        self.told_none = self.tells && self.receives.is_empty();
        self.tells.then_some(self.receives.len() as u32)
    }

    /// The acknowledgement that is owed goes along, if there is one.
    fn with_rider(&mut self, mut frame: Frame, now: u64) -> Frame {
        let rider = self.responder.rider(1);
        self.responder.frame_sent(rider.is_some(), now);
        if let Some(entry) = rider {
            let entry = entry.telling(self.tell());
            self.riders += 1;
            frame.header.rider = true;
            frame.ext.extend(entry.emit_rider());
        }
        frame
    }

    fn log(&self, msn: u32) {
        let new = self.executed.borrow_mut().insert(msn);
        assert!(new, "message {msn} was executed twice");
    }

    /// Executes a local operation, for which everything has to be done that has to be.
    fn local(&mut self, msn: u32) {
        let at = msn as usize;
        let (op, fence) = (self.plan[at].op, self.plan[at].fence);
        assert!(op.is_local());
        assert!(self.locals.insert(msn), "{msn} was executed twice");
        let there = self.executed_there.borrow();
        for (number, message) in (0..msn).zip(&self.plan) {
            // A registration waits for READs and atomics only, and for these only with a fence.
            let waits = !op.is_early() || fence && message.op.is_answered();
            let done = !self.reliable || message.op.is_local() || there.contains(&number) || !waits;
            assert!(
                done,
                "{number} is not done although it is the turn of {msn}"
            );
        }
        drop(there);
        assert!(
            !fence || op.is_early() || self.completions.len() == at,
            "the fence of {msn} did not hold"
        );
        let status = if self.plan[at].key == KEY {
            Status::Success
        } else {
            Status::LocalOperation
        };
        self.requester.local_done(&mut self.ring, msn, status);
    }

    fn execute(&mut self, frame: &Frame, now: u64) {
        let header = &frame.header;
        if now < self.ready_at {
            if !self.reliable {
                self.missed.insert(header.msn);
            } else if header.first {
                self.not_ready
                    .push_back(AckEntry::new(1, header.msn, Syndrome::NotReady));
            }
            return;
        }
        let payload = &frame.payload;
        let delivery = Delivery::new(header, &frame.ext, payload).expect("a request");
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
                if rkey == KEY {
                    self.log(header.msn);
                } else {
                    self.responder.refuse_read(NakCode::RemoteAccess);
                }
                return;
            }
            Step::Atomic { addr, rkey, op } => {
                if rkey == KEY {
                    let original = execute_atomic(&mut self.memory, addr, op);
                    self.responder.executed(original);
                    self.log(header.msn);
                } else {
                    self.responder.refuse(NakCode::RemoteAccess);
                }
                return;
            }
        }
        let invalidates = self.responder.invalidates(&delivery);
        if header.last {
            self.log(header.msn);
        }
        if let Placed::Receive {
            total,
            imm,
            inv,
            write,
            ..
        } = self.responder.placed(&delivery)
        {
            assert_eq!(invalidates, inv);
            let mut buffer = self.receives.pop_front().expect("a receive was claimed");
            buffer.truncate(if write { 0 } else { total as usize });
            self.received.push(Received {
                data: buffer,
                imm,
                inv,
            });
        }
    }
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
    fn deliver(&mut self, mut frame: Frame, now: u64) {
        self.tick(now);
        let (own, rider) = frame.header.split_rider(&frame.ext);
        if let Some(rider) = rider {
            let entry = AckEntry::parse_rider(rider).expect("sound");
            assert!(self.requester.on_ack(&self.ring, &entry, now), "{entry:?}");
        }
        frame.ext = own.to_vec();
        match frame.header.opcode {
            Opcode::QpAck => {
                assert_eq!(frame.payload.len() % ACK_ENTRY_LEN, 0);
                for entry in AckEntries::new(&frame.payload) {
                    assert!(self.requester.on_ack(&self.ring, &entry, now), "{entry:?}");
                    self.wait_until = None;
                }
            }
            opcode @ (Opcode::ReadResp | Opcode::AtomicResp) => {
                let segment = Segment::of(&frame.header, &frame.payload);
                let slot = match opcode {
                    Opcode::ReadResp => self.requester.read_slot(&self.ring, &segment),
                    _ => self.requester.atomic_slot(&self.ring, &segment),
                };
                let at = segment.offset as usize;
                let data = &mut self.data[slot.expect("it answers something")];
                data[at..at + frame.payload.len()].copy_from_slice(&frame.payload);
                self.requester.read_placed(&mut self.ring, &segment);
            }
            _ => self.execute(&frame, now),
        }
        self.advance(now);
    }

    fn want_send(&mut self, now: u64) -> Option<Frame> {
        self.advance(now);
        if let Some(response) = self.responder.next_response(ROOM) {
            self.responder.response_sent(&response);
            let frame = Frame {
                header: response.header(1),
                ext: Vec::new(),
                payload: match response {
                    Response::Read(read) => {
                        let at = read.addr as usize;
                        self.memory[at..at + read.len as usize].to_vec()
                    }
                    Response::Atomic { original, .. } => original.to_le_bytes().to_vec(),
                },
            };
            return Some(self.with_rider(frame, now));
        }
        self.ack_at = None;
        match self.responder.ack_due(now) {
            Due::At(at) if at > now => self.ack_at = Some(at),
            due => {
                if due != Due::Now {
                    self.responder.rides_not();
                }
                if let Some(entry) = self.responder.take_ack(1) {
                    let entry = entry.telling(self.tell());
                    self.refusals += u64::from(matches!(entry.syndrome, Syndrome::Rnr(_)));
                    self.ack_frames += 1;
                    return Some(ack_frame(&entry));
                }
            }
        }
        if let Some(entry) = self.not_ready.pop_front() {
            return Some(ack_frame(&entry));
        }
        loop {
            self.wait_until = None;
            match self.requester.next(&self.ring, now, ROOM) {
                Next::Frame(segment) => {
                    let mut frame = self.request(&segment);
                    let stream = self.pattern == Pattern::Stream;
                    let more = stream && self.posted < self.plan.len();
                    frame.header.ack_req = self.requester.asks(&self.ring, &segment, more);
                    self.requester.sent(&self.ring, &segment);
                    self.request_frames += 1;
                    return Some(self.with_rider(frame, now));
                }
                Next::Local(msn) => {
                    self.local(msn);
                    self.advance(now);
                }
                Next::Until(at) => {
                    self.wait_until = Some(at);
                    return None;
                }
                Next::Idle => return None,
            }
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        let post_at = self.told_none.then_some(self.next_receive);
        let times = [self.wait_until, self.ack_at, post_at];
        times.into_iter().flatten().min()
    }

    fn is_done(&self) -> bool {
        self.completions.len() == self.plan.len()
            && (!self.reliable || self.received.len() == self.to_receive)
            && !self.responder.owes_ack()
    }
}
