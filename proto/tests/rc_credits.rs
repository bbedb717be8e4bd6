//! The responder tells how many receives it has: the requester begins no more, and is never stuck.

mod queue;

use proptest::prelude::*;
use queue::{Queue, ROOM};
use std::collections::VecDeque;
use tbrdma_proto::rc::{
    AckEntry, Config, Delivery, Due, Next, Op, Requester, Responder, Segment, Status, Step,
    Syndrome, Wqe, WqeFlags, RECEIVES_MAX,
};

impl Queue {
    /// A queue with an entry of one frame for each operation.
    fn new(ops: &[Op]) -> Self {
        Self::of(
            ops.iter()
                .map(|op| Wqe::new(*op, WqeFlags::default(), 10, 0, 1, 0)),
        )
    }

    /// Sends what there is to send; returns the message of each frame, and whether it asks.
    fn send(&mut self) -> Vec<(u32, bool)> {
        let mut sent = Vec::new();
        while let Next::Frame(segment) = self.requester.next(&self.ring, self.now, ROOM) {
            sent.push((
                segment.msn,
                self.requester.asks(&self.ring, &segment, false),
            ));
            self.requester.sent(&self.ring, &segment);
        }
        sent
    }

    /// News come that tell of receives.
    fn told(&mut self, msn: u32, syndrome: Syndrome, receives: u32) {
        let entry = AckEntry::new(1, msn, syndrome).telling(Some(receives));
        assert!(self.requester.on_ack(&self.ring, &entry, self.now));
    }

    fn next(&mut self) -> Next {
        self.requester.next(&self.ring, self.now, ROOM)
    }
}

#[test]
fn unit_an_entry_tells_of_receives_or_does_not() {
    let entry = AckEntry::new(5, 7, Syndrome::Ack);
    for (count, read) in [
        (None, None),
        (Some(0), Some(0)),
        (Some(300), Some(300)),
        (Some(65_534), Some(RECEIVES_MAX)),
        (Some(65_535), Some(RECEIVES_MAX)),
        (Some(u32::MAX), Some(RECEIVES_MAX)),
    ] {
        let bytes = entry.telling(count).emit();
        let again = AckEntry::parse(&bytes).expect("sound");
        assert_eq!((again.receives, again.msn), (read, 7));
        assert_eq!(again.emit(), bytes);
    }
    assert_eq!(entry.emit()[10..], [255, 255]);
    assert_eq!(entry.telling(Some(0x102)).emit()[10..], [2, 1]);
}

#[test]
fn unit_nothing_is_held_back_before_anything_was_told() {
    let mut queue = Queue::new(&[Op::Send; 4]);
    let all = [(0, false), (1, true), (2, false), (3, true)];
    assert_eq!(queue.send(), all);
    // Nor by one who does not tell.
    assert!(queue.hear(2, Syndrome::Ack));
    for _ in 0..4 {
        queue.post(Wqe::new(Op::Send, WqeFlags::default(), 10, 0, 1, 0));
    }
    assert_eq!(queue.send().len(), 4);
    assert!(queue.hear(3, Syndrome::Rnr(1)));
    queue.now = 1_000_000;
    assert_eq!(queue.send().len(), 5);
}

#[test]
fn unit_no_more_begin_than_there_are_receives() {
    let mut queue = Queue::new(&[Op::Send]);
    assert_eq!(queue.send(), [(0, true)]);
    queue.told(1, Syndrome::Ack, 3);
    for op in [Op::Send, Op::Write, Op::WriteImm, Op::SendInv, Op::Send] {
        queue.post(Wqe::new(op, WqeFlags::default(), 10, 0, 1, 0));
    }
    // The WRITE needs none. News are asked for after half of the receives, and before it stops.
    let asked = [(1, true), (2, false), (3, true), (4, true)];
    assert_eq!(queue.send(), asked);
    assert_eq!(queue.next(), Next::Idle);
    // No receive was posted since.
    queue.told(3, Syndrome::Ack, 2);
    assert_eq!(queue.next(), Next::Idle);
    queue.told(3, Syndrome::Ack, 3);
    assert_eq!(queue.send(), [(5, true)]);
}

#[test]
fn unit_half_of_the_receives_is_used_before_news_are_asked_for() {
    let mut queue = Queue::new(&[Op::Send]);
    queue.send();
    queue.told(1, Syndrome::Ack, 6);
    let post = |queue: &mut Queue, count| {
        for _ in 0..count {
            queue.post(Wqe::new(Op::Send, WqeFlags::default(), 10, 0, 1, 0));
        }
    };
    queue.ended();
    post(&mut queue, 7);
    let sent = queue.send();
    // Also a quarter of the send queue, which has eight places, and the last that may begin.
    let asking: Vec<u32> = sent.iter().filter(|(_, asks)| *asks).map(|s| s.0).collect();
    assert_eq!((sent.len(), asking), (6, vec![1, 3, 5, 6]));
}

