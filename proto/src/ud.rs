//! Datagrams between QPs: UD and the GSI QP (IBTA 1.7, 9.8.3).
//!
//! A datagram is one frame, and nothing answers it. Its extension of 48 bytes carries what IBTA's
//! DETH and the global route header carry, little-endian but for the GIDs, which are bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | source QP number, 24 bits |
//! | 4 | 4 | Q_Key |
//! | 8 | 4 | immediate data; zero if there is none |
//! | 12 | 4 | zero |
//! | 16 | 16 | source GID |
//! | 32 | 16 | destination GID |
//!
//! The receiver's buffer begins with 40 bytes for the route header, see [`Datagram::route_header`].

use super::frame::{Header, Opcode};

/// Payload bytes of a datagram at the most. It is an MTU that IBTA knows (`IB_MTU_2048`); the next one,
/// 4096, does not fit a frame.
pub const UD_MTU: usize = 2048;
/// Bytes of the extension.
pub const UD_EXT_LEN: usize = 48;
/// Bytes of the route header in front of a received datagram.
pub const GRH_LEN: usize = 40;

/// Next header: UDP, as in every packet of RoCE v2 (IBTA 1.7, annex A17).
const UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;
/// What RoCE v2 has between the IP header and the payload, and behind it: UDP (8), BTH (12),
/// DETH (8) and ICRC (4).
const ROCE_LEN: u16 = 8 + 12 + 8 + 4;
const IMM_LEN: u16 = 4;
const IPV4_LEN: u16 = 20;

/// A global identifier, in the order of bytes that IBTA gives (IBTA 1.7, chapter 4): an IPv6 address, or
/// an IPv4 address mapped into one.
pub type Gid = [u8; 16];

/// The IPv4 address in a GID; `None` if it is no mapped one (RFC 4291, 2.5.5.2).
pub fn ipv4_of(gid: &Gid) -> Option<[u8; 4]> {
    match *gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
        _ => None,
    }
}

/// What a datagram says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Destination QP number, 24 bits, not 0: Ethernet ports have no subnet management.
    pub dqpn: u32,
    /// Source QP number, 24 bits, not 0 and not the multicast number.
    pub sqpn: u32,
    /// To be compared with the destination QP's; the receiver drops what differs.
    pub qkey: u32,
    /// Immediate data, carried as it is.
    pub imm: Option<u32>,
    /// The receiver's completion raises a solicited event.
    pub solicited: bool,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
}

/// Why a frame is no datagram, or why none can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramError {
    /// More than [`UD_MTU`] bytes of payload.
    Length,
    /// A QP number that cannot be.
    Qpn,
    /// A source GID that is zero or of a group, or a destination GID that is zero.
    Gid,
    /// The header says what no datagram's does, the extension has another length, or what has to be
    /// zero is not.
    Malformed,
}

/// The number that stands for all QPs of a multicast group (IBTA 1.7, 10.5).
const MULTICAST_QPN: u32 = 0x00ff_ffff;
const MULTICAST_PREFIX: u8 = 0xff;

fn word(ext: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*ext.get(at..)?.first_chunk::<4>()?))
}

fn gid(ext: &[u8], at: usize) -> Option<Gid> {
    ext.get(at..)?.first_chunk::<16>().copied()
}

impl Datagram {
    /// Header and extension of the frame with `len` bytes of payload; the rail's fields are not set.
    pub fn emit(&self, len: usize) -> Result<(Header, [u8; UD_EXT_LEN]), DatagramError> {
        self.check(len)?;
        let header = Header {
            opcode: Opcode::Datagram,
            first: true,
            last: true,
            solicited: self.solicited,
            imm: self.imm.is_some(),
            dqpn: self.dqpn,
            ..Header::default()
        };
        let mut ext = [0; UD_EXT_LEN];
        ext[..4].copy_from_slice(&self.sqpn.to_le_bytes());
        ext[4..8].copy_from_slice(&self.qkey.to_le_bytes());
        ext[8..12].copy_from_slice(&self.imm.unwrap_or(0).to_le_bytes());
        ext[16..32].copy_from_slice(&self.sgid);
        ext[32..].copy_from_slice(&self.dgid);
        Ok((header, ext))
    }

