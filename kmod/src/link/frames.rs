// SPDX-License-Identifier: GPL-2.0-only
//! The frames of a rail that are under way, and their buffers.

use super::bundle::{Bundle, Orphan};
use super::fifo::Fifo;
use super::rings::CONTROL;
use crate::proto::bundle::Sender;
use crate::proto::frame::{self, Header};
use crate::proto::rail as proto;
use crate::thunderbolt::os::now_us;
use crate::thunderbolt::ring::{Kept, TxBuf, TxRing};
use kernel::prelude::*;

/// A frame that is not acknowledged yet.
pub(super) struct Sent {
    pub(super) buf: KBox<TxBuf>,
    pub(super) len: usize,
    /// In the bundle.
    pub(super) number: u32,
}

/// Who gives frames their numbers in the bundle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// Nobody: the rail does not carry any yet.
    None,
    /// The rail itself, as the only one that its peer has had so far: this is the next. Its window
    /// is not larger than the span, so that it has to ask nobody.
    Own(u32),
    /// The bundle.
    Bundle,
}

/// Why there is no buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// This rail has no room.
    Rail,
    /// Frames on other rails have to be acknowledged first.
    Span,
}

/// The frames of a rail that are under way, in either direction; behind the rail's lock.
pub(super) struct Frames {
    /// Taken out when the rail stops, so that whoever drops the rail last, in whatever context,
    /// has nothing to free that sleeps.
    pub(super) tx: Option<TxRing>,
    pub(super) proto: proto::Rail,
    pub(super) numbers: Numbers,
    /// Frames in flight, by sequence modulo the length, which is a power of two.
    pub(super) window: KVec<Option<Sent>>,
    /// Frames received after a gap, likewise.
    pub(super) held: KVec<Option<Kept>>,
    pub(super) free: KVec<KBox<TxBuf>>,
    /// Not needed any more, but perhaps still in the ring.
    pub(super) draining: Fifo<KBox<TxBuf>>,
    /// Buffers being filled by senders.
    pub(super) filling: u32,
    /// Somebody was refused.
    pub(super) refused: bool,
    pub(super) closed: bool,
    pub(super) dead: bool,
    /// When the timer runs, microseconds; 0: not.
    pub(super) timer_at: u64,
}

/// What was taken out of a rail: to be dropped where one may sleep. The ring stops first.
pub(super) struct Emptied {
    _tx: Option<TxRing>,
    window: KVec<Option<Sent>>,
    /// The oldest sequence in the window, and how many there are.
    una: u32,
    in_flight: u32,
    _free: KVec<KBox<TxBuf>>,
    _draining: Fifo<KBox<TxBuf>>,
}

impl Emptied {
    /// Copies what was not acknowledged, in the order of sending, for other rails. Sleeps.
    pub(super) fn rescue(&mut self, mut keep: impl FnMut(Orphan) -> Result) -> Result {
        let mask = self.window.len().wrapping_sub(1);
        for at in 0..self.in_flight {
            let seq = self.una.wrapping_add(at) as usize;
            if let Some(Some(sent)) = self.window.get_mut(seq & mask) {
                let len = sent.len;
                keep(Orphan::of(sent.buf.bytes().get(..len).ok_or(EINVAL)?)?)?;
            }
        }
        Ok(())
    }
}

impl Frames {
    /// For a ring with its buffers. Closed until the rail is started.
    pub(super) fn new(tx: TxRing, bufs: KVec<KBox<TxBuf>>, config: proto::Config) -> Result<Self> {
        // A power of two: sequences wrap at 2^32.
        let places = config.window.next_power_of_two() as usize;
        let draining = Fifo::new(bufs.len())?;
        Ok(Self {
            tx: Some(tx),
            proto: proto::Rail::new(config, now_us()),
            numbers: Numbers::None,
            window: table(places)?,
            held: table(places)?,
            free: bufs,
            draining,
            filling: 0,
            refused: false,
            closed: true,
            dead: false,
            timer_at: 0,
        })
    }

