//! Writing data frames to a file that Wireshark and tcpdump read.
//!
//! Link type USER0 (147). Each frame begins with 8 bytes of ours: direction (0 forth, 1 back), transmit ring of the
//! sender, receive ring of the receiver, SOF, EOF, what a fault did (0 nothing, 1 dropped, 2 corrupted, 3 corrupted
//! silently, 4 duplicated, 5 delayed), 2 bytes zero; then the bytes as they were sent.

use crate::protocol::FaultKind;
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;
use std::time::SystemTime;

const LINK_TYPE_USER0: u32 = 147;
const LONGEST: u32 = 4096 + 8;

/// What is known of a frame beside its bytes.
pub(crate) struct Meta {
    pub(crate) direction: u8,
    pub(crate) tx_ring: u8,
    pub(crate) rx_ring: u8,
    pub(crate) sof: u8,
    pub(crate) eof: u8,
    pub(crate) fault: Option<FaultKind>,
}

/// A file being written.
pub(crate) struct Pcap {
    file: BufWriter<File>,
}

impl Pcap {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        for word in [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, LONGEST, LINK_TYPE_USER0] {
            file.write_all(&u32::to_le_bytes(word))?;
        }
        Ok(Self { file })
    }

    pub(crate) fn frame(&mut self, meta: &Meta, bytes: &[u8]) -> Result<()> {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let length = bytes.len() as u32 + 8;
        // The format has 32 bits for seconds.
        for word in [now.as_secs() as u32, now.subsec_micros(), length, length] {
            self.file.write_all(&word.to_le_bytes())?;
        }
        let fault = match meta.fault {
            None => 0,
            Some(FaultKind::Drop) => 1,
            Some(FaultKind::Corrupt) => 2,
            Some(FaultKind::CorruptSilently) => 3,
            Some(FaultKind::Duplicate) => 4,
            Some(FaultKind::Delay) => 5,
        };
        self.file.write_all(&[
            meta.direction,
            meta.tx_ring,
            meta.rx_ring,
            meta.sof,
            meta.eof,
            fault,
            0,
            0,
        ])?;
        self.file.write_all(bytes)
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_header_and_frames() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pcap");
        let mut pcap = Pcap::create(&path).unwrap();
        let meta = Meta {
            direction: 1,
            tx_ring: 2,
            rx_ring: 3,
            sof: 4,
            eof: 5,
            fault: Some(FaultKind::Delay),
        };
        pcap.frame(&meta, b"frame").unwrap();
        pcap.finish().unwrap();
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes.len(), 24 + 16 + 8 + 5);
        assert_eq!(&bytes[..4], &[0xd4, 0xc3, 0xb2, 0xa1]);
        assert_eq!(&bytes[24 + 16..], b"\x01\x02\x03\x04\x05\x05\0\0frame");
    }
}
