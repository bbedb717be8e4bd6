//! Local operations: their turn, and how the responder skips their numbers.

mod queue;

use queue::{Queue, ROOM};
use tbrdma_proto::rc::{
    first_sqpn, Delivery, Kind, NakCode, Next, Op, Placed, Responder, RethExt, Segment, SendExt,
    Status, Step, Syndrome, Wqe, WqeFlags,
};

impl Queue {
    fn new(entries: &[(Op, bool)]) -> Self {
        Self::of(entries.iter().map(|&(op, fence)| {
            let flags = WqeFlags {
                fence,
                ..WqeFlags::default()
            };
            Wqe::new(op, flags, 8, 0, 1, 0)
        }))
    }

    fn next(&mut self) -> Next {
        let next = self.requester.next(&self.ring, 1_000_000, ROOM);
        if let Next::Frame(segment) = next {
            self.requester.sent(&self.ring, &segment);
        }
        next
    }

    fn sends(&mut self, msn: u32) -> bool {
        matches!(self.next(), Next::Frame(segment) if segment.msn == msn)
    }

    fn told(&mut self, msn: u32, syndrome: Syndrome) {
        assert!(self.hear(msn, syndrome));
    }

    fn done(&mut self, msn: u32, status: Status) {
        self.requester.local_done(&mut self.ring, msn, status);
    }

    fn read(&mut self, msn: u32) {
        self.placed(&Segment {
            msn,
            offset: 0,
            len: 8,
            first: true,
            last: true,
        });
    }
}

#[test]
fn unit_a_local_operation_waits_for_what_was_sent_before() {
    for op in [Op::LocalInv, Op::BindMw] {
        let mut queue = Queue::new(&[(Op::Send, false), (op, false), (Op::Send, false)]);
        // Whose turn it is not is not done.
        queue.done(1, Status::Success);
        assert!(queue.sends(0));
        queue.done(1, Status::Success);
        assert_eq!(queue.next(), Next::Idle);
        assert_eq!(queue.ended(), []);
        queue.told(1, Syndrome::Ack);
        assert_eq!(queue.next(), Next::Local(1));
        assert_eq!(queue.next(), Next::Local(1), "until it is done");
        queue.done(2, Status::Success);
        assert_eq!(queue.ended(), [(0, Status::Success)]);
        queue.done(1, Status::Success);
        queue.done(1, Status::Success);
        assert_eq!(queue.ended(), [(1, Status::Success)]);
        assert!(queue.sends(2));
        queue.told(3, Syndrome::Ack);
        assert_eq!(queue.ended(), [(2, Status::Success)]);
        assert_eq!(queue.next(), Next::Idle);
    }
}

const REGISTERING: [(Op, bool); 5] = [
    (Op::Send, false),
    (Op::RegMr, false),
    (Op::RegMr, false),
    (Op::Send, false),
    (Op::RegMr, false),
];

/// A queue of [`REGISTERING`] of which everything was sent and executed.
fn registered() -> Queue {
    let mut queue = Queue::new(&REGISTERING);
    queue.done(1, Status::Success);
    assert!(queue.sends(0), "nothing is registered before its turn");
    for msn in [1, 2] {
        assert_eq!(queue.next(), Next::Local(msn), "at once");
        assert_eq!(queue.next(), Next::Local(msn), "until it is done");
        queue.done(msn, Status::Success);
        queue.done(msn, Status::Success);
    }
    assert!(queue.sends(3));
    assert_eq!(queue.next(), Next::Local(4));
    queue.done(4, Status::Success);
    assert_eq!(queue.next(), Next::Idle);
    assert_eq!(queue.ended(), [], "they end in the order of posting");
    queue
}

#[test]
fn unit_a_registration_does_not_wait_for_acknowledgements() {
    let ok = |msn| (msn, Status::Success);
    let mut queue = registered();
    queue.told(1, Syndrome::Ack);
    assert_eq!(queue.ended(), [ok(0), ok(1), ok(2)]);
    queue.told(1, Syndrome::Ack);
    queue.told(4, Syndrome::Ack);
    assert_eq!(queue.ended(), [ok(3), ok(4)]);
    let mut queue = registered();
    queue.told(4, Syndrome::Ack);
    assert_eq!(queue.ended(), [0, 1, 2, 3, 4].map(ok));
}