    /// Reads header and extension of a frame with `len` bytes of payload.
    pub fn parse(header: &Header, ext: &[u8], len: usize) -> Result<Self, DatagramError> {
        use DatagramError::Malformed;
        let whole = header.first && header.last && header.offset == 0 && header.msn == 0;
        if header.opcode != Opcode::Datagram || !whole || header.inv || ext.len() != UD_EXT_LEN {
            return Err(Malformed);
        }
        let imm = word(ext, 8).ok_or(Malformed)?;
        if word(ext, 12) != Some(0) || !header.imm && imm != 0 {
            return Err(Malformed);
        }
        let datagram = Self {
            dqpn: header.dqpn,
            sqpn: word(ext, 0).ok_or(Malformed)?,
            qkey: word(ext, 4).ok_or(Malformed)?,
            imm: header.imm.then_some(imm),
            solicited: header.solicited,
            sgid: gid(ext, 16).ok_or(Malformed)?,
            dgid: gid(ext, 32).ok_or(Malformed)?,
        };
        datagram.check(len)?;
        Ok(datagram)
    }

    fn check(&self, len: usize) -> Result<(), DatagramError> {
        if len > UD_MTU {
            return Err(DatagramError::Length);
        }
        let destination = matches!(self.dqpn, 1..=MULTICAST_QPN);
        let source = self.sqpn > 0 && self.sqpn < MULTICAST_QPN;
        if !destination || !source {
            return Err(DatagramError::Qpn);
        }
        let [prefix, ..] = self.sgid;
        if self.sgid == [0; 16] || self.dgid == [0; 16] || prefix == MULTICAST_PREFIX {
            return Err(DatagramError::Gid);
        }
        Ok(())
    }

    /// The 40 bytes in front of the payload in the receiver's buffer, of a datagram of `len` bytes of
    /// payload: what the datagram's IP header would be on a RoCE v2 network.
    ///
    /// Between IPv6 addresses it is the global route header (IBTA 1.7, table 8.3), which is an IPv6
    /// header. If both GIDs are mapped IPv4 addresses it is 20 zero bytes and an IPv4 header
    /// (RFC 791), as RoCE v2 devices place it; consumers tell the two apart by the version in the
    /// first byte and by the checksum of the IPv4 header.
    pub fn route_header(&self, len: usize) -> [u8; GRH_LEN] {
        // Fits: a datagram is at most UD_MTU long. The payload is padded to 4 bytes.
        let payload = u16::try_from(len.min(UD_MTU).next_multiple_of(4)).unwrap_or(0);
        let imm = if self.imm.is_some() { IMM_LEN } else { 0 };
        let behind_ip = ROCE_LEN + imm + payload;
        let mut out = [0; GRH_LEN];
        if let (Some(from), Some(to)) = (ipv4_of(&self.sgid), ipv4_of(&self.dgid)) {
            let header = ipv4_header(IPV4_LEN + behind_ip, from, to);
            out[GRH_LEN - header.len()..].copy_from_slice(&header);
            return out;
        }
        // Version 6; traffic class and flow label are zero.
        out[0] = 6 << 4;
        out[4..6].copy_from_slice(&behind_ip.to_be_bytes());
        out[6] = UDP;
        out[7] = HOP_LIMIT;
        out[8..24].copy_from_slice(&self.sgid);
        out[24..].copy_from_slice(&self.dgid);
        out
    }
}

/// An IPv4 header without options, with its checksum (RFC 791, 3.1).
fn ipv4_header(total: u16, from: [u8; 4], to: [u8; 4]) -> [u8; 20] {
    let mut out = [0; 20];
    // Version 4, five words; type of service zero.
    out[0] = 4 << 4 | 5;
    out[2..4].copy_from_slice(&total.to_be_bytes());
    // Identification zero, not to be fragmented.
    out[6] = 1 << 6;
    out[8] = HOP_LIMIT;
    out[9] = UDP;
    out[12..16].copy_from_slice(&from);
    out[16..].copy_from_slice(&to);
    let check = internet_checksum(&out);
    out[10..12].copy_from_slice(&check.to_be_bytes());
    out
}

/// The ones' complement of the sum of 16-bit words with end-around carry (RFC 1071).
fn internet_checksum(bytes: &[u8; 20]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks_exact(2) {
        if let [high, low] = *pair {
            sum += u32::from(u16::from_be_bytes([high, low]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
