// SPDX-License-Identifier: GPL-2.0-only
//! A rail: a TX ring and an RX ring, made reliable by `proto::rail`.
//!
//! A frame to be sent takes a buffer, is filled outside the rail's lock, and gets its sequence
//! when it is handed to the ring. Its buffer is kept until the other side has acknowledged it and
//! the hardware has let go of it. Received frames are handed up straight from the ring's page.

use super::bundle::{Bundle, Order};
use super::counters::Counts;
use super::frames::{Frames, Numbers, Refusal};
use super::pump::{Pump, Taken, Target};
use super::rings::Rings;
use super::{Peer, TxError};
use crate::net::Net;
use crate::proto::bundle::{Epoch, EPOCH_LEN};
use crate::proto::frame::{FrameError, Header, Opcode};
use crate::proto::hello::Agreed;
use crate::proto::rail::{self as proto, Rx};
use crate::thunderbolt::debugfs::Writer;
use crate::thunderbolt::os::{self, now_us, Workqueue};
use crate::thunderbolt::ring::{Received, RxRing, TxBuf};
use core::fmt::{self, Write};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, MutexGuard, SpinLock};
use kernel::workqueue::{impl_has_delayed_work, new_delayed_work, DelayedWork, WorkItem};

/// Frames taken from the ring before acknowledgements go out and others get the CPU.
const BATCH: usize = 64;

/// Whoever was refused is looked after this often, should nothing else happen on the rail.
const REFUSED_US: u64 = 10_000;

/// A rail on which frames stay unacknowledged for this long is dead.
const DEAD_AFTER_US: u64 = 5_000_000;

/// Why frames are not understood; each at its own index.
const REASONS: [FrameError; FrameError::COUNT] = [
    FrameError::Length,
    FrameError::Version,
    FrameError::Check,
    FrameError::Opcode,
    FrameError::Reserved,
    FrameError::Extension,
];

/// What a rail tells the link that it belongs to. Called from work items, no lock held.
pub(super) trait Owner: Send + Sync {
    /// The answer to a ping of ours has come, with what the other end says of the bundle.
    fn pong(self: Arc<Self>, nonce: u64, theirs: Epoch);
    /// The other side does not answer any more.
    fn dead(self: Arc<Self>);
}

/// Counters, for debugging.
pub(super) struct Counters {
    pub(super) rx_frames: Atomic<u64>,
    pub(super) control: Atomic<u64>,
    pub(super) refused: Atomic<u64>,
    /// Marked by the hardware: CRC error or overrun.
    pub(super) damaged: Atomic<u64>,
    /// Not understood, by reason.
    pub(super) malformed: [Atomic<u64>; FrameError::COUNT],
}

/// A rail.
#[pin_data]
pub(super) struct Rail {
    pump: Arc<Pump<Rail>>,
    queue: Arc<Workqueue>,
    net: Arc<Net>,
    owner: Arc<dyn Owner>,
    peer: Arc<Peer>,
    /// Frames in flight at most.
    frames: u32,
    /// Frames in flight; the most that there can be if it is of no use to send on this rail.
    load: Atomic<u32>,
    /// Frames may be handed up.
    open: Atomic<u32>,
    pub(super) counters: Counters,
    #[pin]
    state: SpinLock<Frames>,
    /// Held while the pump runs; see also `State::tx`.
    #[pin]
    rx: Mutex<Option<RxRing>>,
    #[pin]
    timer: DelayedWork<Rail>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Rail { self.timer }
}

impl Rail {
    /// Makes a rail of `rings`, with the window and the first sequences that were agreed on. It
    /// works after [`Rail::start`].
    pub(super) fn new(
        rings: Rings,
        agreed: &Agreed,
        peer: Arc<Peer>,
        queue: Arc<Workqueue>,
        net: Arc<Net>,
        owner: Arc<dyn Owner>,
    ) -> Result<Arc<Self>> {
        let window = u32::from(agreed.window.min(rings.window()));
        let config = proto::Config {
            window,
            rx_capacity: u32::from(rings.rx_capacity()).min(window),
            dead_after_us: DEAD_AFTER_US,
        };
        let Rings {
            tx, rx, bufs, pump, ..
        } = rings;
        let mut state = Frames::new(tx, bufs, config)?;
        let (first_tx, first_rx) = agreed.first_seqs;
        state.proto.set_sequences(first_tx, first_rx);
        Arc::pin_init(
            pin_init!(Self {
                pump,
                queue,
                net,
                owner,
                peer,
                frames: window,
                load: Atomic::new(0),
                open: Atomic::new(0),
                counters: Counters::new(),
                state <- new_spinlock!(state, "tbrdma_rail"),
                rx <- new_mutex!(Some(rx), "tbrdma_rail_rx"),
                timer <- new_delayed_work!("tbrdma_rail"),
            }),
            GFP_KERNEL,
        )
    }

