//! The simplest layer above a rail: so many frames in each direction, each with contents of its
//! own that the receiver knows.

use super::{Chance, Frame, Upper};
use tbrdma_proto::frame::{Header, Opcode};

/// One end of the stream.
pub struct Stream {
    seed: u64,
    to_send: u64,
    to_receive: u64,
    pub sent: u64,
    pub received: u64,
    /// Pause between two frames, microseconds.
    pause: u64,
    next_us: u64,
    /// When the last frame came.
    pub last_us: u64,
}

impl Stream {
    pub fn new(seed: u64, to_send: u64, to_receive: u64) -> Self {
        Self {
            seed,
            to_send,
            to_receive,
            sent: 0,
            received: 0,
            pause: 0,
            next_us: 0,
            last_us: 0,
        }
    }

    /// Sends one frame in `pause` microseconds.
    pub fn slow(self, pause: u64) -> Self {
        Self { pause, ..self }
    }
}

/// The frame number `n`.
fn frame(seed: u64, n: u64) -> Frame {
    let mut chance = Chance::new(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let ext = [0, 16, 32, 48, 64][chance.below(5) as usize];
    let len = match chance.below(64) {
        0 => 4000,
        1..16 => 0,
        _ => chance.below(64),
    };
    let mut bytes = |len: u32| -> Vec<u8> {
        let first = chance.next();
        (0..len).map(|i| first.wrapping_add(i * 7) as u8).collect()
    };
    let ext = bytes(ext);
    let payload = bytes(len);
    let opcodes = [Opcode::Send, Opcode::Write, Opcode::Netdev];
    Frame {
        header: Header {
            opcode: opcodes[chance.below(3) as usize],
            first: chance.happens(500),
            last: chance.happens(500),
            dqpn: chance.below(1 << 24),
            msn: n as u32,
            offset: chance.next(),
            ..Header::default()
        },
        ext,
        payload,
    }
}

impl Upper for Stream {
    fn deliver(&mut self, got: Frame, now: u64) {
        assert!(self.received < self.to_receive, "more than was sent");
        assert_eq!(got, frame(self.seed, self.received));
        self.received += 1;
        self.last_us = now;
    }

    fn want_send(&mut self, now: u64) -> Option<Frame> {
        if self.sent == self.to_send || now < self.next_us {
            return None;
        }
        let n = self.sent;
        self.sent += 1;
        self.next_us = now + self.pause;
        Some(frame(self.seed, n))
    }

    fn next_timeout(&self) -> Option<u64> {
        (self.pause > 0 && self.sent < self.to_send).then_some(self.next_us)
    }

    fn is_done(&self) -> bool {
        self.sent == self.to_send && self.received == self.to_receive
    }
}
