//! A program that writes anything into its send queue.

use super::Bytes;
use tbrdma_proto::frame::FRAME_MAX;
use tbrdma_proto::rc::{
    Config, Next, Op, PostError, Requester, Status, UserSend, Wqe, ATOMIC_LEN, MAX_MESSAGE,
};

/// Requests of a program, as the kernel takes them over: each gets an entry, nothing beyond the
/// limits gets frames, and what makes no sense fails in its turn.
pub fn send(data: &[u8]) {
    let mut bytes = Bytes(data);
    let traits = bytes.u8();
    let reliable = traits & 1 != 0;
    let mut requester = Requester::new(Config {
        reliable,
        max_reads: u16::from(traits >> 1 & 3),
        rnr_retry: 7,
        not_ready_limit_us: None,
    });
    let mut ring = [Wqe::default(); 4];
    let mut bad = [false; 4];
    while !bytes.is_empty() {
        let raw = UserSend {
            // Mostly one that exists.
            opcode: if bytes.u8() == 0 {
                bytes.u32()
            } else {
                u32::from(bytes.u8() % 12)
            },
            flags: u16::from(bytes.u8()),
            num_sge: bytes.u32(),
            inline_len: u32::from(bytes.u8()),
            imm: 1,
            raddr: u64::from(bytes.u32()) << 32,
            rkey: 2,
            compare_add: 3,
            swap: 4,
        };
        let signal_all = bytes.u8() & 1 != 0;
        let request = raw.read(signal_all, |op| {
            !op.is_local() && (reliable || !op.is_answered())
        });
        let count = if request.inline {
            raw.inline_len
        } else {
            raw.num_sge
        };
        assert_eq!(request.count, count);
        // What the elements say together.
        let len = match bytes.u8() % 4 {
            0 => u64::from(bytes.u32()) << (bytes.u8() % 33),
            1 => u64::from(ATOMIC_LEN),
            _ => u64::from(bytes.u32() % 20_000),
        };
        let len = if request.inline {
            u64::from(count)
        } else {
            len
        };
        let wqe = request.wqe(len);
        if let Some(wqe) = &wqe {
            assert_eq!(Op::of_verbs(raw.opcode), Some(wqe.op));
            assert!(u64::from(wqe.len) == len && wqe.len <= MAX_MESSAGE);
            assert!(!wqe.op.is_local() && (reliable || !wqe.op.is_answered()));
            assert!(!(request.inline && wqe.op.is_answered()));
        }
        let before = requester.outstanding();
        let mut fails = wqe.is_none();
        let mut posted = requester.post(&mut ring, wqe.unwrap_or(request.failing()));
        if posted == Err(PostError::Invalid) {
            fails = true;
            posted = requester.post(&mut ring, request.failing());
        }
        assert_eq!(posted.is_ok(), before < 4, "{posted:?}");
        if let Ok(slot) = posted {
            bad[slot] = fails;
        }
        frames(&mut requester, &ring, &bad, &mut bytes);
        if bytes.u8() % 4 == 0 {
            requester.flush();
            let mut left = requester.outstanding();
            let mut failed = 0;
            while let Some(done) = requester.complete(&ring) {
                match done.status {
                    Status::LocalOperation => failed += 1,
                    Status::Flushed | Status::Success => {}
                    other => panic!("{other:?}"),
                }
                left -= 1;
            }
            assert!(left == 0 && failed <= 1, "{left} {failed}");
            requester = Requester::new(Config {
                reliable,
                max_reads: 2,
                rnr_retry: 7,
                not_ready_limit_us: None,
            });
        }
    }
}

/// What goes out of them fits frames, and is read by the other end as it was meant. Nothing goes out after one that
/// makes no sense.
fn frames(requester: &mut Requester, ring: &[Wqe], bad: &[bool; 4], bytes: &mut Bytes<'_>) {
    for _ in 0..bytes.u8() % 16 {
        let Next::Frame(segment) = requester.next(ring, 0, 4064) else {
            return;
        };
        let slot = segment.msn as usize % ring.len();
        if bad[slot] {
            requester.fail(segment.msn, Status::LocalOperation);
            assert_eq!(requester.next(ring, 0, 4064), Next::Idle);
            return;
        }
        let wqe = &ring[slot];
        let header = wqe.header(&segment, 7).expect("a message has frames");
        let ext = wqe.extension(&segment, 5);
        assert!(segment.offset + segment.len <= wqe.len);
        let mut frame = [0; FRAME_MAX];
        let payload = segment.len as usize;
        let at = header.emit(ext.bytes(), payload, &mut frame).expect("fits");
        let whole = frame.get(..at + payload).expect("a frame's length");
        let (read, read_ext, read_payload) =
            tbrdma_proto::frame::Header::parse(whole).expect("the other end understands it");
        assert_eq!((read, read_ext), (header, ext.bytes()));
        assert_eq!(read_payload.len(), payload);
        requester.sent(ring, &segment);
    }
}
