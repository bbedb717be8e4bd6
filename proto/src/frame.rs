//! The frame header: what every frame on a rail begins with.
//!
//! A frame is at most [`FRAME_MAX`] bytes: a header of [`HEADER_LEN`] bytes, an extension of 0, 16,
//! 32, 48 or 64 bytes, then the payload. All numbers are little-endian.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | version, [`VERSION`] |
//! | 1 | 1 | opcode |
//! | 2 | 1 | flags: 1 last, 2 solicited, 4 immediate data, 8 invalidate, 16 first, 32 rider, 64 acknowledge |
//! | 3 | 1 | extension length: 0, 16, 32, 48 or 64 |
//! | 4 | 4 | sequence in the bundle; 0 if the frame is not sequenced |
//! | 8 | 2 | sequence on the rail |
//! | 10 | 2 | acknowledgement: the next sequence expected from the other side |
//! | 12 | 2 | credit: the other side may send sequences before this one |
//! | 14 | 2 | tag of the agreement that the frame belongs to |
//! | 16 | 4 | destination QP number, 24 bits |
//! | 20 | 4 | message number |
//! | 24 | 4 | offset of the payload in its message |
//! | 28 | 2 | payload length |
//! | 30 | 2 | check over header and extension |
//!
//! The rail counts in 32 bits and sends the lower half: no window is near 2^15, so that the other
//! side knows the upper half.
//!
//! A rider is one acknowledgement between QPs that goes along with a frame of a message: the last
//! [`RIDER_LEN`] bytes of the extension.

/// Version of this layout.
pub const VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER_LEN: usize = 32;
/// Bytes of a whole frame at the most (USB4 host interface: 4096 per descriptor).
pub const FRAME_MAX: usize = 4096;
/// Bytes of an extension at the most.
pub const EXT_MAX: usize = 64;
/// Bytes of a rider.
pub const RIDER_LEN: usize = 16;
/// Payload bytes of a frame without extension.
pub const PAYLOAD_MAX: usize = FRAME_MAX - HEADER_LEN;

const LAST: u8 = 1;
const SOLICITED: u8 = 2;
const IMM: u8 = 4;
const INV: u8 = 8;
const FIRST: u8 = 16;
const RIDER: u8 = 32;
const ACK_REQ: u8 = 64;
const FLAGS: u8 = LAST | SOLICITED | IMM | INV | FIRST | RIDER | ACK_REQ;

/// What a frame is.
///
/// Opcodes below 0x10 belong to the rail itself and have no sequence of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Acknowledgement and credit, nothing else.
    #[default]
    Ack = 0x01,
    /// Missing sequences: pairs of u32, first missing and first not missing.
    Nak = 0x02,
    /// Proof of the path: a nonce of 8 bytes, to be answered.
    Ping = 0x03,
    /// The answer to a ping, with its nonce.
    Pong = 0x04,
    /// SEND.
    Send = 0x10,
    /// RDMA WRITE.
    Write = 0x11,
    /// RDMA READ request.
    ReadReq = 0x12,
    /// RDMA READ response.
    ReadResp = 0x13,
    /// News of QPs about messages.
    QpAck = 0x14,
    /// Atomic request.
    AtomicReq = 0x15,
    /// Atomic response.
    AtomicResp = 0x16,
    /// Unreliable datagram between QPs.
    Datagram = 0x20,
    /// An Ethernet frame of the network device.
    Netdev = 0x21,
}

impl Opcode {
    const ALL: [Self; 13] = [
        Self::Ack,
        Self::Nak,
        Self::Ping,
        Self::Pong,
        Self::Send,
        Self::Write,
        Self::ReadReq,
        Self::ReadResp,
        Self::QpAck,
        Self::AtomicReq,
        Self::AtomicResp,
        Self::Datagram,
        Self::Netdev,
    ];

    fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|opcode| *opcode as u8 == raw)
    }

    /// The frame belongs to a message between connected QPs.
    pub const fn is_message(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::Write
                | Self::ReadReq
                | Self::ReadResp
                | Self::AtomicReq
                | Self::AtomicResp
        )
    }

    /// The frame has a sequence and is delivered exactly once and in order.
    pub const fn is_sequenced(self) -> bool {
        self as u8 >= 0x10
    }
}