    /// Starts the rings, ready to receive.
    pub(super) fn start(self: &Arc<Self>) -> Result {
        Pump::connect(&self.pump, self.clone())?;
        {
            let mut state = self.state.lock();
            state.closed = false;
            if let Some(tx) = &state.tx {
                tx.start();
            }
        }
        match &*self.rx.lock() {
            Some(rx) => rx.start(),
            None => Err(ENODEV),
        }
    }

    /// Ends the rail: afterwards nothing is sent or delivered, no work of it runs, and no buffer
    /// is in the hardware. Sleeps, briefly. The paths have to be disabled before. `rescue`: frames
    /// that were not acknowledged are left to the other rails of the peer, which fails if memory is
    /// short.
    pub(super) fn stop(self: &Arc<Self>, rescue: bool) -> Result {
        self.state.lock().closed = true;
        self.load.store(u32::MAX, Relaxed);
        // Senders that hold a buffer are copying into it under a spinlock: soon done. They must
        // not be the ones who drop the last buffer, for that sleeps.
        while self.state.lock().filling != 0 {
            os::sleep_ms(1);
        }
        Pump::disconnect(&self.pump);
        os::cancel_sync::<_, 0>(self);
        // Dropping a ring stops it first.
        drop(self.rx.lock().take());
        let mut emptied = self.state.lock().empty();
        if rescue {
            return emptied.rescue(|orphan| self.bundle().add_orphan(orphan));
        }
        Ok(())
    }

    fn bundle(&self) -> &Bundle {
        self.peer.bundle()
    }

    /// The rail belongs to the peer's bundle. `alone`: it is the first. Nothing is sent or taken
    /// before.
    pub(super) fn join(&self, alone: bool) {
        let (tx, rx) = self.bundle().epoch().tags();
        let mut state = self.state.lock();
        state.proto.set_bundle(tx, rx);
        state.numbers = match alone {
            true => Numbers::Own(0),
            false => Numbers::Bundle,
        };
    }

    /// Other rails will carry frames of the bundle as well.
    pub(super) fn share(&self) {
        let mut state = self.state.lock();
        if let Some(sender) = state.share() {
            self.bundle().tx().sender = sender;
        }
    }

    /// How much is under way on this rail.
    pub(super) fn load(&self) -> u32 {
        self.load.load(Relaxed)
    }

    /// From now on frames are taken: the layer above knows the peer.
    pub(super) fn open(&self) {
        self.open.store(1, Release);
    }

    /// Ends the rail as if the other side did not answer any more.
    pub(super) fn declare_dead(&self) {
        self.state.lock().dead = true;
        self.owner.clone().dead();
    }

    /// See [`Peer::send`]. The frame is sent on this rail, or left to others if it ends meanwhile.
    pub(super) fn send(
        self: &Arc<Self>,
        mut buf: KBox<TxBuf>,
        mut header: Header,
        ext: &[u8],
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result,
    ) -> Result<(), TxError> {
        // Filled outside the lock: other QPs go on meanwhile.
        let bytes = buf.bytes();
        let filled = match header.emit(ext, payload_len, bytes) {
            Ok(begin) => match bytes.get_mut(begin..begin + payload_len) {
                Some(to) => fill(to).map(|()| begin + payload_len),
                None => Err(EMSGSIZE),
            },
            Err(_) => Err(EMSGSIZE),
        };
        let mut state = self.state.lock();
        state.filling -= 1;
        let end = match filled {
            Ok(end) => end,
            Err(e) => {
                state.unclaim(self.bundle(), buf);
                return Err(TxError::Fill(e));
            }
        };
        let now = now_us();
        header.bundle = state.number(self.bundle());
        let seq = state.proto.commit(&mut header, now);
        // It went well with the same lengths before.
        let _ = header.emit(ext, payload_len, buf.bytes());
        state.launch(buf, end, seq, header.bundle);
        self.note_load(&state);
        self.arm(&mut state, now);
        Ok(())
    }

