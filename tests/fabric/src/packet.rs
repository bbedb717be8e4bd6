//! Control packets (USB4 chapter 4): big-endian words behind each other, the last one a CRC-32C.

/// PDF of a control packet: what it is.
pub(crate) mod pdf {
    pub(crate) const READ: u8 = 1;
    pub(crate) const WRITE: u8 = 2;
    pub(crate) const ERROR: u8 = 3;
    pub(crate) const EVENT: u8 = 5;
    pub(crate) const XDOMAIN_REQUEST: u8 = 6;
    pub(crate) const XDOMAIN_RESPONSE: u8 = 7;
    pub(crate) const RESET: u8 = 9;
}

/// Codes of an error packet.
pub(crate) mod error {
    /// No such adapter or address.
    pub(crate) const INVALID_SPACE: u32 = 2;
    /// The link is not usable.
    pub(crate) const LOOP: u32 = 4;
    /// Sent by the connection manager: it has seen a plug event.
    pub(crate) const ACKNOWLEDGE_PLUG: u32 = 7;
}

/// Set in the first word of everything that goes to the connection manager.
pub(crate) const FROM_ROUTER: u32 = 1 << 31;

/// A control packet without its CRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) pdf: u8,
    pub(crate) words: Vec<u32>,
}

impl Packet {
    pub(crate) fn new(pdf: u8, words: Vec<u32>) -> Self {
        Self { pdf, words }
    }

    /// Checks a frame's CRC and takes it apart.
    pub(crate) fn parse(pdf: u8, frame: &[u8]) -> Result<Self, &'static str> {
        if frame.len() % 4 != 0 || frame.len() < 12 {
            return Err("length is no packet's");
        }
        let (body, crc) = frame.split_at(frame.len() - 4);
        if crc32c(body).to_be_bytes() != crc {
            return Err("CRC is wrong");
        }
        let words = body
            .chunks_exact(4)
            .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        Ok(Self { pdf, words })
    }

    /// The frame, with its CRC.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self
            .words
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect();
        bytes.extend(crc32c(&bytes).to_be_bytes());
        bytes
    }

    /// The route: which router, seen from the connection manager. 0 is the host router.
    pub(crate) fn route(&self) -> u64 {
        u64::from(self.words[0] & 0x003f_ffff) << 32 | u64::from(self.words[1])
    }
}

/// Which part of a configuration space a read or write packet means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) adapter: usize,
    /// 0 paths, 1 adapter, 2 router, 3 counters.
    pub(crate) space: u32,
}

impl Address {
    pub(crate) fn parse(word: u32) -> Self {
        Self {
            offset: (word & 0x1fff) as usize,
            length: (word >> 13 & 0x3f) as usize,
            adapter: (word >> 19 & 0x3f) as usize,
            space: word >> 25 & 3,
        }
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_has_its_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let packet = Packet::new(pdf::READ, vec![FROM_ROUTER, 3, 0x1234_5678]);
        let mut bytes = packet.bytes();
        assert_eq!(Packet::parse(pdf::READ, &bytes), Ok(packet.clone()));
        assert_eq!(packet.route(), 3);
        bytes[5] ^= 1;
        assert!(Packet::parse(pdf::READ, &bytes).is_err());
        assert!(Packet::parse(pdf::READ, &bytes[..7]).is_err());
    }

    #[test]
    fn addresses_are_taken_apart() {
        let address = Address::parse(0x21 | 2 << 13 | 5 << 19 | 1 << 25);
        assert_eq!(
            address,
            Address {
                offset: 0x21,
                length: 2,
                adapter: 5,
                space: 1
            }
        );
    }
}