/// A queue with these entries, of which the first is sent and acknowledged.
fn begun(ops: &[Op], receives: u32) -> Queue {
    let mut queue = Queue::new(ops);
    let Next::Frame(first) = queue.next() else {
        panic!("nothing to send");
    };
    queue.requester.sent(&queue.ring, &first);
    queue.told(1, Syndrome::Ack, receives);
    queue
}

#[test]
fn unit_one_goes_as_a_probe_when_nothing_else_brings_news() {
    let mut queue = begun(&[Op::Send, Op::Send, Op::Write, Op::RegMr, Op::Send], 0);
    assert_eq!(queue.next(), Next::Until(1_000));
    queue.now = 1_000;
    // The next one, and nothing behind it, whether that takes a receive or not.
    assert_eq!(queue.send(), [(1, true)]);
    assert_eq!(queue.next(), Next::Idle);
    // It found none.
    queue.told(1, Syndrome::Rnr(1), 0);
    assert_eq!(queue.next(), Next::Until(1_010));
    queue.now = 1_010;
    assert_eq!(queue.next(), Next::Until(2_000));
    queue.now = 2_000;
    assert_eq!(queue.send(), [(1, true)]);
    assert_eq!(queue.next(), Next::Idle);
    // Now it did, and took the only one.
    queue.told(2, Syndrome::Ack, 0);
    assert_eq!(queue.send(), [(2, true)]);
    assert_eq!(queue.next(), Next::Local(3));
    queue
        .requester
        .local_done(&mut queue.ring, 3, Status::Success);
    assert_eq!(queue.next(), Next::Idle);
    // What the responder expects next is the local operation, of which it does not know.
    queue.told(3, Syndrome::Ack, 1);
    assert_eq!(queue.send(), [(4, true)]);
}

#[test]
fn unit_news_of_a_receive_end_the_waiting() {
    let mut queue = begun(&[Op::Send; 6], 0);
    assert_eq!(queue.next(), Next::Until(1_000));
    queue.told(1, Syndrome::Ack, 2);
    assert_eq!(queue.send(), [(1, true), (2, true)]);
    // Also that for the RNR timer, which here is the longest there is.
    queue.told(2, Syndrome::Rnr(0), 0);
    assert_eq!(queue.next(), Next::Until(655_360));
    queue.told(2, Syndrome::Ack, 0);
    assert_eq!(queue.next(), Next::Until(655_360), "there is none yet");
    queue.told(2, Syndrome::Ack, 1);
    assert_eq!(queue.send(), [(2, true)]);
}

#[test]
fn unit_a_refusal_tells_as_well() {
    let mut queue = Queue::new(&[Op::Send; 6]);
    assert_eq!(queue.send().len(), 6);
    // Two were posted while the refusal was made.
    queue.told(1, Syndrome::Rnr(0), 2);
    assert_eq!(queue.send(), [(1, true), (2, true)]);
    queue.told(3, Syndrome::Ack, 3);
    assert_eq!(queue.send(), [(3, true), (4, false), (5, true)]);
}

#[test]
fn unit_probes_in_vain_become_rare() {
    let mut queue = begun(&[Op::Send; 4], 0);
    let mut pauses = Vec::new();
    let mut last = 0;
    for _ in 0..9 {
        while let Next::Until(at) = queue.next() {
            queue.now = at;
        }
        assert_eq!(queue.send(), [(1, true)]);
        pauses.push(queue.now - last);
        last = queue.now;
        queue.told(1, Syndrome::Rnr(1), 0);
    }
    let ms = [1, 1, 2, 4, 8, 16, 32, 64, 64];
    assert_eq!(pauses, ms.map(|ms| ms * 1_000));
    // One that finds a receive was right not to wait longer.
    while let Next::Until(at) = queue.next() {
        queue.now = at;
    }
    queue.send();
    queue.told(2, Syndrome::Ack, 0);
    assert_eq!(queue.next(), Next::Until(queue.now + 1_000));
}

