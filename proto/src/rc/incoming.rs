//! What the frames of a request say, and the message that they make up.

use super::atomic::{AtomicExt, AtomicOp, ATOMIC_LEN};
use super::ext::{RethExt, SendExt};
use super::request::{Delivery, Kind, Placed, Step};
use super::MAX_MESSAGE;

/// The flags make sense together: immediate data and a key to invalidate share one field, only a
/// SEND invalidates, and READs and atomics carry neither.
const fn flags_fit(frame: &Delivery<'_>) -> bool {
    match frame.kind {
        Kind::Send => !(frame.imm && frame.inv),
        Kind::Write => !frame.inv,
        Kind::Read | Kind::Atomic => !frame.imm && !frame.inv,
    }
}

/// What the first frame of a request says.
pub(super) struct Begin {
    pub(super) total: u32,
    pub(super) imm: u32,
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) atomic: Option<AtomicOp>,
    pub(super) skip: u32,
}

impl Begin {
    /// `None`: the frame is malformed, or too long, or its range does not fit the address space.
    pub(super) fn parse(frame: &Delivery<'_>) -> Option<Self> {
        let begin = match frame.kind {
            Kind::Send => {
                let ext = SendExt::parse(frame.ext)?;
                Self {
                    total: ext.total,
                    imm: ext.imm,
                    addr: 0,
                    rkey: 0,
                    atomic: None,
                    skip: ext.skip,
                }
            }
            Kind::Write | Kind::Read => {
                let ext = RethExt::parse(frame.ext)?;
                Self {
                    total: ext.total,
                    imm: ext.imm,
                    addr: ext.raddr,
                    rkey: ext.rkey,
                    atomic: None,
                    skip: ext.skip,
                }
            }
            Kind::Atomic => {
                let ext = AtomicExt::parse(frame.ext)?;
                Self {
                    total: ATOMIC_LEN,
                    imm: 0,
                    addr: ext.raddr,
                    rkey: ext.rkey,
                    atomic: Some(ext.op),
                    skip: ext.skip,
                }
            }
        };
        // Bytes that the requester sends.
        let sends = match frame.kind {
            Kind::Send | Kind::Write => begin.total,
            Kind::Read | Kind::Atomic => 0,
        };
        let fits = begin.total <= MAX_MESSAGE
            && begin.addr.checked_add(u64::from(begin.total)).is_some()
            && frame.offset == 0
            && frame.len <= sends
            && frame.last == (frame.len == sends)
            && (frame.len > 0 || frame.last)
            && flags_fit(frame);
        fits.then_some(begin)
    }
}

/// The message that is being received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) kind: Kind,
    pub(super) total: u32,
    pub(super) placed: u32,
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) imm: Option<u32>,
    pub(super) inv: Option<u32>,
    pub(super) solicited: bool,
}

impl Current {
    /// The message that this first frame begins; a SEND or a WRITE.
    pub(super) fn new(frame: &Delivery<'_>, begin: &Begin) -> Self {
        Self {
            kind: frame.kind,
            total: begin.total,
            placed: 0,
            addr: begin.addr,
            rkey: begin.rkey,
            imm: frame.imm.then_some(begin.imm),
            inv: frame.inv.then_some(begin.imm),
            solicited: frame.solicited,
        }
    }

    /// The frame, which is not the first, goes on where the message is.
    pub(super) fn goes_on(&self, frame: &Delivery<'_>) -> bool {
        let end = frame.offset.checked_add(frame.len);
        self.kind == frame.kind
            && frame.offset == self.placed
            && frame.len > 0
            && frame.ext.is_empty()
            && flags_fit(frame)
            && end.is_some_and(|end| end <= self.total && frame.last == (end == self.total))
    }

    /// What to do with a frame of the message.
    pub(super) fn step(&self, frame: &Delivery<'_>) -> Step {
        match self.kind {
            Kind::Send => Step::Receive {
                total: self.total,
                offset: frame.offset,
            },
            _ => Step::Write {
                addr: self.addr.wrapping_add(u64::from(frame.offset)),
                rkey: self.rkey,
                whole: frame.first.then_some((self.addr, self.total)),
            },
        }
    }

    /// What the end of the message leads to.
    pub(super) fn placed(&self) -> Placed {
        if self.kind == Kind::Write && self.imm.is_none() {
            return Placed::Silent;
        }
        Placed::Receive {
            total: self.total,
            imm: self.imm,
            inv: self.inv,
            write: self.kind == Kind::Write,
            solicited: self.solicited,
        }
    }
}
