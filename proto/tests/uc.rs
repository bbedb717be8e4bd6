//! Unreliable connections: what is dropped, and that nothing of it ends.

mod sim;

use proptest::prelude::*;
use sim::Chance;
use tbrdma_proto::frame::Header;
use tbrdma_proto::rc::{
    AckEntry, AtomicOp, Config, Delivery, NakCode, Next, Op, Placed, PostError, Requester,
    Responder, SendExt, Status, Step, Syndrome, Wqe, WqeFlags,
};

const ROOM: u32 = 64;
const CONFIG: Config = Config {
    reliable: false,
    max_reads: 4,
    rnr_retry: 7,
    not_ready_limit_us: None,
};

#[derive(Clone, Debug)]
struct Frame {
    header: Header,
    ext: Vec<u8>,
    payload: Vec<u8>,
}

/// Bytes of message `msn`.
fn content(msn: u32, len: u32) -> Vec<u8> {
    (0..len).map(|i| (msn * 37 + i * 11) as u8).collect()
}

/// The frames of these messages, as a requester makes them.
fn frames(messages: &[(Op, u32)]) -> Vec<Frame> {
    let mut requester = Requester::new(CONFIG);
    let mut ring = vec![Wqe::default(); messages.len().next_power_of_two()];
    for (op, len) in messages {
        let wqe = Wqe::new(*op, WqeFlags::default(), *len, 4096, 7, 0);
        assert!(requester.post(&mut ring, wqe).is_ok());
    }
    let mut frames = Vec::new();
    while let Next::Frame(segment) = requester.next(&ring, 0, ROOM) {
        let wqe = &ring[segment.msn as usize];
        let from = segment.offset as usize;
        frames.push(Frame {
            header: wqe.header(&segment, 1).expect("not local"),
            ext: wqe.extension(&segment, 1).bytes().to_vec(),
            payload: content(segment.msn, wqe.len)[from..][..segment.len as usize].to_vec(),
        });
        requester.sent(&ring, &segment);
    }
    frames
}

/// A responder with as many receives as there are.
struct End {
    responder: Responder,
    receives: u32,
    /// The receive at the head of the queue, and what the WRITE under way put down.
    buffer: Vec<u8>,
    written: Vec<u8>,
    ended: Vec<(u32, Vec<u8>)>,
}

impl End {
    fn new(receives: u32) -> Self {
        Self {
            responder: Responder::unreliable(),
            receives,
            buffer: vec![0; 1024],
            written: vec![0; 1024],
            ended: Vec::new(),
        }
    }

    fn take(&mut self, frame: &Frame) -> Step {
        let header = &frame.header;
        let payload = &frame.payload;
        let delivery = Delivery::new(header, &frame.ext, payload).expect("a request");
        let step = self.responder.on_frame(&delivery, self.receives > 0);
        let (place, at) = match step {
            Step::Receive { offset, .. } => (&mut self.buffer, offset as usize),
            Step::Write { addr, .. } => (&mut self.written, (addr - 4096) as usize),
            Step::Drop => return step,
            other => panic!("{other:?}"),
        };
        place[at..at + payload.len()].copy_from_slice(payload);
        match self.responder.placed(&delivery) {
            Placed::More => {}
            Placed::Silent => {
                let len = at + payload.len();
                self.ended.push((header.msn, self.written[..len].to_vec()));
            }
            Placed::Receive { total, write, .. } => {
                self.receives -= 1;
                let from = if write { &self.written } else { &self.buffer };
                let len = if write {
                    at + payload.len()
                } else {
                    total as usize
                };
                self.ended.push((header.msn, from[..len].to_vec()));
            }
        }
        assert!(!self.responder.owes_ack() && !self.responder.is_dead());
        assert_eq!(self.responder.next_response(ROOM), None);
        step
    }
}

fn message() -> impl Strategy<Value = (Op, u32)> {
    let ops = [Op::Send, Op::SendImm, Op::SendInv, Op::Write, Op::WriteImm];
    (
        prop::sample::select(ops.to_vec()),
        prop_oneof![0..10u32, 0..400u32],
    )
}