#[test]
fn unit_the_answer_to_a_read_lets_go_on() {
    for (receives, pause) in [(1, 0), (0, 1_000)] {
        let mut ops = vec![Op::Send];
        ops.extend(vec![Op::Send; receives as usize]);
        ops.extend([Op::Read, Op::Send]);
        let msn = 1 + receives;
        let mut queue = begun(&ops, 0);
        // What was told first counts no longer.
        queue.told(1, Syndrome::Ack, receives);
        queue.send();
        assert_eq!(queue.next(), Next::Idle);
        queue.placed(&Segment {
            msn,
            offset: 0,
            len: 10,
            first: true,
            last: true,
        });
        // It tells nothing of receives; what was told last still counts.
        if pause > 0 {
            assert_eq!(queue.next(), Next::Until(pause));
        }
        queue.now = pause;
        assert_eq!(queue.send(), [(msn + 1, true)]);
    }
}

/// An acknowledgement that rides may overtake one that left before.
#[test]
fn unit_late_news_take_nothing_back() {
    let mut queue = Queue::new(&[Op::Send]);
    queue.send();
    queue.told(1, Syndrome::Ack, 2);
    queue.told(1, Syndrome::Ack, 0);
    for _ in 0..3 {
        queue.post(Wqe::new(Op::Send, WqeFlags::default(), 10, 0, 1, 0));
    }
    assert_eq!(queue.send(), [(1, true), (2, true)]);
}

#[test]
fn unit_what_is_acknowledged_had_a_receive() {
    let mut queue = Queue::new(&[Op::Send, Op::Send, Op::Read]);
    queue.send();
    queue.told(1, Syndrome::Ack, 0);
    queue.placed(&Segment {
        msn: 2,
        offset: 0,
        len: 10,
        first: true,
        last: true,
    });
    for _ in 0..2 {
        queue.post(Wqe::new(Op::Write, WqeFlags::default(), 10, 0, 1, 0));
    }
    assert_eq!(queue.send(), [(3, true), (4, true)], "there is no probe");
}

/// Whatever is posted later may need a receive.
#[test]
fn unit_the_last_receive_asks_although_more_waits_to_be_posted() {
    let mut queue = Queue::new(&[Op::Send]);
    queue.send();
    queue.told(1, Syndrome::Ack, 2);
    queue.ended();
    for _ in 0..2 {
        queue.post(Wqe::new(Op::Write, WqeFlags::default(), 10, 0, 1, 0));
    }
    queue.send();
    let asked = [3, 4].map(|_| {
        queue.post(Wqe::new(Op::Send, WqeFlags::default(), 10, 0, 1, 0));
        let Next::Frame(segment) = queue.next() else {
            panic!("nothing to send");
        };
        let asks = queue.requester.asks(&queue.ring, &segment, true);
        queue.requester.sent(&queue.ring, &segment);
        asks
    });
    assert_eq!(asked, [true, true]);
}

#[test]
fn unit_probes_use_up_the_retries() {
    let mut ring = [Wqe::default(); 8];
    let mut requester = Requester::new(Config {
        reliable: true,
        max_reads: 1,
        rnr_retry: 2,
        not_ready_limit_us: None,
    });
    let wqe = Wqe::new(Op::Send, WqeFlags::default(), 1, 0, 1, 0);
    requester.post(&mut ring, wqe).unwrap();
    requester.post(&mut ring, wqe).unwrap();
    let mut sent = 0;
    let mut now = 0;
    let done = loop {
        loop {
            match requester.next(&ring, now, ROOM) {
                Next::Frame(segment) => {
                    requester.sent(&ring, &segment);
                    sent += 1;
                }
                Next::Until(at) => now = at,
                _ => break,
            }
        }
        let entry = AckEntry::new(1, 0, Syndrome::Rnr(1)).telling(Some(0));
        assert!(requester.on_ack(&ring, &entry, now));
        if let Some(done) = requester.complete(&ring) {
            break done;
        }
    };
    // Two at first, then a probe for each retry.
    assert_eq!((done.status, sent), (Status::RnrRetryExceeded, 4));
}

/// What a responder sends.
enum Back {
    News(AckEntry),
    Response(Segment),
}

/// Two ends, and what is on its way between them, in order.
struct Pair {
    ops: Vec<Op>,
    requester: Requester,
    ring: [Wqe; 8],
    posted: usize,
    completed: usize,
    responder: Responder,
    /// Receives posted and not used up, and in all.
    receives: u32,
    received: u32,
    tells: bool,
    /// What is told instead of the truth, over and over.
    lies: Vec<u16>,
    /// It tells of the next receive if it has told that there is none.
    updates: bool,
    told_none: bool,
    there: VecDeque<(Segment, bool)>,
    back: VecDeque<Back>,
    now: u64,
    /// What the requester was told: messages that are acknowledged, and how many that take a
    /// receive may begin.
    acked: u32,
    limit: Option<u32>,
    /// When it was told that there is no receive beyond these.
    told_none_at: Option<u64>,
}

