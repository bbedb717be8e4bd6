// SPDX-License-Identifier: GPL-2.0-only
//! The loopback peer's wire: a bounded queue of buffers.
//!
//! QPs of one host talk to each other through it, as in every HCA; it keeps what a rail promises
//! (in order, exactly once, refusal instead of loss) so that nothing above knows the difference.

use super::fifo::Fifo;
use super::{Peer, TxError};
use crate::proto::frame::{Header, EXT_MAX};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full};
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};

/// Frames in flight at most: 2 MiB, and more than one delivery batch.
const SLOTS: usize = 128;

/// Extension and payload of a frame. No ring's page bounds a frame here, and each frame costs locks and
/// a look at both QPs; but a buffer should still be in the processor's cache when it is copied again.
pub(super) const ROOM: usize = EXT_MAX + (16 << 10);

/// Frames delivered before acknowledgements are due and others get the CPU.
const BATCH: usize = 64;

/// Rounds that he makes: a message, its answer, and what that leads to.
const ROUNDS: usize = 4;

/// What somebody who sends delivers by himself. More is left to the work item, which runs on another
/// processor while he goes on.
const FEW: usize = 8;

/// After a refusal the sender is called again when this many slots are free.
const RESUME: usize = SLOTS / 4;

/// A frame's [`ROOM`].
type Buffer = KVVec<u8>;

/// A frame on its way. The buffer holds the extension, then the payload.
struct Item {
    hdr: Header,
    ext_len: usize,
    payload_len: usize,
    buffer: Buffer,
}

struct State {
    free: KVec<Buffer>,
    queue: Fifo<Item>,
    /// Somebody was refused and waits for `tx_ready`.
    refused: bool,
    closed: bool,
}

impl State {
    fn put_free(&mut self, buffer: Buffer) {
        // The capacity was reserved for all buffers that exist, so this cannot fail.
        let _ = self.free.push_within_capacity(buffer);
    }
}

/// The loopback wire of a [`Peer`].
#[pin_data]
pub(super) struct Loopback {
    #[pin]
    state: SpinLock<State>,
    /// Held while frames are delivered, so that they stay in order.
    #[pin]
    delivering: Mutex<()>,
    /// How many are in [`Loopback::attend`], and look for frames when they have sent.
    attending: Atomic<u32>,
}

impl Loopback {
    /// Allocates the queue and its buffers.
    pub(super) fn new() -> Result<impl PinInit<Self>> {
        let mut free = KVec::with_capacity(SLOTS, GFP_KERNEL)?;
        for _ in 0..SLOTS {
            free.push(KVVec::from_elem(0, ROOM, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        let state = State {
            free,
            queue: Fifo::new(SLOTS)?,
            refused: false,
            closed: false,
        };
        Ok(pin_init!(Self {
            state <- new_spinlock!(state, "tbrdma_loopback"),
            delivering <- new_mutex!((), "tbrdma_loopback_delivery"),
            attending: Atomic::new(0),
        }))
    }

    /// See [`Peer::send`]. On success tells whether the caller has to queue the delivery work.
    pub(super) fn send(
        &self,
        hdr: Header,
        ext: &[u8],
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result,
    ) -> Result<bool, TxError> {
        let end = ext
            .len()
            .checked_add(payload_len)
            .ok_or(TxError::Fill(EMSGSIZE))?;
        if end > ROOM {
            return Err(TxError::Fill(EMSGSIZE));
        }
        let mut buffer = {
            let mut state = self.state.lock();
            if state.closed {
                return Err(TxError::Down);
            }
            match state.free.pop() {
                Some(buffer) => buffer,
                None => {
                    state.refused = true;
                    return Err(TxError::Full);
                }
            }
        };
        // Filled outside the lock: other QPs go on meanwhile.
        let filled = fill_buffer(&mut buffer, ext, end, fill);
        let mut state = self.state.lock();
        match filled {
            Ok(()) if !state.closed => {
                let item = Item {
                    hdr,
                    ext_len: ext.len(),
                    payload_len,
                    buffer,
                };
                // There are as many places as buffers, so there is one.
                state.queue.push(item).map_err(|_| TxError::Full)?;
                let many = state.queue.len() > FEW;
                drop(state);
                // We add a frame and then look whether somebody attends, he stops attending and
                // then looks for frames: one of the two sees the other.
                Ok(many || self.attending.fetch_add(0, Full) == 0)
            }
            Ok(()) => {
                state.put_free(buffer);
                Err(TxError::Down)
            }
            Err(e) => {
                state.put_free(buffer);
                Err(TxError::Fill(e))
            }
        }
    }

    /// Calls `send` and then delivers what is there, if it is little and nobody else is at it.
    /// Returns whether the delivery work has to be queued. Process context, no lock held.
    pub(super) fn attend(&self, peer: &Arc<Peer>, send: impl FnOnce()) -> bool {
        self.attending.fetch_add(1, Full);
        send();
        for _ in 0..ROUNDS {
            let waiting = self.state.lock().queue.len();
            if waiting == 0 || waiting > FEW || !self.deliver_now(peer) {
                break;
            }
        }
        self.attending.fetch_sub(1, Full);
        self.state.lock().queue.len() > 0
    }

    /// Delivers what is there, unless somebody is at it. Returns whether something was delivered.
    pub(super) fn deliver_now(&self, peer: &Arc<Peer>) -> bool {
        if self.state.lock().queue.len() == 0 {
            return false;
        }
        match self.delivering.try_lock() {
            Some(_delivering) => {
                self.deliver(peer);
                true
            }
            None => false,
        }
    }

    /// Delivers one batch. Returns whether more waits. Sleeps.
    pub(super) fn deliver_batch(&self, peer: &Arc<Peer>) -> bool {
        let _delivering = self.delivering.lock();
        self.deliver(peer)
    }

    /// One batch, behind the lock that keeps frames in order.
    fn deliver(&self, peer: &Arc<Peer>) -> bool {
        let up = peer.upcalls();
        let mut delivered = 0;
        while delivered < BATCH {
            let Some(item) = self.take() else { break };
            let (ext, rest) = item.buffer.split_at(item.ext_len);
            if let Some(payload) = rest.get(..item.payload_len) {
                up.deliver(peer, &item.hdr, ext, payload);
            }
            delivered += 1;
            self.state.lock().put_free(item.buffer);
        }
        if delivered > 0 {
            up.batch_end(peer);
        }
        let (more, resume) = {
            let mut state = self.state.lock();
            let resume = state.refused && !state.closed && state.free.len() >= RESUME;
            if resume {
                state.refused = false;
            }
            (state.queue.len() > 0, resume)
        };
        if resume {
            up.tx_ready(peer);
        }
        more
    }

    /// Refuses frames from now on and drops those that wait.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        loop {
            let item = self.state.lock().queue.pop();
            if item.is_none() {
                break;
            }
        }
    }

    fn take(&self) -> Option<Item> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.queue.pop()
    }
}

fn fill_buffer(
    buffer: &mut Buffer,
    ext: &[u8],
    end: usize,
    fill: impl FnOnce(&mut [u8]) -> Result,
) -> Result {
    let bytes = buffer.get_mut(..end).ok_or(EMSGSIZE)?;
    let (head, payload) = bytes.split_at_mut(ext.len());
    head.copy_from_slice(ext);
    fill(payload)
}
