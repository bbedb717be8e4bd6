//! QPs of connections whose other end says anything.

use super::Bytes;
use std::collections::BTreeSet;
use tbrdma_proto::rc::{
    msn_before, AckEntry, Config as QpConfig, Delivery, Kind, NakCode, Next, Op, PostError,
    Requester, Responder, Response, Segment, Status, Step, Wqe, WqeFlags, ACK_ENTRY_LEN,
    ATOMIC_EXT_LEN, MAX_MESSAGE, RETH_EXT_LEN, SEND_EXT_LEN,
};

/// A QP of a reliable connection whose other end says anything.
pub fn rc(data: &[u8]) {
    qp(data, true);
}

/// A QP of an unreliable connection whose other end says anything.
pub fn uc(data: &[u8]) {
    qp(data, false);
}

fn qp(data: &[u8], reliable: bool) {
    let mut bytes = Bytes(data);
    let mut victim = Victim {
        responder: if reliable {
            Responder::new(4, 1)
        } else {
            Responder::unreliable()
        },
        reliable,
        placed: 0,
        range: None,
        executed: BTreeSet::new(),
    };
    let mut sends = Sends::new(reliable);
    while !bytes.is_empty() {
        match bytes.u8() % 4 {
            0 => sends.step(&mut bytes),
            1 => sends.answer(&mut bytes),
            _ => request(&mut victim, &mut bytes),
        }
    }
}

struct Victim {
    responder: Responder,
    reliable: bool,
    /// Bytes of the message under way that are in their place.
    placed: u32,
    /// What the WRITE under way may touch.
    range: Option<(u64, u64)>,
    /// Atomics that were executed.
    executed: BTreeSet<u32>,
}

/// One frame of a request.
fn request(victim: &mut Victim, bytes: &mut Bytes<'_>) {
    let Victim {
        responder,
        reliable,
        placed,
        range,
        executed,
    } = victim;
    let kinds = [Kind::Send, Kind::Write, Kind::Read, Kind::Atomic];
    let kind = kinds[usize::from(bytes.u8() % 4)];
    let flags = bytes.u8();
    let first = flags & 1 != 0;
    let ext_len = match kind {
        _ if !first => 0,
        Kind::Send => SEND_EXT_LEN,
        Kind::Write | Kind::Read => RETH_EXT_LEN,
        Kind::Atomic => ATOMIC_EXT_LEN,
    };
    // Total length and reserved bytes are where a message is most easily refused.
    let mut ext = bytes.take(ext_len).to_vec();
    ext.resize(ext_len, 0);
    if first && flags & 2 != 0 {
        let zeros = match kind {
            Kind::Send => [1..4, 13..16],
            Kind::Write | Kind::Read => [13..16, 25..32],
            Kind::Atomic => {
                ext[32] %= 3;
                [0..1, 33..48]
            }
        };
        for range in zeros {
            ext[range].fill(0);
        }
    }
    let frame = Delivery {
        kind,
        msn: u32::from(bytes.u8() % 8),
        offset: if first { 0 } else { u32::from(bytes.u8()) },
        len: u32::from(bytes.u8()),
        first,
        last: flags & 4 != 0,
        imm: flags & 8 != 0,
        inv: flags & 128 != 0,
        solicited: flags & 16 != 0,
        ack_req: flags & 64 != 0,
        ext: &ext,
    };
    let len = u64::from(frame.len);
    let step = responder.on_frame(&frame, flags & 32 != 0);
    if matches!(step, Step::Receive { .. } | Step::Write { .. }) {
        if first {
            *placed = 0;
        }
        assert_eq!(frame.offset, *placed, "a hole");
        *placed += frame.len;
    }
    match step {
        Step::Receive { total, offset } => {
            assert!(total <= MAX_MESSAGE && u64::from(offset) + len <= u64::from(total));
            responder.placed(&frame);
        }
        Step::Write { addr, whole, .. } => {
            if let Some((from, total)) = whole {
                assert!(total <= MAX_MESSAGE);
                *range = Some((from, from.checked_add(u64::from(total)).expect("no wrap")));
            }
            let (from, end) = range.expect("the range was told with the first frame");
            assert!(addr >= from && addr.checked_add(len).is_some_and(|to| to <= end));
            responder.placed(&frame);
        }
        Step::Read { addr, total, .. } => {
            assert!(total <= MAX_MESSAGE && addr.checked_add(u64::from(total)).is_some());
            if flags & 64 != 0 {
                responder.refuse_read(NakCode::RemoteAccess);
            }
        }
        Step::Atomic { addr, .. } => {
            assert!(addr % 8 == 0 && addr.checked_add(8).is_some());
            if flags & 64 != 0 {
                responder.refuse(NakCode::RemoteAccess);
            } else {
                assert!(executed.insert(frame.msn), "executed twice");
                responder.executed(u64::from(frame.msn));
            }
        }
        Step::Answer | Step::Drop => {}
    }
    if !*reliable {
        let silent = matches!(step, Step::Receive { .. } | Step::Write { .. } | Step::Drop);
        assert!(silent && !responder.owes_ack() && !responder.is_dead());
        assert_eq!(responder.next_response(64), None);
        assert!(responder.take_dropped() <= 2);
    }
    if let Some(response) = responder.next_response(64) {
        assert!(response.payload_len() <= 64);
        if let Response::Atomic { msn, original } = response {
            assert_eq!(u64::from(msn), original);
        }
        responder.response_sent(&response);
    }
    if let Some(entry) = responder.take_ack(5) {
        assert_eq!(AckEntry::parse(&entry.emit()), Some(entry));
    }
}

