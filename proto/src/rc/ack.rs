//! Acknowledgements between QPs: the payload of a QP_ACK frame.
//!
//! One frame carries the news of many QPs, so that a busy link needs one frame per receive batch
//! and not one per message. A single entry may also ride on a frame of a message.

use super::super::frame::RIDER_LEN;

/// Bytes of one entry on the wire.
pub const ACK_ENTRY_LEN: usize = 12;

/// As many receives as can be told; more are told as so many.
pub const RECEIVES_MAX: u16 = NOT_TOLD - 1;

/// What stands for the number of receives if it is not told.
const NOT_TOLD: u16 = u16::MAX;

/// Why a responder refused a message for good (IBTA 1.7, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// The request was malformed, out of order, too long for the receive, or not allowed.
    InvalidRequest,
    /// Key, bounds or permissions of the remote memory do not allow the access.
    RemoteAccess,
    /// The responder failed by itself, for example its receive named invalid memory.
    RemoteOperational,
    /// There is no such QP any more, or it is in the error state.
    Gone,
}

/// What a responder says about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Every message before the entry's MSN is done.
    Ack,
    /// No receive was posted for the entry's MSN; earlier ones are done. Carries the IBTA timer
    /// code (0 to 31) after which the requester may try again.
    Rnr(u8),
    /// The QP cannot receive yet; nothing was executed by this answer.
    NotReady,
    /// The entry's MSN is refused for good; earlier ones are done.
    Nak(NakCode),
}

/// One QP's news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckEntry {
    /// The requester's QP number (24 bits).
    pub qpn: u32,
    /// Message number the syndrome speaks of.
    pub msn: u32,
    /// The news.
    pub syndrome: Syndrome,
    /// Receives that the responder has for messages from the MSN on (IBTA 1.7, 9.7.7.2), at most
    /// [`RECEIVES_MAX`]; `None`: it does not tell, as one with a shared queue.
    pub receives: Option<u16>,
}

impl AckEntry {
    /// News that tell nothing of receives.
    pub const fn new(qpn: u32, msn: u32, syndrome: Syndrome) -> Self {
        Self {
            qpn,
            msn,
            syndrome,
            receives: None,
        }
    }

    /// The same, and the number of receives; `None`: it is not told.
    pub fn telling(self, receives: Option<u32>) -> Self {
        let most = u32::from(RECEIVES_MAX);
        Self {
            receives: receives.map(|count| count.min(most) as u16),
            ..self
        }
    }

    /// The wire form, little-endian: QPN (4), MSN (4), kind (1), detail (1), receives (2; 65535: not
    /// told).
    pub fn emit(&self) -> [u8; ACK_ENTRY_LEN] {
        let (kind, detail) = match self.syndrome {
            Syndrome::Ack => (0, 0),
            Syndrome::Rnr(timer) => (1, timer & 31),
            Syndrome::NotReady => (2, 0),
            Syndrome::Nak(NakCode::InvalidRequest) => (3, 1),
            Syndrome::Nak(NakCode::RemoteAccess) => (3, 2),
            Syndrome::Nak(NakCode::RemoteOperational) => (3, 3),
            Syndrome::Nak(NakCode::Gone) => (3, 4),
        };
        let mut out = [0; ACK_ENTRY_LEN];
        out[..4].copy_from_slice(&self.qpn.to_le_bytes());
        out[4..8].copy_from_slice(&self.msn.to_le_bytes());
        out[8] = kind;
        out[9] = detail;
        out[10..].copy_from_slice(&self.receives.unwrap_or(NOT_TOLD).to_le_bytes());
        out
    }

    /// As a rider: the entry, then zeros.
    pub fn emit_rider(&self) -> [u8; RIDER_LEN] {
        let mut out = [0; RIDER_LEN];
        if let Some(to) = out.first_chunk_mut() {
            *to = self.emit();
        }
        out
    }

    /// Reads a rider; `None` if anything is out of range.
    pub fn parse_rider(rider: &[u8; RIDER_LEN]) -> Option<Self> {
        let (entry, rest) = rider.split_first_chunk()?;
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        Self::parse(entry)
    }

    /// Reads one entry; `None` if anything is out of range.
    pub fn parse(bytes: &[u8; ACK_ENTRY_LEN]) -> Option<Self> {
        let [q0, q1, q2, q3, m0, m1, m2, m3, kind, detail, r0, r1] = *bytes;
        let syndrome = match (kind, detail) {
            (0, 0) => Syndrome::Ack,
            (1, 0..=31) => Syndrome::Rnr(detail),
            (2, 0) => Syndrome::NotReady,
            (3, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (3, 2) => Syndrome::Nak(NakCode::RemoteAccess),
            (3, 3) => Syndrome::Nak(NakCode::RemoteOperational),
            (3, 4) => Syndrome::Nak(NakCode::Gone),
            _ => return None,
        };
        let qpn = u32::from_le_bytes([q0, q1, q2, q3]);
        if qpn >> 24 != 0 {
            return None;
        }
        Some(Self {
            qpn,
            msn: u32::from_le_bytes([m0, m1, m2, m3]),
            syndrome,
            receives: Some(u16::from_le_bytes([r0, r1])).filter(|count| *count != NOT_TOLD),
        })
    }
}

/// The entries of a QP_ACK payload; ends at the first malformed one.
pub struct AckEntries<'a> {
    rest: &'a [u8],
}

impl<'a> AckEntries<'a> {
    /// Entries of `payload`.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    /// Bytes that were not understood; empty after a well-formed payload was read to its end.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl Iterator for AckEntries<'_> {
    type Item = AckEntry;

    fn next(&mut self) -> Option<AckEntry> {
        let (first, rest) = self.rest.split_first_chunk::<ACK_ENTRY_LEN>()?;
        let entry = AckEntry::parse(first)?;
        self.rest = rest;
        Some(entry)
    }
}