    /// Takes everything out that has to be freed where one may sleep.
    pub(super) fn empty(&mut self) -> Emptied {
        for place in &mut self.held {
            *place = None;
        }
        Emptied {
            _tx: self.tx.take(),
            window: core::mem::take(&mut self.window),
            una: self.proto.una(),
            in_flight: self.proto.in_flight(),
            _free: core::mem::take(&mut self.free),
            _draining: core::mem::replace(&mut self.draining, Fifo::empty()),
        }
    }

    /// Takes back what the hardware has let go of.
    pub(super) fn collect(&mut self) {
        if let Some(tx) = &self.tx {
            tx.reap();
        }
        while self.draining.front().is_some_and(|buf| !buf.in_ring()) {
            if let Some(buf) = self.draining.pop() {
                // As many places as buffers: cannot fail.
                let _ = self.free.push_within_capacity(buf);
            }
        }
    }

    pub(super) fn drain(&mut self, buf: KBox<TxBuf>) {
        // As many places as buffers: cannot fail.
        let _ = self.draining.push(buf);
    }

    pub(super) fn slot(&mut self, seq: u32) -> Option<&mut Option<Sent>> {
        let mask = self.window.len().wrapping_sub(1);
        self.window.get_mut(seq as usize & mask)
    }

    pub(super) fn held_at(&mut self, seq: u32) -> Option<&mut Option<Kept>> {
        let mask = self.held.len().wrapping_sub(1);
        self.held.get_mut(seq as usize & mask)
    }

    pub(super) fn has_room(&self) -> bool {
        self.free.len() > CONTROL && self.proto.room() > 0
    }

    /// A buffer for one frame, which the rail and the bundle have room for.
    pub(super) fn claim(&mut self, bundle: &Bundle) -> Result<KBox<TxBuf>, Refusal> {
        if self.free.len() <= CONTROL || !self.proto.reserve() {
            return Err(Refusal::Rail);
        }
        if self.numbers == Numbers::Bundle && !bundle.tx().sender.reserve() {
            self.proto.cancel();
            return Err(Refusal::Span);
        }
        match self.free.pop() {
            Some(buf) => {
                self.filling += 1;
                Ok(buf)
            }
            None => {
                self.unreserve(bundle);
                Err(Refusal::Rail)
            }
        }
    }

    /// Takes back what [`Self::claim`] gave.
    pub(super) fn unclaim(&mut self, bundle: &Bundle, buf: KBox<TxBuf>) {
        self.unreserve(bundle);
        // As many places as buffers: cannot fail.
        let _ = self.free.push_within_capacity(buf);
    }

    fn unreserve(&mut self, bundle: &Bundle) {
        self.proto.cancel();
        if self.numbers == Numbers::Bundle {
            bundle.tx().sender.cancel();
        }
    }

    /// The number of the claimed frame in the bundle.
    pub(super) fn number(&mut self, bundle: &Bundle) -> u32 {
        match &mut self.numbers {
            Numbers::Own(next) => {
                let number = *next;
                *next = number.wrapping_add(1);
                number
            }
            Numbers::Bundle | Numbers::None => bundle.tx().sender.commit(),
        }
    }

    /// The bundle gives numbers from now on; what it goes on with, if the rail did until now.
    pub(super) fn share(&mut self) -> Option<Sender> {
        let before = core::mem::replace(&mut self.numbers, Numbers::Bundle);
        let Numbers::Own(next) = before else {
            return None;
        };
        let una = next.wrapping_sub(self.proto.in_flight());
        Some(Sender::resume(una, next, self.filling))
    }

