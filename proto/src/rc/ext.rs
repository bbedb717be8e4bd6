//! The extensions that follow the frame header of a message's first frame.

use super::super::frame::{EXT_MAX, RIDER_LEN};
use super::ack::AckEntry;
use super::atomic::AtomicExt;

/// Bytes of [`SendExt`] on the wire.
pub const SEND_EXT_LEN: usize = 16;
/// Bytes of [`RethExt`] on the wire.
pub const RETH_EXT_LEN: usize = 32;

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk::<4>()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?))
}

/// The extension of a frame, as bytes; empty unless the frame is the first of its message or has a
/// rider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ext {
    bytes: [u8; EXT_MAX],
    len: usize,
}

impl Ext {
    /// No extension.
    pub const NONE: Self = Self {
        bytes: [0; EXT_MAX],
        len: 0,
    };

    /// `ext`, of which nothing beyond [`EXT_MAX`] is kept.
    pub(super) fn of(ext: &[u8]) -> Self {
        let mut own = Self::NONE;
        for (to, from) in own.bytes.iter_mut().zip(ext) {
            *to = *from;
            own.len += 1;
        }
        own
    }

    /// The same with an acknowledgement at the end, for a frame whose header has `rider` set.
    pub fn with_rider(mut self, entry: &AckEntry) -> Self {
        let free = self.bytes.get_mut(self.len..);
        if let Some(to) = free.and_then(|free| free.first_chunk_mut::<RIDER_LEN>()) {
            *to = entry.emit_rider();
            self.len += RIDER_LEN;
        }
        self
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// First frame of a SEND.
///
/// Layout, little-endian: total length (4), immediate data or key to invalidate (4), requester's QP
/// number (4), skipped messages (4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendExt {
    /// Length of the whole message, bytes.
    pub total: u32,
    /// Immediate data, or the key that SEND_WITH_INV invalidates; zero if there is neither.
    pub imm: u32,
    /// The requester's QP number, so that even a QP that is not connected yet can answer.
    pub sqpn: u32,
    /// So many message numbers before this one belong to local operations, which have no frames.
    pub skip: u32,
}

impl SendExt {
    /// The wire form.
    pub fn emit(&self) -> [u8; SEND_EXT_LEN] {
        let mut out = [0; SEND_EXT_LEN];
        out[..4].copy_from_slice(&self.total.to_le_bytes());
        out[4..8].copy_from_slice(&self.imm.to_le_bytes());
        out[8..12].copy_from_slice(&self.sqpn.to_le_bytes());
        out[12..16].copy_from_slice(&self.skip.to_le_bytes());
        out
    }

    /// Reads the wire form; `None` if the length is wrong.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != SEND_EXT_LEN {
            return None;
        }
        Some(Self {
            total: u32_at(bytes, 0)?,
            imm: u32_at(bytes, 4)?,
            sqpn: u32_at(bytes, 8)?,
            skip: u32_at(bytes, 12)?,
        })
    }
}

/// First frame of a WRITE, and the only frame of a READ request.
///
/// Layout, little-endian: remote address (8), remote key (4), total length (4), immediate
/// data (4), requester's QP number (4), skipped messages (4), zero (4). It carries what IBTA's RETH
/// carries (IBTA 1.7, 9.3.3), and the immediate data so that the responder can claim a receive when
/// the message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RethExt {
    /// Virtual address at the responder.
    pub raddr: u64,
    /// Remote key that covers the whole range.
    pub rkey: u32,
    /// Length of the whole message, bytes.
    pub total: u32,
    /// Immediate data; zero if there is none.
    pub imm: u32,
    /// The requester's QP number.
    pub sqpn: u32,
    /// As in [`SendExt`].
    pub skip: u32,
}

impl RethExt {
    /// The wire form.
    pub fn emit(&self) -> [u8; RETH_EXT_LEN] {
        let mut out = [0; RETH_EXT_LEN];
        out[..8].copy_from_slice(&self.raddr.to_le_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_le_bytes());
        out[12..16].copy_from_slice(&self.total.to_le_bytes());
        out[16..20].copy_from_slice(&self.imm.to_le_bytes());
        out[20..24].copy_from_slice(&self.sqpn.to_le_bytes());
        out[24..28].copy_from_slice(&self.skip.to_le_bytes());
        out
    }

    /// Reads the wire form; `None` if the length is wrong or a reserved byte is set.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != RETH_EXT_LEN || bytes.iter().skip(28).any(|b| *b != 0) {
            return None;
        }
        Some(Self {
            raddr: u64_at(bytes, 0)?,
            rkey: u32_at(bytes, 8)?,
            total: u32_at(bytes, 12)?,
            imm: u32_at(bytes, 16)?,
            sqpn: u32_at(bytes, 20)?,
            skip: u32_at(bytes, 24)?,
        })
    }
}

/// The requester's QP number in the extension of a message's first frame; `None` if `ext` is not
/// such an extension or the number is out of range.
pub fn first_sqpn(kind: super::Kind, ext: &[u8]) -> Option<u32> {
    let qpn = match kind {
        super::Kind::Send => SendExt::parse(ext)?.sqpn,
        super::Kind::Write | super::Kind::Read => RethExt::parse(ext)?.sqpn,
        super::Kind::Atomic => AtomicExt::parse(ext)?.sqpn,
    };
    (qpn >> 24 == 0).then_some(qpn)
}
