//! Atomic operations on 64 bits of the responder's memory (IBTA 1.7, 9.4.5).

use super::ext::{u32_at, u64_at};

/// Bytes that an atomic works on, and bytes of its response.
pub const ATOMIC_LEN: u32 = 8;
/// Bytes of [`AtomicExt`] on the wire.
pub const ATOMIC_EXT_LEN: usize = 48;

const CMP_SWAP: u8 = 1;
const FETCH_ADD: u8 = 2;

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Puts `swap` there if `compare` is there.
    CmpSwap {
        /// What has to be there.
        compare: u64,
        /// What comes there.
        swap: u64,
    },
    /// Adds `add`, modulo 2^64.
    FetchAdd {
        /// What is added.
        add: u64,
    },
}

impl AtomicOp {
    /// What is there afterwards if `original` was there before; `None` if nothing changes.
    pub const fn apply(self, original: u64) -> Option<u64> {
        match self {
            Self::CmpSwap { compare, swap } => {
                if original == compare {
                    Some(swap)
                } else {
                    None
                }
            }
            Self::FetchAdd { add } => Some(original.wrapping_add(add)),
        }
    }
}

/// The only frame of an atomic request.
///
/// Layout, little-endian: remote address (8), remote key (4), requester's QP number (4), what to
/// compare with (8, zero for FETCH_ADD), what to swap in or add (8), the operation (1; 1 is CMP_SWAP, 2
/// is FETCH_ADD), zero (3), skipped messages (4), zero (8). It carries what IBTA's AtomicETH carries (IBTA 1.7, 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicExt {
    /// Virtual address at the responder, a multiple of 8.
    pub raddr: u64,
    /// Remote key.
    pub rkey: u32,
    /// The requester's QP number.
    pub sqpn: u32,
    /// The operation.
    pub op: AtomicOp,
    /// As in [`SendExt`](super::SendExt).
    pub skip: u32,
}

impl AtomicExt {
    /// The wire form.
    pub fn emit(&self) -> [u8; ATOMIC_EXT_LEN] {
        let (kind, compare, swap_add) = match self.op {
            AtomicOp::CmpSwap { compare, swap } => (CMP_SWAP, compare, swap),
            AtomicOp::FetchAdd { add } => (FETCH_ADD, 0, add),
        };
        let mut out = [0; ATOMIC_EXT_LEN];
        out[..8].copy_from_slice(&self.raddr.to_le_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_le_bytes());
        out[12..16].copy_from_slice(&self.sqpn.to_le_bytes());
        out[16..24].copy_from_slice(&compare.to_le_bytes());
        out[24..32].copy_from_slice(&swap_add.to_le_bytes());
        out[32] = kind;
        out[36..40].copy_from_slice(&self.skip.to_le_bytes());
        out
    }

    /// Reads the wire form; `None` if the length is wrong, the operation unknown, or a reserved
    /// byte set.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let zeros = bytes.iter().skip(33).take(3).chain(bytes.iter().skip(40));
        if bytes.len() != ATOMIC_EXT_LEN || zeros.copied().any(|b| b != 0) {
            return None;
        }
        let (compare, swap_add) = (u64_at(bytes, 16)?, u64_at(bytes, 24)?);
        let op = match (*bytes.get(32)?, compare) {
            (CMP_SWAP, _) => AtomicOp::CmpSwap {
                compare,
                swap: swap_add,
            },
            (FETCH_ADD, 0) => AtomicOp::FetchAdd { add: swap_add },
            _ => return None,
        };
        Some(Self {
            raddr: u64_at(bytes, 0)?,
            rkey: u32_at(bytes, 8)?,
            sqpn: u32_at(bytes, 12)?,
            op,
            skip: u32_at(bytes, 36)?,
        })
    }
}