    /// Sends what other rails have left behind, as far as there is room.
    pub(super) fn adopt(&mut self, bundle: &Bundle, now: u64) {
        while self.has_room() {
            let Some(orphan) = bundle.take_orphan() else {
                return;
            };
            // It was understood when it was sent the first time.
            let Ok((mut header, ext, payload)) = Header::parse(orphan.bytes()) else {
                continue;
            };
            let Some(mut buf) = self.free.pop() else {
                return;
            };
            // There is room, as was asked above.
            self.proto.reserve();
            let seq = self.proto.commit(&mut header, now);
            let bytes = buf.bytes();
            let begin = header.emit(ext, payload.len(), bytes).unwrap_or(0);
            let end = begin + payload.len();
            if let Some(to) = bytes.get_mut(begin..end) {
                to.copy_from_slice(payload);
            }
            self.launch(buf, end, seq, header.bundle);
        }
    }

    /// Hands a frame to the ring, and keeps it until it is acknowledged.
    pub(super) fn launch(&mut self, mut buf: KBox<TxBuf>, len: usize, seq: u32, number: u32) {
        self.submit(&mut buf, len);
        if let Some(slot) = self.slot(seq) {
            *slot = Some(Sent { buf, len, number });
        }
    }

    /// Frees the buffers of frames that have been acknowledged since `una` was `from`.
    pub(super) fn acked(&mut self, from: u32, bundle: &Bundle) {
        let to = self.proto.una();
        if from == to {
            return;
        }
        let mut tx = (self.numbers == Numbers::Bundle).then(|| bundle.tx());
        let mut seq = from;
        while seq != to {
            if let Some(sent) = self.slot(seq).and_then(Option::take) {
                if let Some(tx) = &mut tx {
                    tx.sender.acknowledged(sent.number);
                }
                self.drain(sent.buf);
            }
            seq = seq.wrapping_add(1);
        }
    }

    /// Sends a control frame, if there is a buffer; otherwise it is as good as lost, which the
    /// protocol copes with.
    pub(super) fn control(&mut self, header: &Header, payload: &[u8]) {
        let Some(mut buf) = self.free.pop() else {
            return;
        };
        let bytes = buf.bytes();
        if let Ok(begin) = header.emit(&[], payload.len(), bytes) {
            let end = begin + payload.len();
            if let Some(to) = bytes.get_mut(begin..end) {
                to.copy_from_slice(payload);
            }
            self.submit(&mut buf, end);
        }
        self.drain(buf);
    }

    /// A ring that has stopped loses the frame, as a pulled cable would.
    pub(super) fn submit(&self, buf: &mut KBox<TxBuf>, len: usize) {
        if let Some(tx) = &self.tx {
            let _ = tx.submit(buf, len);
        }
    }

    /// Sends again what has to be.
    pub(super) fn resend(&mut self, now: u64) {
        let mut from = self.proto.una();
        while let Some(seq) = self.proto.next_retransmit(from) {
            from = seq.wrapping_add(1);
            let Some(mut sent) = self.slot(seq).and_then(Option::take) else {
                continue;
            };
            if sent.buf.in_ring() {
                // It is on its way already.
                self.proto.defer(seq);
            } else {
                let (ack, credit) = self.proto.fields();
                if let Some(bytes) = sent.buf.bytes().get_mut(..sent.len) {
                    frame::patch_rail_fields(bytes, ack, credit);
                }
                self.submit(&mut sent.buf, sent.len);
                self.proto.retransmitted(seq, now);
            }
            if let Some(slot) = self.slot(seq) {
                *slot = Some(sent);
            }
        }
    }

    /// Sends the control frames that are due. Returns how many.
    pub(super) fn send_controls(&mut self, now: u64) -> u64 {
        let mut payload = [0; proto::CONTROL_MAX];
        let mut count = 0;
        while let Some((header, len)) = self.proto.poll_control(now, &mut payload) {
            self.control(&header, payload.get(..len).unwrap_or_default());
            count += 1;
        }
        count
    }
}

/// A table of `places` empty places.
fn table<T>(places: usize) -> Result<KVec<Option<T>>> {
    let mut table = KVec::with_capacity(places, GFP_KERNEL)?;
    for _ in 0..places {
        table.push(None, GFP_KERNEL)?;
    }
    Ok(table)
}
