//! The requester alone: news that come late, twice or at a bad time.

use tbrdma_proto::rc::{
    AckEntry, Completion, Config, NakCode, Next, Op, Requester, Segment, Status, Syndrome, Wqe,
    WqeFlags,
};

const ROOM: u32 = 64;

struct Queue {
    requester: Requester,
    ring: [Wqe; 8],
    now: u64,
}

impl Queue {
    /// A queue with an entry of 100 bytes for each operation.
    fn new(ops: &[Op]) -> Self {
        let config = Config {
            max_reads: 4,
            rnr_retry: 7,
            not_ready_limit_us: None,
        };
        let mut queue = Self {
            requester: Requester::new(config),
            ring: [Wqe::default(); 8],
            now: 0,
        };
        for op in ops {
            queue.post(Wqe::new(*op, WqeFlags::default(), 100, 0, 1, 0));
        }
        queue
    }

    fn post(&mut self, wqe: Wqe) {
        assert!(self.requester.post(&mut self.ring, wqe).is_some());
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

    fn hear(&mut self, msn: u32, syndrome: Syndrome) -> bool {
        let entry = AckEntry {
            qpn: 1,
            msn,
            syndrome,
        };
        self.requester.on_ack(&self.ring, &entry, self.now)
    }

    /// A part of the response of READ `msn`.
    fn read(&mut self, msn: u32, offset: u32, len: u32) {
        let segment = Segment {
            msn,
            offset,
            len,
            first: offset == 0,
            last: offset + len == 100,
        };
        assert!(self.requester.read_slot(&self.ring, &segment).is_some());
        self.requester.read_placed(&mut self.ring, &segment);
    }

    fn ended(&mut self) -> Vec<(u32, Status)> {
        std::iter::from_fn(|| self.requester.complete(&self.ring))
            .map(|Completion { msn, status }| (msn, status))
            .collect()
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