#[test]
fn unit_a_registration_is_not_repeated_with_the_messages_around_it() {
    for (from, syndrome) in [(0, Syndrome::Rnr(1)), (0, Syndrome::NotReady)] {
        let mut queue = registered();
        queue.told(from, syndrome);
        assert!(queue.sends(0));
        assert!(queue.sends(3), "nothing is registered again");
        assert_eq!(queue.next(), Next::Idle);
        queue.told(4, Syndrome::Ack);
        assert_eq!(
            queue.ended(),
            [0, 1, 2, 3, 4].map(|msn| (msn, Status::Success))
        );
    }
    // The second message only.
    let mut queue = registered();
    queue.told(3, Syndrome::Rnr(1));
    assert_eq!(queue.ended(), [0, 1, 2].map(|msn| (msn, Status::Success)));
    assert!(queue.sends(3));
    assert_eq!(queue.next(), Next::Idle);
    queue.told(4, Syndrome::Ack);
    assert_eq!(queue.ended(), [3, 4].map(|msn| (msn, Status::Success)));
}

#[test]
fn unit_a_registration_is_flushed_with_the_message_that_failed_before_it() {
    let mut queue = registered();
    queue.told(0, Syndrome::Nak(NakCode::RemoteAccess));
    let mut ended = vec![(0, Status::RemoteAccess)];
    ended.extend((1..5).map(|msn| (msn, Status::Flushed)));
    assert_eq!(queue.ended(), ended);
}

/// The responder expects the number of a registration, which it knows nothing of.
#[test]
fn unit_a_refusal_that_names_a_registration_means_what_follows() {
    let mut queue = registered();
    queue.told(1, Syndrome::Nak(NakCode::InvalidRequest));
    let mut ended = vec![0, 1, 2]
        .into_iter()
        .map(|msn| (msn, Status::Success))
        .collect::<Vec<_>>();
    ended.extend([(3, Status::RemoteInvalidRequest), (4, Status::Flushed)]);
    assert_eq!(queue.ended(), ended);
}

/// Each of these numbers is up to 2^31 before what was sent. Whoever counts up from there does not come to an end.
#[test]
fn unit_a_refusal_of_what_was_never_sent_is_not_looked_for() {
    // As many as there is room for.
    let ops = [(Op::RegMr, false); 8];
    let mut queue = Queue::new(&ops);
    for msn in 0..8 {
        assert_eq!(queue.next(), Next::Local(msn));
        queue.done(msn, Status::Success);
    }
    let nak = Syndrome::Nak(NakCode::RemoteAccess);
    for far in 0..1000 {
        assert!(!queue.hear(0x8000_1000 + far, nak));
    }
}

#[test]
fn unit_an_invalidation_waits_for_what_is_before_a_registration() {
    let entries = [Op::Send, Op::RegMr, Op::LocalInv, Op::Send].map(|op| (op, false));
    let mut queue = Queue::new(&entries);
    assert!(queue.sends(0));
    assert_eq!(queue.next(), Next::Local(1));
    queue.done(1, Status::Success);
    assert_eq!(queue.next(), Next::Idle);
    queue.done(2, Status::Success);
    assert_eq!(queue.next(), Next::Idle);
    queue.told(1, Syndrome::Ack);
    assert_eq!(queue.next(), Next::Local(2));
    queue.done(2, Status::Success);
    assert!(queue.sends(3));
    queue.told(4, Syndrome::Ack);
    assert_eq!(
        queue.ended(),
        [0, 1, 2, 3].map(|msn| (msn, Status::Success))
    );
}

#[test]
fn unit_a_fenced_registration_waits_for_reads() {
    let mut queue = Queue::new(&[(Op::Read, false), (Op::RegMr, true)]);
    assert!(queue.sends(0));
    assert_eq!(queue.next(), Next::Idle);
    queue.read(0);
    assert_eq!(queue.next(), Next::Local(1));
}

#[test]
fn unit_only_a_fenced_local_operation_waits_for_reads() {
    for fence in [false, true] {
        let mut queue = Queue::new(&[(Op::Read, false), (Op::LocalInv, fence)]);
        assert!(queue.sends(0));
        queue.told(1, Syndrome::Ack);
        if fence {
            assert_eq!(queue.next(), Next::Idle);
            queue.read(0);
        }
        assert_eq!(queue.next(), Next::Local(1));
        queue.done(1, Status::Success);
        if !fence {
            assert_eq!(queue.ended(), [], "they end in the order of posting");
            queue.read(0);
        }
        assert_eq!(queue.ended(), [(0, Status::Success), (1, Status::Success)]);
    }
}

#[test]
fn unit_a_local_operation_that_fails_ends_the_queue_there() {
    let entries = [(Op::Read, false), (Op::BindMw, false), (Op::Send, false)];
    let mut queue = Queue::new(&entries);
    assert!(queue.sends(0));
    queue.told(1, Syndrome::Ack);
    assert_eq!(queue.next(), Next::Local(1));
    queue.done(1, Status::MwBind);
    assert_eq!(queue.next(), Next::Idle);
    assert_eq!(queue.ended(), []);
    queue.read(0);
    let ended = [
        (0, Status::Success),
        (1, Status::MwBind),
        (2, Status::Flushed),
    ];
    assert_eq!(queue.ended(), ended);
}