    /// A buffer for a frame, to be given to [`Self::send`]. A rail that has ended refuses, too:
    /// whoever waits hears of it when the peer knows how it goes on.
    pub(super) fn take_buf(self: &Arc<Self>) -> Result<KBox<TxBuf>, Refusal> {
        let mut state = self.state.lock();
        if state.closed || state.dead {
            return Err(Refusal::Rail);
        }
        if !state.has_room() {
            state.collect();
        }
        let refusal = match state.claim(self.bundle()) {
            Ok(buf) => return Ok(buf),
            Err(refusal) => refusal,
        };
        // Room in the span comes with an acknowledgement, and whoever takes that looks.
        if refusal == Refusal::Rail {
            state.refused = true;
            self.arm(&mut state, now_us());
            self.counters.refused.fetch_add(1, Relaxed);
        }
        Err(refusal)
    }

    fn note_load(&self, state: &Frames) {
        let load = match state.closed || state.dead {
            true => u32::MAX,
            false => state.proto.in_flight(),
        };
        self.load.store(load, Relaxed);
    }

    /// A number for each of `counters::NAMES`.
    pub(super) fn counts(&self) -> Counts {
        let stats = self.state.lock().proto.stats();
        let counters = &self.counters;
        let malformed = counters
            .malformed
            .iter()
            .map(|counter| counter.load(Relaxed));
        [
            stats.tx,
            stats.retransmits,
            stats.timeouts,
            stats.stalls,
            counters.control.load(Relaxed),
            counters.rx_frames.load(Relaxed),
            stats.duplicates,
            stats.held,
            stats.outside,
            counters.damaged.load(Relaxed),
            malformed.sum(),
            stats.naks_sent,
            stats.naks_received,
            // Of bundles.
            0,
            0,
            0,
        ]
    }

    /// Writes the rail's line for the state file.
    pub(super) fn report(&self, link: u32, out: &mut Writer) -> fmt::Result {
        let (stats, room, free, draining) = {
            let state = self.state.lock();
            (
                state.proto.stats(),
                state.proto.room(),
                state.free.len(),
                state.draining.len(),
            )
        };
        let counters = &self.counters;
        write!(
            out,
            "rail link={link} window={} room={room} free={free} draining={draining} tx={} \
             retransmits={} timeouts={} stalls={} rx={} duplicates={} held={} outside={} \
             naks_sent={} naks_received={} absurd={} rtt_us={} frames={} control={} refused={} \
             damaged={}",
            self.frames,
            stats.tx,
            stats.retransmits,
            stats.timeouts,
            stats.stalls,
            stats.rx,
            stats.duplicates,
            stats.held,
            stats.outside,
            stats.naks_sent,
            stats.naks_received,
            stats.absurd,
            stats.rtt_us,
            counters.rx_frames.load(Relaxed),
            counters.control.load(Relaxed),
            counters.refused.load(Relaxed),
            counters.damaged.load(Relaxed),
        )?;
        for (reason, counter) in REASONS.iter().zip(&counters.malformed) {
            write!(
                out,
                " malformed_{}={}",
                reason.name(),
                counter.load(Relaxed)
            )?;
        }
        out.write_str("\n")
    }

    /// Asks the other side to prove that the path works; [`Owner::pong`] tells of the answer.
    pub(super) fn ping(&self, nonce: u64) {
        self.send_proof(Opcode::Ping, nonce);
    }

    /// PING or PONG.
    fn send_proof(&self, opcode: Opcode, nonce: u64) {
        let mut payload = [0; 8 + EPOCH_LEN];
        let (first, second) = payload.split_at_mut(8);
        first.copy_from_slice(&nonce.to_le_bytes());
        second.copy_from_slice(&self.bundle().epoch().emit());
        self.send_control(opcode, &payload);
    }

