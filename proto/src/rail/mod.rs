//! Reliability of one rail: a TX ring and an RX ring over one hop.
//!
//! A cable delivers in order and loses rarely. So: every sequenced frame has a number, the
//! receiver acknowledges cumulatively, keeps what comes after a gap and tells the gap at once, and
//! the sender repeats just the gap. Should the last frames be lost, so that no other shows the gap,
//! the sender hears nothing for a while and asks; the answer names what is missing. Credits are absolute ("you may send sequences before this
//! one"), so a lost credit heals with the next frame in the other direction. One [`Rail`] covers
//! both directions, because acknowledgement and credit of one direction ride on the frames of the
//! other.
//!
//! Time is an argument, in microseconds. Frames, pages and rings are the caller's: the caller
//! keeps a sent frame in a table at `sequence % window` until it is acknowledged, and a frame
//! received after a gap likewise.

mod bits;
mod receiver;
mod rtt;
mod sender;

pub(super) use bits::Bits;

use super::frame::{Header, Opcode};
use receiver::Receiver;
pub use receiver::Rx;
use sender::Sender;

/// Frames in flight at the most.
pub const MAX_WINDOW: u32 = 512;
/// Payload bytes that a control frame may have.
pub const CONTROL_MAX: usize = 128;

/// `a` comes before `b` in the circular order of sequences (distance below 2^31).
pub const fn before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

/// The sequence nearest to `near` whose lower half is `low`.
fn widen(low: u16, near: u32) -> u32 {
    let ahead = low.wrapping_sub(near as u16);
    // Two's complement: the upper half of the range lies behind `near`.
    near.wrapping_add_signed(i32::from(ahead as i16))
}

/// What the two ends agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Sequenced frames in flight at the most, in both directions; 1 to [`MAX_WINDOW`].
    pub window: u32,
    /// Sequenced frames that may be under way to us: receive descriptors less a reserve for
    /// control frames and duplicates; 1 to `window`.
    pub rx_capacity: u32,
    /// The rail is dead after this time without progress while frames are unacknowledged.
    pub dead_after_us: u64,
}

/// Counters of a rail; they never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequenced frames sent, without repetitions.
    pub tx: u64,
    /// Frames sent again.
    pub retransmits: u64,
    /// Times that nothing was heard for so long that the other side was asked where it stands.
    pub timeouts: u64,
    /// Times that a frame could not be sent for want of window or credit.
    pub stalls: u64,
    /// Sequenced frames handed up.
    pub rx: u64,
    /// Sequenced frames that came again.
    pub duplicates: u64,
    /// Frames that arrived after a gap and were kept.
    pub held: u64,
    /// Frames beyond the credit that was given, or of another agreement.
    pub outside: u64,
    /// NAK frames sent.
    pub naks_sent: u64,
    /// NAK frames received.
    pub naks_received: u64,
    /// Acknowledgements, credits and NAKs that cannot be true.
    pub absurd: u64,
    /// Smoothed round-trip time, microseconds; 0 until it was measured.
    pub rtt_us: u64,
}

/// One rail.
#[derive(Debug)]
pub struct Rail {
    sender: Sender,
    receiver: Receiver,
    /// Tags of this agreement, to send and to receive.
    tags: (u16, u16),
    /// What sequenced frames add to them: which bundle they belong to.
    bundle_tags: (u16, u16),
}

impl Rail {
    /// A fresh rail; both ends start at sequence 0. Out-of-range settings are brought into range.
    pub fn new(config: Config, now_us: u64) -> Self {
        let window = config.window.clamp(1, MAX_WINDOW);
        Self {
            sender: Sender::new(window, config.dead_after_us, now_us),
            receiver: Receiver::new(config.rx_capacity.clamp(1, window)),
            tags: (0, 0),
            bundle_tags: (0, 0),
        }
    }

    /// Starts at other sequences. Both ends have to agree on them, before the first frame. Their
    /// upper halves are what tells frames of this agreement from those of others.
    pub fn set_sequences(&mut self, tx: u32, rx: u32) {
        self.sender.set_sequence(tx);
        self.receiver.set_sequence(rx);
        self.tags = ((tx >> 16) as u16, (rx >> 16) as u16);
    }

    /// Says which bundle the rail carries frames of, by numbers that both ends know, to send and
    /// to receive. Sequenced frames of another one are refused, and not acknowledged. To be called
    /// before the first sequenced frame.
    pub fn set_bundle(&mut self, tx: u16, rx: u16) {
        self.bundle_tags = (tx, rx);
    }

    /// Claims the right to send one sequenced frame; to be used by [`commit`](Self::commit) or
    /// given back by [`cancel`](Self::cancel). `false`: no window or no credit now.
    pub fn reserve(&mut self) -> bool {
        self.sender.reserve()
    }

    /// Gives a claim back.
    pub fn cancel(&mut self) {
        self.sender.cancel();
    }

    /// Frames that could be reserved now.
    pub fn room(&self) -> u32 {
        self.sender.room()
    }