/// What has to end of what is delivered: a message whose frames came one after the other with
/// nothing in between, if there was a receive for it.
fn expected(messages: &[(Op, u32)], delivered: &[&Frame], mut receives: u32) -> Vec<u32> {
    let mut expected = Vec::new();
    for (at, last) in delivered.iter().enumerate() {
        let msn = last.header.msn;
        let (op, len) = messages[msn as usize];
        let mut missing = len;
        let whole = last.header.last
            && delivered[..=at].iter().rev().any(|frame| {
                let header = &frame.header;
                let part = frame.payload.len() as u32;
                let next = header.msn == msn && header.offset + part == missing;
                missing = if next { header.offset } else { u32::MAX };
                next && header.first
            });
        let fits = !op.takes_receive() || receives > 0;
        if whole && fits {
            receives -= u32::from(op.takes_receive());
            expected.push(msn);
        }
    }
    expected
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Frames are lost, repeated and exchanged: exactly those messages end that came whole and had
    /// a receive, in order and with their bytes.
    #[test]
    fn prop_only_whole_messages_end(
        messages in prop::collection::vec(message(), 1..20),
        faults in prop_oneof![Just(0), 0..300u32],
        receives in 0..30u32,
        seed in any::<u64>(),
    ) {
        let mut chance = Chance::new(seed);
        let mut frames = frames(&messages);
        for at in 1..frames.len() {
            if chance.happens(faults / 4) {
                frames.swap(at - 1, at);
            }
        }
        let mut delivered = Vec::new();
        for frame in &frames {
            if !chance.happens(faults) {
                delivered.push(frame);
                if chance.happens(faults / 4) {
                    delivered.push(frame);
                }
            }
        }
        let mut end = End::new(receives);
        for frame in &delivered {
            end.take(frame);
        }
        let whole = |msn: u32| (msn, content(msn, messages[msn as usize].1));
        let expected: Vec<_> =
            expected(&messages, &delivered, receives).into_iter().map(whole).collect();
        prop_assert_eq!(&end.ended, &expected);
        if faults == 0 {
            let dropped = end.responder.take_dropped() as usize;
            prop_assert_eq!(dropped + expected.len(), messages.len());
        }
    }
}

#[test]
fn unit_a_message_is_done_when_its_last_frame_is_handed_over() {
    let mut requester = Requester::new(CONFIG);
    let mut ring = [Wqe::default(); 4];
    for op in [Op::Send, Op::RegMr, Op::Write] {
        let wqe = Wqe::new(op, WqeFlags::default(), 100, 0, 1, 0);
        assert!(requester.post(&mut ring, wqe).is_ok());
    }
    let mut ended = Vec::new();
    for _ in 0..6 {
        match requester.next(&ring, 0, ROOM) {
            Next::Frame(segment) => requester.sent(&ring, &segment),
            Next::Local(msn) => requester.local_done(&mut ring, msn, Status::Success),
            other => panic!("{other:?}"),
        }
        ended.push(std::iter::from_fn(|| requester.complete(&ring)).count());
        // Whatever the peer says, nothing changes.
        for syndrome in [Syndrome::Ack, Syndrome::Rnr(1), Syndrome::NotReady] {
            let entry = AckEntry::new(1, 0, syndrome);
            assert!(!requester.on_ack(&ring, &entry, 0));
        }
    }
    assert_eq!(ended, [0, 1, 1, 0, 0, 1]);
    assert_eq!(requester.next(&ring, 0, ROOM), Next::Idle);
}

#[test]
fn unit_what_has_an_answer_is_not_posted() {
    let mut requester = Requester::new(CONFIG);
    let mut ring = [Wqe::default(); 4];
    let flags = WqeFlags::default();
    let read = Wqe::new(Op::Read, flags, 8, 0, 1, 0);
    let add = Wqe::atomic(AtomicOp::FetchAdd { add: 1 }, flags, 0, 1);
    for wqe in [read, add] {
        assert_eq!(requester.post(&mut ring, wqe), Err(PostError::Invalid));
    }
}