    fn send_control(&self, opcode: Opcode, payload: &[u8]) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        state.collect();
        let mut header = Header {
            opcode,
            ..Header::default()
        };
        state.proto.stamp_control(&mut header);
        state.control(&header, payload);
        self.counters.control.fetch_add(1, Relaxed);
    }

    /// Does what the protocol wants done now: repeats, control frames, the timer.
    fn work_off(self: &Arc<Self>, state: &mut Frames, now: u64) {
        state.resend(now);
        let sent = state.send_controls(now);
        self.counters.control.fetch_add(sent, Relaxed);
        state.dead |= state.proto.is_dead(now);
        self.note_load(state);
        self.arm(state, now);
    }

    /// Makes the timer run when the protocol wants it.
    fn arm(self: &Arc<Self>, state: &mut Frames, now: u64) {
        let refused = state.refused.then(|| now.saturating_add(REFUSED_US));
        let deadline = match (state.proto.next_timeout(), refused) {
            (Some(a), Some(b)) => a.min(b),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return,
        };
        if state.closed || (state.timer_at != 0 && state.timer_at <= deadline) {
            return;
        }
        state.timer_at = deadline.max(1);
        let ms = deadline.saturating_sub(now).div_ceil(1000);
        self.queue
            .retime::<_, 0>(self.clone(), u32::try_from(ms).unwrap_or(u32::MAX));
    }

    /// One frame from the ring. Returns whether something was handed up.
    fn receive(
        self: &Arc<Self>,
        rx: &RxRing,
        order: &mut Order,
        frame: Received<'_>,
        now: u64,
    ) -> bool {
        let Some(bytes) = frame.bytes() else {
            self.counters.damaged.fetch_add(1, Relaxed);
            return false;
        };
        let (header, ext, payload) = match Header::parse(bytes) {
            Ok(parsed) => parsed,
            Err(e) => {
                if let Some(counter) = self.counters.malformed.get(e.index()) {
                    counter.fetch_add(1, Relaxed);
                }
                return false;
            }
        };
        self.counters.rx_frames.fetch_add(1, Relaxed);
        if header.opcode.is_sequenced() && self.open.load(Acquire) == 0 {
            // The other side is ready before us: it has to send that again.
            return false;
        }
        let verdict = {
            let mut state = self.state.lock();
            let una = state.proto.una();
            let verdict = state.proto.on_frame(&header, payload, now);
            state.acked(una, self.bundle());
            verdict
        };
        match verdict {
            Rx::Deliver => {
                let mut delivered = self.in_order(order, bytes, &header, ext, payload);
                drop(frame);
                delivered |= self.deliver_held(rx, order);
                delivered
            }
            Rx::Hold => {
                let kept = frame.keep();
                let mut state = self.state.lock();
                if let Some(place) = state.held_at(header.seq.into()) {
                    *place = Some(kept);
                }
                false
            }
            Rx::Control => {
                self.control_frame(&header, payload);
                false
            }
            Rx::Duplicate | Rx::Outside => false,
        }
    }

    /// Goes on with what had to wait for a frame of this rail that has come now. Returns whether
    /// something was handed up.
    fn deliver_held(self: &Arc<Self>, rx: &RxRing, order: &mut Order) -> bool {
        let mut delivered = false;
        loop {
            let kept = {
                let mut state = self.state.lock();
                let Some(seq) = state.proto.next_held() else {
                    return delivered;
                };
                state.held_at(seq).and_then(Option::take)
            };
            let Some(frame) = kept.and_then(|kept| rx.restore(kept)) else {
                continue;
            };
            // It was understood when it came, and nobody has touched it since.
            let Some(bytes) = frame.bytes() else { continue };
            if let Ok((header, ext, payload)) = Header::parse(bytes) {
                delivered |= self.in_order(order, bytes, &header, ext, payload);
            }
        }
    }

    /// The rail delivers a frame: hands it up, and what had to wait for it, unless it has to wait
    /// for a frame of another rail itself. Returns whether something was handed up.
    fn in_order(
        &self,
        order: &mut Order,
        bytes: &[u8],
        header: &Header,
        ext: &[u8],
        payload: &[u8],
    ) -> bool {
        if !order.on_frame(header.bundle, bytes) {
            return false;
        }
        self.deliver(header, ext, payload);
        while let Some(bytes) = order.next_held() {
            if let Ok((header, ext, payload)) = Header::parse(bytes) {
                self.deliver(&header, ext, payload);
            }
        }
        true
    }

    fn deliver(&self, header: &Header, ext: &[u8], payload: &[u8]) {
        let peer = &self.peer;
        if header.opcode == Opcode::Netdev {
            self.net.receive(&peer.mac(), payload);
        } else {
            peer.upcalls().deliver(peer, header, ext, payload);
        }
    }

    fn control_frame(&self, header: &Header, payload: &[u8]) {
        match header.opcode {
            Opcode::Ping => {
                if let Some(nonce) = payload.first_chunk() {
                    self.send_proof(Opcode::Pong, u64::from_le_bytes(*nonce));
                }
            }
            Opcode::Pong => {
                let Some((nonce, theirs)) = payload.split_first_chunk() else {
                    return;
                };
                if let Some(theirs) = Epoch::parse(theirs) {
                    self.owner.clone().pong(u64::from_le_bytes(*nonce), theirs);
                }
            }
            _ => (),
        }
    }

    /// What is owed to the other side is acknowledged now.
    pub(super) fn hasten_ack(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if !state.closed {
            state.proto.hasten_ack();
            self.work_off(&mut state, now_us());
        }
    }

    /// Has the rail look whether other rails have left something behind.
    pub(super) fn ask(&self) {
        Pump::ask(&self.pump);
    }

    /// After frames or time have passed: control frames, room for those who wait, a dead rail.
    fn settle(self: &Arc<Self>, now: u64) {
        let (resume, dead) = {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.collect();
            let was_dead = state.dead;
            let bundled = state.numbers == Numbers::Bundle;
            if bundled && !was_dead {
                state.adopt(self.bundle(), now);
            }
            self.work_off(&mut state, now);
            let mut resume = state.refused && state.has_room();
            if resume {
                state.refused = false;
            }
            if bundled {
                resume |= self.bundle().tx().sender.take_resume();
            }
            (resume, state.dead && !was_dead)
        };
        if resume {
            self.peer.upcalls().tx_ready(&self.peer);
            Net::kick(&self.net);
        }
        if dead {
            self.owner.clone().dead();
        }
    }

    /// Takes a batch of frames from the ring and hands them up. Returns how many were there, and
    /// whether something was handed up.
    fn take_batch(
        self: &Arc<Self>,
        rx: &RxRing,
        mut order: MutexGuard<'_, Order>,
    ) -> (usize, bool) {
        let now = now_us();
        let mut taken = 0;
        let mut delivered = false;
        while taken < BATCH {
            let Some(frame) = rx.poll() else { break };
            taken += 1;
            delivered |= self.receive(rx, &mut order, frame, now);
        }
        let acks_are_due = order.acks_are_due();
        drop(order);
        if acks_are_due {
            self.peer.hasten_acks();
        }
        if delivered {
            self.peer.upcalls().batch_end(&self.peer);
        }
        (taken, delivered)
    }

    /// Looks for frames in the caller's context, unless somebody is looking already. Returns whether
    /// some were handed up. Sleeps, briefly.
    pub(super) fn poll(self: &Arc<Self>) -> bool {
        let Some(rx) = self.rx.try_lock() else {
            return false;
        };
        let Some(rx) = &*rx else { return false };
        let Some(order) = self.bundle().try_order() else {
            return false;
        };
        let (taken, delivered) = self.take_batch(rx, order);
        let now = now_us();
        self.pump.polled(now, taken > 0);
        if taken > 0 {
            self.settle(now);
        }
        delivered
    }
}