    /// Frames that are sent and not acknowledged.
    pub fn in_flight(&self) -> u32 {
        self.sender.in_flight()
    }

    /// Gives the claimed frame its place in the sequence and fills the rail fields. The frame has
    /// to be handed to the ring in this order.
    pub fn commit(&mut self, header: &mut Header, now_us: u64) -> u32 {
        let seq = self.sender.commit(now_us);
        header.seq = seq as u16;
        self.stamp(header);
        header.tag = self.tags.0 ^ self.bundle_tags.0;
        seq
    }

    /// Acknowledgement and credit for a frame that is about to be sent.
    pub fn fields(&mut self) -> (u16, u16) {
        self.receiver.acknowledged();
        (
            self.receiver.expected() as u16,
            self.receiver.credit() as u16,
        )
    }

    /// Frames have come that are not acknowledged yet, and the other side should know of them: it
    /// may wait for them on other rails. [`poll_control`](Self::poll_control) has the frame.
    pub fn hasten_ack(&mut self) {
        self.receiver.hasten_ack();
    }

    fn stamp(&mut self, header: &mut Header) {
        (header.ack, header.credit) = self.fields();
    }

    /// Fills the rail fields of a frame without a sequence of its own (PING, PONG), which has to
    /// be handed to the ring before the next frame is committed.
    pub fn stamp_control(&mut self, header: &mut Header) {
        header.seq = self.sender.nxt() as u16;
        header.bundle = 0;
        header.tag = self.tags.0;
        self.stamp(header);
    }

    /// Frames before this sequence are acknowledged: their buffers are free.
    pub fn una(&self) -> u32 {
        self.sender.una()
    }

    /// The first sequence at or after `from` that has to be sent again. Refresh the frame's
    /// [`fields`](Self::fields) before.
    pub fn next_retransmit(&self, from: u32) -> Option<u32> {
        self.sender.next_retransmit(from)
    }

    /// The frame was sent again.
    pub fn retransmitted(&mut self, seq: u32, now_us: u64) {
        self.sender.retransmitted(seq, now_us);
    }

    /// The frame need not be sent again now, because it still waits in the ring. The timer asks
    /// again if it never arrives.
    pub fn defer(&mut self, seq: u32) {
        self.sender.defer(seq);
    }

    /// Takes the header of a frame that arrived, and its payload if it is a control frame.
    pub fn on_frame(&mut self, header: &Header, payload: &[u8], now_us: u64) -> Rx {
        let sequenced = header.opcode.is_sequenced();
        let (_, own) = self.tags;
        let (_, bundle) = self.bundle_tags;
        if header.tag != if sequenced { own ^ bundle } else { own } {
            self.receiver.refuse();
            return Rx::Outside;
        }
        let ack = widen(header.ack, self.sender.una());
        let credit = ack.wrapping_add(header.credit.wrapping_sub(header.ack).into());
        self.sender.on_ack(ack, credit, now_us);
        let seq = widen(header.seq, self.receiver.expected());
        if sequenced {
            return self.receiver.on_sequenced(seq, now_us);
        }
        // The wire keeps order: what was sent before this frame and is not here is lost.
        self.receiver.on_sent_before(seq);
        match header.opcode {
            Opcode::Nak => self.sender.on_nak(payload, now_us),
            Opcode::Ack if header.solicited => self.receiver.on_probe(),
            _ => {}
        }
        Rx::Control
    }

    /// After a delivery: the next kept frame that is in order now.
    pub fn next_held(&mut self) -> Option<u32> {
        self.receiver.next_held()
    }

    /// A control frame to send now, with its payload in `payload`. To be called until there is
    /// none, after the frames that [`next_retransmit`](Self::next_retransmit) names were sent.
    pub fn poll_control(
        &mut self,
        now_us: u64,
        payload: &mut [u8; CONTROL_MAX],
    ) -> Option<(Header, usize)> {
        let mut header = Header::default();
        let len = if let Some(len) = self.receiver.poll_nak(now_us, payload) {
            header.opcode = Opcode::Nak;
            len
        } else if self.receiver.ack_due(now_us) || self.sender.probe_due() {
            header.opcode = Opcode::Ack;
            // A probe: the other side is to answer at once.
            header.solicited = self.sender.probe_due();
            self.sender.probed();
            0
        } else {
            return None;
        };
        self.stamp_control(&mut header);
        Some((header, len))
    }

    /// When [`on_timeout`](Self::on_timeout) and [`poll_control`](Self::poll_control) are due.
    pub fn next_timeout(&self) -> Option<u64> {
        match (self.sender.next_timeout(), self.receiver.next_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Looks at the clock. A control frame may have to be sent afterwards.
    pub fn on_timeout(&mut self, now_us: u64) {
        self.sender.on_timeout(now_us);
    }

    /// Frames are unacknowledged, or the other side takes none, and nothing has moved for the time
    /// that was agreed on.
    pub fn is_dead(&self, now_us: u64) -> bool {
        self.sender.is_dead(now_us)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.sender.stats(&mut stats);
        self.receiver.stats(&mut stats);
        stats
    }
}