impl Pair {
    fn new(ops: Vec<Op>, tells: bool) -> Self {
        Self {
            ops,
            requester: Requester::new(Config {
                reliable: true,
                max_reads: 2,
                rnr_retry: 7,
                not_ready_limit_us: None,
            }),
            ring: [Wqe::default(); 8],
            posted: 0,
            completed: 0,
            responder: Responder::new(4, 1),
            receives: 0,
            received: 0,
            tells,
            lies: Vec::new(),
            updates: true,
            told_none: false,
            there: VecDeque::new(),
            back: VecDeque::new(),
            now: 0,
            acked: 0,
            limit: None,
            told_none_at: None,
        }
    }

    fn takers(&self, msn: u32) -> u32 {
        let before = &self.ops[..msn as usize];
        before.iter().filter(|op| op.takes_receive()).count() as u32
    }

    fn post(&mut self) {
        while let Some(op) = self.ops.get(self.posted) {
            // Some have several frames.
            let len = if self.posted % 3 == 0 { 100 } else { 10 };
            let wqe = Wqe::new(*op, WqeFlags::default(), len, 0, 1, 0);
            if self.requester.post(&mut self.ring, wqe).is_err() {
                break;
            }
            self.posted += 1;
        }
    }

    /// The requester's next frame. Returns whether it had any, or did something else.
    fn send(&mut self) -> bool {
        self.post();
        match self.requester.next(&self.ring, self.now, ROOM) {
            Next::Frame(segment) => {
                if segment.first {
                    self.look(segment.msn);
                }
                let more = self.posted < self.ops.len();
                let asks = self.requester.asks(&self.ring, &segment, more);
                self.requester.sent(&self.ring, &segment);
                self.there.push_back((segment, asks));
                true
            }
            Next::Local(msn) => {
                let status = Status::Success;
                self.requester.local_done(&mut self.ring, msn, status);
                self.complete();
                true
            }
            Next::Idle | Next::Until(_) => false,
        }
    }

    /// A message may begin if there is a receive for it, or if nothing is under way and nobody has
    /// told for a while that there is none.
    fn look(&mut self, msn: u32) {
        let Some(limit) = self.limit else {
            return;
        };
        let (own, before) = (self.ops[msn as usize], self.takers(msn));
        let fits = if own.takes_receive() {
            before < limit
        } else {
            before <= limit
        };
        let under_way = &self.ops[self.acked as usize..(msn as usize).max(self.acked as usize)];
        let alone = under_way.iter().all(|op| op.is_local());
        assert!(fits || alone, "{msn} began, {limit} may and {before} did");
        let paused = self.told_none_at.is_none_or(|at| self.now - at >= 1_000);
        assert!(fits || paused, "{msn} did not wait for news");
    }

    /// The responder takes a frame.
    fn execute(&mut self) -> bool {
        let Some((segment, ack_req)) = self.there.pop_front() else {
            return false;
        };
        let wqe = self.ring[segment.msn as usize % self.ring.len()];
        let header = wqe.header(&segment, 1).expect("not local");
        let ext = wqe.extension(&segment, 1);
        let frame = Delivery {
            ack_req,
            ..Delivery::new(&header, ext.bytes(), &vec![0; segment.len as usize]).expect("request")
        };
        match self.responder.on_frame(&frame, self.receives > 0) {
            Step::Receive { .. } | Step::Write { .. } => {
                let placed = self.responder.placed(&frame);
                if matches!(placed, tbrdma_proto::rc::Placed::Receive { .. }) {
                    self.receives -= 1;
                    self.received += 1;
                }
            }
            Step::Drop | Step::Answer | Step::Read { .. } | Step::Atomic { .. } => {}
        }
        true
    }

    /// The responder sends something if it is due.
    fn answer(&mut self) -> bool {
        if let Some(response) = self.responder.next_response(ROOM) {
            let header = response.header(1);
            let payload = vec![0; response.payload_len() as usize];
            self.back
                .push_back(Back::Response(Segment::of(&header, &payload)));
            self.responder.response_sent(&response);
            return true;
        }
        match self.responder.ack_due(self.now) {
            Due::No => return false,
            Due::At(at) if at > self.now => return false,
            _ => {}
        }
        let entry = self.responder.take_ack(1).expect("it is due");
        let mut receives = self.tells.then_some(self.receives);
        self.told_none = receives == Some(0);
        if !self.lies.is_empty() {
            receives = Some(self.lies[0].into());
            self.lies.rotate_left(1);
        }
        self.back.push_back(Back::News(entry.telling(receives)));
        true
    }