/// Why a frame was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Shorter than its header, extension and payload, or longer than a frame may be.
    Length,
    /// Another version.
    Version,
    /// The check does not agree.
    Check,
    /// Unknown opcode.
    Opcode,
    /// Unknown flag, or a reserved bit that is set.
    Reserved,
    /// Extension of an impossible length.
    Extension,
}

impl FrameError {
    /// How many reasons there are.
    pub const COUNT: usize = 6;

    /// A stable number below [`COUNT`](Self::COUNT), for counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// A short name, for counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Version => "version",
            Self::Check => "check",
            Self::Opcode => "opcode",
            Self::Reserved => "reserved",
            Self::Extension => "extension",
        }
    }
}

/// The header's fields, without those that follow from the frame itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub opcode: Opcode,
    /// First frame of its message.
    pub first: bool,
    /// Last frame of its message.
    pub last: bool,
    /// The receiver's completion raises a solicited event.
    pub solicited: bool,
    /// The message carries immediate data.
    pub imm: bool,
    /// The message invalidates a key.
    pub inv: bool,
    /// The extension ends with an acknowledgement of [`RIDER_LEN`] bytes, see
    /// [`split_rider`](Self::split_rider). Only of frames of messages.
    pub rider: bool,
    /// The requester waits for the acknowledgement of the message (IBTA's AckReq).
    pub ack_req: bool,
    /// Sequence among the frames of all rails to the other host.
    pub bundle: u32,
    /// Sequence on the rail; of an unsequenced frame, the next one that will be used.
    pub seq: u16,
    /// The next sequence expected from the other side.
    pub ack: u16,
    /// The other side may send sequences before this one.
    pub credit: u16,
    /// Which agreement of the two ends the frame belongs to.
    pub tag: u16,
    /// Destination QP number, 24 bits.
    pub dqpn: u32,
    /// Message number.
    pub msn: u32,
    /// Offset of the payload in its message, bytes.
    pub offset: u32,
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    match bytes.get(at..).and_then(|b| b.first_chunk::<4>()) {
        Some(chunk) => u32::from_le_bytes(*chunk),
        None => 0,
    }
}

