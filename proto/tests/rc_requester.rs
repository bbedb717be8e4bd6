//! The requester alone: news that come late, twice or at a bad time.

mod queue;

use queue::{Queue, ROOM};
use tbrdma_proto::rc::{
    Config, NakCode, Next, Op, PostError, Requester, Segment, Status, Syndrome, Wqe, WqeFlags,
    MAX_MESSAGE,
};

impl Queue {
    /// A queue with an entry of 100 bytes for each operation, of 8 for atomics.
    fn new(ops: &[Op]) -> Self {
        Self::of(ops.iter().map(|op| {
            let len = if op.is_atomic() { 8 } else { 100 };
            Wqe::new(*op, WqeFlags::default(), len, 0, 1, 0)
        }))
    }

    /// Sends what there is to send; returns the number of the message of each frame.
    fn send(&mut self) -> Vec<u32> {
        let mut sent = Vec::new();
        while let Next::Frame(segment) = self.requester.next(&self.ring, self.now, ROOM) {
            self.requester.sent(&self.ring, &segment);
            sent.push(segment.msn);
        }
        sent
    }

    /// A part of the response of READ `msn`.
    fn read(&mut self, msn: u32, offset: u32, len: u32) {
        self.placed(&Segment {
            msn,
            offset,
            len,
            first: offset == 0,
            last: offset + len == 100,
        });
    }

    /// The response of atomic `msn`. Returns whether it was expected.
    fn fetched(&mut self, msn: u32) -> bool {
        let segment = Segment {
            msn,
            offset: 0,
            len: 8,
            first: true,
            last: true,
        };
        let expected = self.requester.atomic_slot(&self.ring, &segment);
        if expected.is_some() {
            self.requester.read_placed(&mut self.ring, &segment);
        }
        expected.is_some()
    }
}

#[test]
fn unit_a_read_is_refused_after_it_was_acknowledged() {
    let mut queue = Queue::new(&[Op::Read, Op::Send]);
    queue.send();
    assert!(queue.hear(2, Syndrome::Ack));
    queue.read(0, 0, 64);
    assert!(queue.hear(0, Syndrome::Nak(NakCode::RemoteAccess)));
    let ended = [(0, Status::RemoteAccess), (1, Status::Flushed)];
    assert_eq!(queue.ended(), ended);
}