    /// What the responder sent comes.
    fn hear(&mut self) -> bool {
        match self.back.pop_front() {
            None => return false,
            Some(Back::News(entry)) => {
                assert!(self.requester.on_ack(&self.ring, &entry, self.now));
                self.acked = self.acked.max(entry.msn);
                if let Some(receives) = entry.receives {
                    let limit = self.takers(entry.msn) + u32::from(receives);
                    let told = match (self.limit, entry.syndrome) {
                        (Some(old), Syndrome::Ack) => old.max(limit),
                        _ => limit,
                    };
                    assert!(told == limit || !self.lies.is_empty(), "taken back");
                    if self.limit != Some(told) || receives == 0 {
                        self.told_none_at = (receives == 0 && told == limit).then_some(self.now);
                    }
                    self.limit = Some(told);
                }
            }
            Some(Back::Response(segment)) => {
                assert!(self.requester.read_slot(&self.ring, &segment).is_some());
                self.requester.read_placed(&mut self.ring, &segment);
                if segment.last {
                    self.acked = self.acked.max(segment.msn + 1);
                }
            }
        }
        // What is acknowledged had a receive.
        let done = self.takers(self.acked);
        if self.limit.is_some_and(|limit| limit < done) {
            self.limit = Some(done);
            self.told_none_at = None;
        }
        self.complete();
        true
    }

    fn complete(&mut self) {
        while let Some(done) = self.requester.complete(&self.ring) {
            assert_eq!(done.msn as usize, self.completed);
            assert_eq!(done.status, Status::Success);
            self.completed += 1;
        }
    }

    /// A receive is posted.
    fn receive(&mut self) {
        self.receives += 1;
        if self.told_none && self.updates {
            self.responder.receives_posted();
        }
    }

    /// Takes these steps, then posts the receives that are missing.
    fn go(&mut self, steps: &[u8], pause: u64) {
        for step in steps {
            match step {
                0 | 1 => drop(self.send()),
                2 => drop(self.execute()),
                3 => drop(self.answer()),
                4 => drop(self.hear()),
                5 => self.receive(),
                _ => self.now += pause,
            }
        }
        let missing = self.takers(self.ops.len() as u32) - self.received;
        for _ in self.receives..missing {
            self.receive();
        }
    }

    /// Everything goes on until nothing is left. Returns when that is.
    fn finish(&mut self) -> u64 {
        let begun = self.now;
        while self.completed < self.ops.len() {
            let moved = [self.send(), self.execute(), self.answer(), self.hear()];
            if !moved.contains(&true) {
                self.now += 100;
                assert!(self.now - begun < 1_000_000, "stuck: {:?}", self.requester);
            }
        }
        self.now - begun
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => Just(Op::Send),
        1 => Just(Op::WriteImm),
        1 => Just(Op::SendInv),
        2 => Just(Op::Write),
        1 => Just(Op::Read),
        1 => Just(Op::LocalInv),
        1 => Just(Op::RegMr),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whenever receives are posted, and however slow each part is: no message begins that has
    /// none, but for one at a time when nothing is under way, and all come through in the end.
    #[test]
    fn prop_never_beyond_and_never_stuck(
        ops in ops(),
        tells in prop::bool::weighted(0.9),
        updates in prop::bool::weighted(0.8),
        steps in prop::collection::vec(0..7u8, 0..800),
        pause in 1..3_000u64,
    ) {
        let mut pair = Pair::new(ops, tells);
        pair.updates = updates;
        pair.go(&steps, pause);
        pair.finish();
    }

    /// Who lies is sent what he asks for, and everything comes through as long as there are
    /// receives.
    #[test]
    fn prop_lies_harm_no_more_than_their_own_connection(
        ops in ops(),
        lies in prop::collection::vec(prop_oneof![0..4u16, any::<u16>()], 1..20),
        steps in prop::collection::vec(0..7u8, 0..800),
        pause in 1..3_000u64,
    ) {
        let mut pair = Pair::new(ops, true);
        pair.lies = lies;
        // 65535 says that nothing is told.
        pair.lies.iter_mut().for_each(|lie| *lie = (*lie).min(RECEIVES_MAX));
        pair.go(&steps, pause);
        pair.finish();
    }
}
