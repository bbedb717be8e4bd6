//! Connected queue pairs: the message layer above the rails.
//!
//! A rail delivers frames exactly once and in order, so this layer has no packet sequence
//! numbers, no packet acknowledgements and no packet timers. What is left of IBTA RC (IBTA 1.7,
//! chapter 9) is the message: it has a number (MSN), is executed in order, is acknowledged by the
//! responder's QP, and can be refused (RNR, NAK). The message number of a request is the index of
//! its work queue entry since the QP was connected, modulo 2^32.
//!
//! Local operations (invalidation, fast registration, binding) have numbers too, but no frames: the
//! message that follows them says how many numbers the responder has to skip.
//!
//! [`Requester`] owns the send queue's progress, [`Responder`] the receive side. Both are pure
//! state machines: they are told about frames and time and say what to place, send or complete.
//! Where bytes live is the caller's business.
//!
//! # Retry
//!
//! A message is sent again in two cases only, and both are asked for by the responder: it had no
//! receive posted (RNR), or its QP was not yet able to receive (NOT_READY, the connection being
//! set up at different speeds on the two sides). In both cases the responder throws away
//! everything up to the retried message, which the first frame of that message ends. A message
//! that arrives again although it was executed is dropped and acknowledged again: nothing, and no
//! atomic in particular, is executed twice, and what READs and atomics bring is sent once.
//!
//! So that this stays the exception the responder tells how many receives it has, and the requester
//! begins no more messages than that; see `credit`.
//!
//! # Unreliable connections
//!
//! UC is the same without answers. A message is done for the requester when its last frame was
//! handed over; one that the responder cannot receive is dropped whole. The rails lose nothing, so
//! what is dropped is what lacked a receive, was not allowed, or was under way when a rail died.

mod ack;
mod atomic;
mod credit;
mod ext;
mod incoming;
mod pace;
mod request;
mod requester;
mod responder;
mod response;
mod unreliable;
mod user;
mod wqe;

pub use ack::{AckEntries, AckEntry, NakCode, Syndrome, ACK_ENTRY_LEN, RECEIVES_MAX};
pub use atomic::{AtomicExt, AtomicOp, ATOMIC_EXT_LEN, ATOMIC_LEN};
pub use ext::{first_sqpn, Ext, RethExt, SendExt, RETH_EXT_LEN, SEND_EXT_LEN};
pub use pace::Due;
pub use request::{Delivery, Kind, Placed, Step};
pub use requester::{Config, Next, Requester};
pub use responder::Responder;
pub use response::{ReadSegment, Response, MAX_READS};
pub use user::{user_flags, UserRequest, UserSend};
pub use wqe::{Completion, Op, PostError, Segment, Status, Wqe, WqeFlags};

/// Largest message, bytes: 1 GiB, within the 2 GiB that IBTA allows (IBTA 1.7, 9.7.7).
pub const MAX_MESSAGE: u32 = 1 << 30;

/// `a` comes before `b` in the circular order of message numbers (distance below 2^31).
pub const fn msn_before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

/// What an RNR timer code stands for, microseconds (IBTA 1.7, table 46).
pub fn rnr_timer_us(code: u8) -> u64 {
    const TENS_OF_US: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let index = usize::from(code & 31);
    u64::from(TENS_OF_US.get(index).copied().unwrap_or(65536)) * 10
}