struct Sends {
    reliable: bool,
    requester: Requester,
    ring: [Wqe; 4],
    now: u64,
    /// Local operations that were executed.
    locals: BTreeSet<u32>,
    /// Messages before this one were at least begun.
    sent: u32,
    completed: u32,
}

impl Sends {
    fn new(reliable: bool) -> Self {
        Self {
            reliable,
            requester: Requester::new(QpConfig {
                reliable,
                max_reads: 2,
                rnr_retry: 3,
                not_ready_limit_us: Some(100_000),
            }),
            ring: [Wqe::default(); 4],
            now: 0,
            locals: BTreeSet::new(),
            sent: 0,
            completed: 0,
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        self.now += u64::from(bytes.u8()) * 100;
        let ops = [
            Op::Send,
            Op::Write,
            Op::Read,
            Op::FetchAdd,
            Op::LocalInv,
            Op::RegMr,
        ];
        let op = ops[usize::from(bytes.u8()) % ops.len()];
        let len = match op {
            Op::FetchAdd => 8,
            _ => u32::from(bytes.u8()),
        };
        let wqe = Wqe::new(op, WqeFlags::default(), len, 0, 1, 0);
        let posted = self.requester.post(&mut self.ring, wqe);
        let valid = self.reliable || !op.is_answered();
        assert_eq!(posted == Err(PostError::Invalid), !valid);
        for _ in 0..bytes.u8() % 8 {
            let msn = match self.requester.next(&self.ring, self.now, 64) {
                Next::Frame(segment) => {
                    self.requester.sent(&self.ring, &segment);
                    segment.msn
                }
                Next::Local(msn) => {
                    assert!(self.locals.insert(msn), "executed twice");
                    self.requester
                        .local_done(&mut self.ring, msn, Status::Success);
                    msn
                }
                _ => break,
            };
            let end = msn.wrapping_add(1);
            if msn_before(self.sent, end) {
                self.sent = end;
            }
        }
        self.complete();
    }

    fn answer(&mut self, bytes: &mut Bytes<'_>) {
        let msn = bytes.near(self.completed);
        if bytes.u8() % 2 == 0 {
            let segment = Segment {
                msn,
                offset: u32::from(bytes.u8()) & !63,
                len: u32::from(bytes.u8() % 65) & !7,
                first: bytes.u8() % 2 == 0,
                last: bytes.u8() % 2 == 0,
            };
            if let Some(slot) = self.requester.atomic_slot(&self.ring, &segment) {
                assert!(self.ring[slot].op.is_atomic() && segment.len == 8);
                self.requester.read_placed(&mut self.ring, &segment);
                assert_eq!(self.requester.atomic_slot(&self.ring, &segment), None);
            }
            if let Some(slot) = self.requester.read_slot(&self.ring, &segment) {
                let wqe = &self.ring[slot];
                assert_eq!(wqe.op, Op::Read);
                assert!(segment.offset + segment.len <= wqe.len);
                self.requester.read_placed(&mut self.ring, &segment);
            }
        } else {
            let mut raw = [0; ACK_ENTRY_LEN];
            raw[4..8].copy_from_slice(&msn.to_le_bytes());
            // Mostly news that let the QP live.
            raw[8] = [0, 0, 0, 1, 1, 2, 2, 3][usize::from(bytes.u8() % 8)];
            raw[9] = if raw[8] == 1 || raw[8] == 3 {
                bytes.u8() % 5
            } else {
                0
            };
            // Mostly few receives; 255 and 255 say nothing of them.
            raw[10] = bytes.u8();
            raw[11] = [0, 0, 0, 255][usize::from(bytes.u8() % 4)];
            if let Some(entry) = AckEntry::parse(&raw) {
                let heard = self.requester.on_ack(&self.ring, &entry, self.now);
                assert!(self.reliable || !heard);
            }
        }
        self.complete();
    }

    fn complete(&mut self) {
        while let Some(done) = self.requester.complete(&self.ring) {
            assert_eq!(
                done.msn, self.completed,
                "completions are in the order of posting"
            );
            self.completed = self.completed.wrapping_add(1);
            if done.status == Status::Success {
                let sent = !msn_before(self.sent, self.completed);
                assert!(sent, "{} was not even sent", done.msn);
            }
        }
    }
}