#[test]
fn unit_a_qp_that_becomes_ready_late_is_waited_for_after_local_operations() {
    let mut queue = Queue::new(&[(Op::RegMr, false), (Op::Send, false)]);
    assert_eq!(queue.next(), Next::Local(0));
    queue.done(0, Status::Success);
    assert!(queue.sends(1));
    queue.told(1, Syndrome::NotReady);
    assert!(queue.sends(1), "and no registration again");
    queue.told(2, Syndrome::Ack);
    assert_eq!(queue.ended(), [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn unit_a_flushed_queue_executes_nothing() {
    let mut queue = Queue::new(&[(Op::RegMr, false)]);
    assert_eq!(queue.next(), Next::Local(0));
    queue.requester.flush();
    queue.done(0, Status::Success);
    assert_eq!(queue.next(), Next::Idle);
    assert_eq!(queue.ended(), [(0, Status::Flushed)]);
}

#[test]
fn unit_a_message_tells_how_many_numbers_are_skipped() {
    let ops = [Op::Send, Op::LocalInv, Op::RegMr, Op::Write, Op::Send];
    let queue = Queue::new(&ops.map(|op| (op, false)));
    let first = |msn| Segment {
        msn,
        offset: 0,
        len: 8,
        first: true,
        last: true,
    };
    let ext = |msn: u32| queue.ring[msn as usize].extension(&first(msn), 1);
    let skips = [
        SendExt::parse(ext(0).bytes()).map(|ext| ext.skip),
        RethExt::parse(ext(3).bytes()).map(|ext| ext.skip),
        SendExt::parse(ext(4).bytes()).map(|ext| ext.skip),
    ];
    assert_eq!(skips, [Some(0), Some(2), Some(0)]);
    assert_eq!(first_sqpn(Kind::Write, ext(3).bytes()), Some(1));
    assert_eq!(queue.ring[1].header(&first(1), 1), None);
    assert!(ext(1).bytes().is_empty());
}

/// Part of a SEND of `total` bytes, before which `skip` numbers are skipped.
fn send(responder: &mut Responder, msn: u32, total: u32, skip: u32, posted: bool) -> Step {
    let ext = SendExt {
        total,
        imm: 0,
        sqpn: 1,
        skip,
    }
    .emit();
    let frame = Delivery {
        kind: Kind::Send,
        msn,
        offset: 0,
        len: total.min(ROOM),
        first: true,
        last: total <= ROOM,
        imm: false,
        inv: false,
        solicited: false,
        ack_req: true,
        ext: &ext,
    };
    let step = responder.on_frame(&frame, posted);
    if matches!(step, Step::Receive { .. }) {
        assert_eq!(responder.placed(&frame) == Placed::More, !frame.last);
    }
    step
}

fn told(responder: &mut Responder) -> Option<(u32, Syndrome)> {
    responder
        .take_ack(1)
        .map(|entry| (entry.msn, entry.syndrome))
}

#[test]
fn unit_the_responder_skips_what_it_is_told_to() {
    let taken = Step::Receive {
        total: 10,
        offset: 0,
    };
    let mut responder = Responder::new(4, 1);
    assert_eq!(send(&mut responder, 3, 10, 3, true), taken);
    assert_eq!(told(&mut responder), Some((4, Syndrome::Ack)));
    assert_eq!(send(&mut responder, 4, 10, 0, true), taken);
    // Refused for lack of a receive, and sent again.
    assert_eq!(send(&mut responder, 7, 10, 2, false), Step::Answer);
    assert_eq!(told(&mut responder), Some((7, Syndrome::Rnr(1))));
    assert_eq!(send(&mut responder, 8, 10, 0, true), Step::Drop);
    assert_eq!(send(&mut responder, 7, 10, 2, true), taken);
    assert_eq!(send(&mut responder, 8, 10, 0, true), taken);
    assert_eq!(told(&mut responder), Some((9, Syndrome::Ack)));
    // More is missing than it says.
    assert_eq!(send(&mut responder, 12, 10, 2, true), Step::Answer);
    let nak = Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(told(&mut responder), Some((9, nak)));
}

#[test]
fn unit_nothing_is_skipped_inside_a_message() {
    let mut responder = Responder::new(4, 1);
    let begun = Step::Receive {
        total: 100,
        offset: 0,
    };
    assert_eq!(send(&mut responder, 0, 100, 0, true), begun);
    assert_eq!(send(&mut responder, 2, 10, 2, true), Step::Answer);
    let nak = Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(told(&mut responder), Some((0, nak)));
}