#[test]
fn unit_a_gap_drops_the_message_and_nothing_else() {
    let frames = frames(&[(Op::Send, 200), (Op::Send, 200), (Op::Write, 10)]);
    for missing in 0..4 {
        let mut end = End::new(9);
        for (at, frame) in frames.iter().enumerate() {
            if at != missing {
                end.take(frame);
            }
        }
        let expected = [(1, content(1, 200)), (2, content(2, 10))];
        assert_eq!(end.ended, expected, "without frame {missing}");
        assert_eq!(end.receives, 8);
        assert_eq!(end.responder.take_dropped(), 1, "without frame {missing}");
    }
}

#[test]
fn unit_a_message_is_not_continued_by_another() {
    let frames = frames(&[(Op::Send, 200), (Op::Send, 200)]);
    let half = frames.len() / 2;
    assert_eq!(frames[half].header.offset, 0);
    let mut end = End::new(9);
    end.take(&frames[0]);
    // It would fit: the same kind, length and offset.
    for frame in &frames[half + 1..] {
        assert_eq!(end.take(frame), Step::Drop);
    }
    assert_eq!(end.ended, []);
    assert_eq!(end.responder.take_dropped(), 2);
}

#[test]
fn unit_a_message_without_a_receive_is_dropped_whole() {
    let frames = frames(&[(Op::WriteImm, 200), (Op::Send, 100)]);
    let mut end = End::new(0);
    for (at, frame) in frames.iter().enumerate() {
        // A receive that comes too late for the first is used by the second.
        end.receives = u32::from(at > 0);
        end.take(frame);
    }
    assert_eq!(end.ended, [(1, content(1, 100))]);
    assert_eq!(end.written, [0; 1024]);
    assert_eq!(end.responder.take_dropped(), 1);
}

#[test]
fn unit_what_is_not_allowed_is_dropped_whole() {
    let frames = frames(&[(Op::Write, 200), (Op::Send, 10)]);
    let mut end = End::new(1);
    let first = &frames[0];
    let delivery = Delivery::new(&first.header, &first.ext, &first.payload).unwrap();
    let step = end.responder.on_frame(&delivery, true);
    assert!(matches!(step, Step::Write { .. }));
    assert_eq!(end.responder.refuse(NakCode::RemoteAccess), Step::Drop);
    for frame in &frames[1..] {
        end.take(frame);
    }
    assert_eq!(end.ended, [(1, content(1, 10))]);
    assert_eq!(end.responder.take_dropped(), 1);
    assert_eq!(end.responder.take_ack(1), None);
}

#[test]
fn unit_malformed_and_answered_requests_are_dropped() {
    let good = frames(&[(Op::SendImm, 10)]).remove(0);
    let both = Header {
        inv: true,
        ..good.header
    };
    let long = SendExt {
        total: 11,
        imm: 0,
        sqpn: 1,
        skip: 0,
    };
    let read = Header {
        opcode: tbrdma_proto::frame::Opcode::ReadReq,
        imm: false,
        ..good.header
    };
    let reth = tbrdma_proto::rc::RethExt {
        raddr: 4096,
        rkey: 7,
        total: 10,
        imm: 0,
        sqpn: 1,
        skip: 0,
    };
    let bad = [
        Frame {
            header: both,
            ..good.clone()
        },
        Frame {
            ext: long.emit().to_vec(),
            ..good.clone()
        },
        Frame {
            ext: Vec::new(),
            ..good.clone()
        },
        Frame {
            header: read,
            ext: reth.emit().to_vec(),
            payload: Vec::new(),
        },
    ];
    let mut end = End::new(1);
    for (number, frame) in (0..).zip(bad) {
        let mut frame = frame;
        frame.header.msn = number;
        assert_eq!(end.take(&frame), Step::Drop);
        assert_eq!(end.responder.take_dropped(), 1);
    }
    end.take(&good);
    assert_eq!(end.ended, [(0, content(0, 10))]);
}