#[test]
fn unit_what_is_done_is_not_refused() {
    let mut queue = Queue::new(&[Op::Read, Op::Send, Op::Send]);
    queue.send();
    queue.read(0, 0, 64);
    queue.read(0, 64, 36);
    assert!(queue.hear(2, Syndrome::Ack));
    for msn in [0, 1, 3, 1 << 31] {
        assert!(!queue.hear(msn, Syndrome::Nak(NakCode::RemoteAccess)));
        assert!(!queue.hear(msn, Syndrome::Rnr(1)));
    }
    assert_eq!(queue.ended(), [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn unit_a_local_failure_waits_for_what_was_sent_before() {
    let mut queue = Queue::new(&[Op::Send, Op::Send, Op::Send]);
    assert_eq!(queue.send(), [0, 0, 1, 1, 2, 2]);
    queue.requester.fail(1, Status::LocalProtection);
    assert_eq!(queue.ended(), []);
    // The first has to come again, the second must not.
    assert!(queue.hear(0, Syndrome::Rnr(1)));
    queue.now = 1_000_000;
    assert_eq!(queue.send(), [0, 0]);
    assert!(queue.hear(2, Syndrome::Ack));
    let ended = [
        (0, Status::Success),
        (1, Status::LocalProtection),
        (2, Status::Flushed),
    ];
    assert_eq!(queue.ended(), ended);
}

#[test]
fn unit_the_oldest_failure_counts() {
    let mut queue = Queue::new(&[Op::Send, Op::Write, Op::Send]);
    queue.send();
    queue.requester.fail(2, Status::LocalProtection);
    assert!(queue.hear(1, Syndrome::Nak(NakCode::RemoteAccess)));
    let ended = [
        (0, Status::Success),
        (1, Status::RemoteAccess),
        (2, Status::Flushed),
    ];
    assert_eq!(queue.ended(), ended);
}

#[test]
fn unit_late_news_of_a_qp_that_was_not_ready_do_no_harm() {
    let mut queue = Queue::new(&[Op::Read, Op::Send]);
    queue.send();
    queue.read(0, 0, 64);
    assert!(queue.hear(1, Syndrome::NotReady));
    queue.now = 1_000_000;
    assert_eq!(queue.send(), [], "nothing has to come again");
    queue.read(0, 64, 36);
    assert!(queue.hear(2, Syndrome::Ack));
    assert_eq!(queue.ended(), [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn unit_a_lost_qp_ends_what_is_open_and_nothing_else() {
    let mut queue = Queue::new(&[Op::Send]);
    queue.send();
    assert!(queue.hear(1, Syndrome::Ack));
    assert!(!queue.hear(0, Syndrome::Nak(NakCode::Gone)));
    queue.post(Wqe::new(Op::Send, WqeFlags::default(), 1, 0, 1, 0));
    assert_eq!(queue.send(), [1]);
    assert!(queue.hear(1, Syndrome::Nak(NakCode::Gone)));
    let ended = [(0, Status::Success), (1, Status::RetryExceeded)];
    assert_eq!(queue.ended(), ended);
}

#[test]
fn unit_what_takes_no_receive_does_not_lack_one() {
    let mut queue = Queue::new(&[Op::Read, Op::Write]);
    queue.send();
    assert!(!queue.hear(0, Syndrome::Rnr(1)));
    assert!(!queue.hear(1, Syndrome::Rnr(1)));
}

#[test]
fn unit_atomics_and_reads_share_a_limit() {
    let mut queue = Queue::new(&[
        Op::FetchAdd,
        Op::Read,
        Op::CmpSwap,
        Op::FetchAdd,
        Op::FetchAdd,
    ]);
    assert_eq!(queue.send(), [0, 1, 2, 3]);
    assert!(queue.hear(4, Syndrome::Ack));
    assert_eq!(queue.send(), []);
    assert!(queue.fetched(0));
    assert_eq!(queue.send(), [4]);
    assert_eq!(queue.ended(), [(0, Status::Success)]);
}

#[test]
fn unit_a_fence_waits_for_an_atomic() {
    let mut queue = Queue::new(&[Op::FetchAdd]);
    let flags = WqeFlags {
        fence: true,
        ..WqeFlags::default()
    };
    queue.post(Wqe::new(Op::Send, flags, 10, 0, 1, 0));
    assert_eq!(queue.send(), [0]);
    assert!(queue.hear(1, Syndrome::Ack));
    assert_eq!(queue.send(), []);
    assert!(queue.fetched(0));
    assert_eq!(queue.send(), [1]);
}

#[test]
fn unit_an_atomic_is_answered_once_and_by_its_own_response() {
    let mut queue = Queue::new(&[Op::FetchAdd, Op::Read]);
    assert!(!queue.fetched(0), "it was not sent");
    queue.send();
    let read = Segment {
        msn: 0,
        offset: 0,
        len: 8,
        first: true,
        last: true,
    };
    assert_eq!(queue.requester.read_slot(&queue.ring, &read), None);
    assert!(!queue.fetched(1));
    assert!(queue.fetched(0));
    assert!(!queue.fetched(0));
    assert_eq!(queue.ended(), [(0, Status::Success)]);
}

#[test]
fn unit_what_cannot_be_sent_is_not_taken() {
    let mut queue = Queue::new(&[]);
    let mut post = |wqe| queue.requester.post(&mut queue.ring, wqe);
    let flags = WqeFlags::default();
    let long = Wqe::new(Op::Write, flags, MAX_MESSAGE + 1, 0, 1, 0);
    assert_eq!(post(long), Err(PostError::Invalid));
    let odd = Wqe::new(Op::FetchAdd, flags, 4, 0, 1, 0);
    assert_eq!(post(odd), Err(PostError::Invalid));
    for slot in 0..8 {
        assert_eq!(post(Wqe::new(Op::Send, flags, 0, 0, 1, 0)), Ok(slot));
    }
    assert_eq!(
        post(Wqe::new(Op::Send, flags, 0, 0, 1, 0)),
        Err(PostError::Full)
    );
    // No READ would ever be sent.
    let mut requester = Requester::new(Config {
        reliable: true,
        max_reads: 0,
        rnr_retry: 7,
        not_ready_limit_us: None,
    });
    let read = Wqe::new(Op::Read, flags, 1, 0, 1, 0);
    assert_eq!(
        requester.post(&mut queue.ring, read),
        Err(PostError::Invalid)
    );
    requester.flush();
    assert_eq!(requester.post(&mut queue.ring, read), Ok(0));
}

#[test]
fn what_has_begun_goes_on_while_the_queue_is_drained() {
    let mut queue = Queue::new(&[Op::Send, Op::Send]);
    assert!(queue.requester.is_drained() && !queue.requester.is_resuming());
    // The first frame of two: the message has begun, and its rest is due.
    let Next::Frame(first) = queue.requester.next(&queue.ring, 0, ROOM) else {
        panic!("nothing to send");
    };
    queue.requester.sent(&queue.ring, &first);
    assert!(!first.last && queue.requester.is_resuming());
    assert!(!queue.requester.is_drained());
    let Next::Frame(last) = queue.requester.next(&queue.ring, 0, ROOM) else {
        panic!("nothing to send");
    };
    queue.requester.sent(&queue.ring, &last);
    assert!(last.last && !queue.requester.is_resuming());
    // The responder had no receive for it: once more.
    assert!(queue.hear(0, Syndrome::Rnr(1)));
    assert!(queue.requester.is_resuming() && !queue.requester.is_drained());
    queue.now = 1_000_000;
    while queue.requester.is_resuming() {
        let Next::Frame(segment) = queue.requester.next(&queue.ring, queue.now, ROOM) else {
            panic!("nothing to send");
        };
        queue.requester.sent(&queue.ring, &segment);
    }
    assert!(queue.hear(1, Syndrome::Ack));
    assert!(!queue.requester.is_drained(), "not told yet");
    assert!(queue.requester.complete(&queue.ring).is_some());
    // The second message waits, but it has not begun.
    assert!(queue.requester.is_drained() && queue.requester.outstanding() == 1);
}