impl Target for Rail {
    fn pump(this: &Arc<Self>) -> Taken {
        let rx = this.rx.lock();
        let Some(rx) = &*rx else {
            return Taken::Nothing;
        };
        let (taken, _) = this.take_batch(rx, this.bundle().order());
        this.settle(now_us());
        match taken {
            0 => Taken::Nothing,
            BATCH => Taken::Part,
            _ => Taken::All,
        }
    }

    fn unmask(this: &Arc<Self>) {
        if let Some(rx) = &*this.rx.lock() {
            rx.poll_done();
        }
    }
}

impl WorkItem for Rail {
    type Pointer = Arc<Self>;

    /// The timer.
    fn run(this: Arc<Self>) {
        let now = now_us();
        {
            let mut state = this.state.lock();
            state.timer_at = 0;
            if state.closed {
                return;
            }
            state.proto.on_timeout(now);
        }
        // An interrupt may have been lost; looking costs nothing.
        Pump::ask(&this.pump);
        this.settle(now);
    }
}

impl Counters {
    fn new() -> Self {
        Self {
            rx_frames: Atomic::new(0),
            control: Atomic::new(0),
            refused: Atomic::new(0),
            damaged: Atomic::new(0),
            malformed: [const { Atomic::new(0) }; FrameError::COUNT],
        }
    }
}
