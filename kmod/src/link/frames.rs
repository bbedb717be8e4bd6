// SPDX-License-Identifier: GPL-2.0-only
//! The frames of a rail that are under way, and their buffers.

use super::fifo::Fifo;
use super::rings::CONTROL;
use crate::proto::frame::{self, Header};
use crate::proto::rail as proto;
use crate::thunderbolt::os::now_us;
use crate::thunderbolt::ring::{Kept, TxBuf, TxRing};
use kernel::prelude::*;

/// A frame that is not acknowledged yet.
pub(super) struct Sent {
    pub(super) buf: KBox<TxBuf>,
    pub(super) len: usize,
}

/// The frames of a rail that are under way, in either direction; behind the rail's lock.
pub(super) struct Frames {
    /// Taken out when the rail stops, so that whoever drops the rail last, in whatever context,
    /// has nothing to free that sleeps.
    pub(super) tx: Option<TxRing>,
    pub(super) proto: proto::Rail,
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
    _window: KVec<Option<Sent>>,
    _free: KVec<KBox<TxBuf>>,
    _draining: Fifo<KBox<TxBuf>>,
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
            _window: core::mem::take(&mut self.window),
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

    /// Frees the buffers of frames that have been acknowledged since `una` was `from`.
    pub(super) fn acked(&mut self, from: u32) {
        let to = self.proto.una();
        let mut seq = from;
        while seq != to {
            if let Some(sent) = self.slot(seq).and_then(Option::take) {
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