fn u16_at(bytes: &[u8; HEADER_LEN], at: usize) -> u16 {
    match bytes.get(at..).and_then(|b| b.first_chunk::<2>()) {
        Some(chunk) => u16::from_le_bytes(*chunk),
        None => 0,
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// A sum over the 16-bit words with end-around carry, as of RFC 1071, started so that zeros are
/// not right. The link has a CRC of its own: this one finds misparsing, not line noise.
fn check_of(header: &[u8], ext: &[u8]) -> u16 {
    let mut sum: u32 = 0x5444;
    let words = header
        .get(..30)
        .unwrap_or(&[])
        .chunks(2)
        .chain(ext.chunks(2));
    for (word, weight) in words.zip(1u32..) {
        let low = word.first().copied().unwrap_or(0);
        let high = word.get(1).copied().unwrap_or(0);
        // The weight tells exchanged words apart.
        sum = sum.wrapping_add(u32::from(u16::from_le_bytes([low, high])).wrapping_mul(weight));
    }
    ((sum & 0xffff) ^ (sum >> 16)) as u16
}

const fn is_ext_len(len: usize) -> bool {
    len % 16 == 0 && len <= EXT_MAX
}

impl Header {
    /// Reads a frame: header, extension, payload.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8], &[u8]), FrameError> {
        if frame.len() > FRAME_MAX {
            return Err(FrameError::Length);
        }
        let (header, rest) = frame
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(FrameError::Length)?;
        let [version, opcode, flags, ext_len, ..] = *header;
        if version != VERSION {
            return Err(FrameError::Version);
        }
        if !is_ext_len(usize::from(ext_len)) {
            return Err(FrameError::Extension);
        }
        let (ext, rest) = rest
            .split_at_checked(usize::from(ext_len))
            .ok_or(FrameError::Length)?;
        if check_of(header, ext) != u16_at(header, 30) {
            return Err(FrameError::Check);
        }
        let opcode = Opcode::from_raw(opcode).ok_or(FrameError::Opcode)?;
        let dqpn = u32_at(header, 16);
        let rider = flags & RIDER != 0;
        if flags & !FLAGS != 0 || dqpn >> 24 != 0 || rider && !opcode.is_message() {
            return Err(FrameError::Reserved);
        }
        if rider && ext.len() < RIDER_LEN {
            return Err(FrameError::Extension);
        }
        let payload = rest
            .get(..usize::from(u16_at(header, 28)))
            .ok_or(FrameError::Length)?;
        let parsed = Self {
            opcode,
            first: flags & FIRST != 0,
            last: flags & LAST != 0,
            solicited: flags & SOLICITED != 0,
            imm: flags & IMM != 0,
            inv: flags & INV != 0,
            rider,
            ack_req: flags & ACK_REQ != 0,
            bundle: u32_at(header, 4),
            seq: u16_at(header, 8),
            ack: u16_at(header, 10),
            credit: u16_at(header, 12),
            tag: u16_at(header, 14),
            dqpn,
            msn: u32_at(header, 20),
            offset: u32_at(header, 24),
        };
        Ok((parsed, ext, payload))
    }

    /// What of a frame's extension belongs to its message, and the rider if there is one.
    pub fn split_rider<'a>(&self, ext: &'a [u8]) -> (&'a [u8], Option<&'a [u8; RIDER_LEN]>) {
        match ext.split_last_chunk() {
            Some((rest, rider)) if self.rider => (rest, Some(rider)),
            _ => (ext, None),
        }
    }

    /// Writes header and extension; the caller writes `payload_len` bytes at the offset returned.
    pub fn emit(
        &self,
        ext: &[u8],
        payload_len: usize,
        frame: &mut [u8],
    ) -> Result<usize, FrameError> {
        if !is_ext_len(ext.len()) {
            return Err(FrameError::Extension);
        }
        let begin = HEADER_LEN + ext.len();
        let end = begin.checked_add(payload_len).ok_or(FrameError::Length)?;
        if end > FRAME_MAX || end > frame.len() {
            return Err(FrameError::Length);
        }
        if self.dqpn >> 24 != 0 {
            return Err(FrameError::Reserved);
        }
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = bit(self.first, FIRST)
            | bit(self.last, LAST)
            | bit(self.solicited, SOLICITED)
            | bit(self.imm, IMM)
            | bit(self.inv, INV)
            | bit(self.rider, RIDER)
            | bit(self.ack_req, ACK_REQ);
        put(
            frame,
            0,
            &[VERSION, self.opcode as u8, flags, ext.len() as u8],
        );
        put(frame, 4, &self.bundle.to_le_bytes());
        put(frame, 8, &self.seq.to_le_bytes());
        put(frame, 10, &self.ack.to_le_bytes());
        put(frame, 12, &self.credit.to_le_bytes());
        put(frame, 14, &self.tag.to_le_bytes());
        put(frame, 16, &self.dqpn.to_le_bytes());
        put(frame, 20, &self.msn.to_le_bytes());
        put(frame, 24, &self.offset.to_le_bytes());
        put(frame, 28, &(payload_len as u16).to_le_bytes());
        put(frame, HEADER_LEN, ext);
        let check = check_of(frame, ext);
        put(frame, 30, &check.to_le_bytes());
        Ok(begin)
    }
}

/// Renews acknowledgement and credit in a frame that [`Header::emit`] made, before it is sent
/// again. `false`: it is no such frame.
pub fn patch_rail_fields(frame: &mut [u8], ack: u16, credit: u16) -> bool {
    let Some(ext_len) = frame.get(3).map(|len| usize::from(*len)) else {
        return false;
    };
    if frame.len() < HEADER_LEN + ext_len {
        return false;
    }
    put(frame, 10, &ack.to_le_bytes());
    put(frame, 12, &credit.to_le_bytes());
    let (header, rest) = frame.split_at(HEADER_LEN);
    let check = check_of(header, rest.get(..ext_len).unwrap_or(&[]));
    put(frame, 30, &check.to_le_bytes());
    true
}
