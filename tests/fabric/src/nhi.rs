//! The host interface: registers, descriptor rings and interrupts (USB4 chapter 12).
//!
//! Two pages of BAR 0, with the base, size and index registers of the rings, are memory that the guest maps:
//! writing a doorbell costs the guest nothing, and [`Nhi::doorbells`] finds what changed. Everything else is
//! trapped. A ring that is stopped through its trapped options register is therefore really stopped when the
//! guest's write returns, and the guest may free its buffers.

use crate::layout::{descriptor, nhi, BAR0_SIZE, FRAME_MAX, RINGS};
use crate::memory::Memory;
use crate::protocol::{RingCounters, RouterCounters};
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::Ordering;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Bytes of each of the two shared pages.
pub(crate) const SHARED_SIZE: usize = 0x1000;
/// Where they begin.
pub(crate) const SHARED: [usize; 2] = [nhi::TX_RING, nhi::RX_RING];

/// MSI-X vectors.
pub(crate) const VECTORS: usize = 16;

/// A direction, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Tx,
    Rx,
}

/// A descriptor ring.
#[derive(Clone, Default)]
struct Ring {
    running: bool,
    end_to_end: bool,
    base: u64,
    size: u32,
    /// Most bytes that a receive buffer takes.
    limit: u32,
    /// Next descriptor for us.
    next: u32,
    /// First descriptor that is not ours (yet).
    end: u32,
    /// The frame at `next` was counted as waiting.
    waiting: bool,
    /// An index beyond the ring that was counted already; the guest's page keeps it until it writes another.
    beyond: Option<u32>,
    counters: RingCounters,
}

impl Ring {
    fn empty(&self) -> bool {
        self.next == self.end
    }

    fn advance(&mut self) {
        self.next = (self.next + 1) % self.size;
        self.waiting = false;
        self.counters.descriptors += 1;
    }

    fn descriptor(&self) -> u64 {
        // `set_options` has made sure that the last one does not lie beyond 2^64.
        self.base + u64::from(self.next) * descriptor::SIZE
    }
}

/// A frame that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) length: usize,
    pub(crate) sof: u8,
    pub(crate) eof: u8,
}

/// What a receive ring can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// A frame.
    Yes,
    /// Nothing now; the sender waits.
    Wait,
    /// Nothing; frames are lost.
    Lost,
}

/// The host interface of one host.
pub(crate) struct Nhi {
    registers: Vec<u32>,
    shared: MmapRegion,
    tx: Vec<Ring>,
    rx: Vec<Ring>,
    /// Bits of `NOTIFY`.
    notify: u32,
    /// Things that happened while their bit of `notify` was set already. The guest's writes to
    /// `INTERRUPT_CLEAR` may arrive long after it has looked at the ring; these must not be lost.
    again: u32,
    vectors: Vec<Option<File>>,
    pub(crate) memory: Memory,
    pub(crate) interrupts: u64,
    pub(crate) register_accesses: u64,
    pub(crate) guest_errors: u64,
    version: u8,
}

impl Nhi {
    /// A host interface as after power-on. `version`: 0x10 for USB4 v1, 0x40 for v2. The file is what the guest maps.
    pub(crate) fn new(version: u8) -> io::Result<(Self, File)> {
        let file = File::from(nix::sys::memfd::memfd_create(
            c"nhi",
            nix::sys::memfd::MemFdCreateFlag::MFD_CLOEXEC,
        )?);
        file.set_len(BAR0_SIZE as u64)?;
        let shared = MmapRegion::from_file(FileOffset::new(file.try_clone()?, 0), BAR0_SIZE)
            .map_err(io::Error::other)?;
        let mut new = Self {
            registers: Vec::new(),
            shared,
            tx: vec![Ring::default(); RINGS],
            rx: vec![Ring::default(); RINGS],
            notify: 0,
            again: 0,
            vectors: (0..VECTORS).map(|_| None).collect(),
            memory: Memory::default(),
            interrupts: 0,
            register_accesses: 0,
            guest_errors: 0,
            version,
        };
        new.reset();
        Ok((new, file))
    }

    /// Back to the state after power-on; counters and memory stay.
    pub(crate) fn reset(&mut self) {
        self.registers = vec![0; BAR0_SIZE / 4];
        self.registers[nhi::CAPABILITIES / 4] = RINGS as u32 | u32::from(self.version) << 16;
        for (ring, page) in [(&mut self.tx, nhi::TX_RING), (&mut self.rx, nhi::RX_RING)] {
            for (number, ring) in ring.iter_mut().enumerate() {
                *ring = Ring {
                    counters: std::mem::take(&mut ring.counters),
                    ..Ring::default()
                };
                for word in 0..4 {
                    set(&self.shared, page + number * nhi::RING_STRIDE + word * 4, 0);
                }
            }
        }
        self.notify = 0;
        self.again = 0;
    }

    /// Connects an MSI-X vector to an event of the VMM.
    pub(crate) fn set_vector(&mut self, vector: usize, event: Option<File>) {
        let Some(slot) = self.vectors.get_mut(vector) else {
            return;
        };
        *slot = event;
        // When a guest uses one vector more, QEMU takes the events of all away and gives them back. What happened in
        // between told nobody, and never would: its bit of `notify` is set already. Telling twice does no harm.
        let told = self.notify & self.registers[nhi::INTERRUPT_ENABLE / 4];
        let missed = (0..32)
            .filter(|&bit| told >> bit & 1 != 0 && self.route(bit) == vector)
            .fold(0, |bits, bit| bits | 1 << bit);
        self.interrupt(missed);
    }

    pub(crate) fn counters(&self) -> RouterCounters {
        let used = |rings: &[Ring]| {
            rings
                .iter()
                .map(|ring| ring.counters.clone())
                .enumerate()
                .filter(|(_, counters)| *counters != RingCounters::default())
                .collect()
        };
        RouterCounters {
            interrupts: self.interrupts,
            register_accesses: self.register_accesses,
            guest_errors: self.guest_errors,
            tx: used(&self.tx),
            rx: used(&self.rx),
        }
    }

    // --- registers ---

    pub(crate) fn read_register(&mut self, offset: usize) -> u32 {
        self.register_accesses += 1;
        if let Some((side, number, 8)) = ring_register(offset) {
            let ring = self.ring(side, number);
            return match side {
                Side::Tx => ring.end << 16 | ring.next,
                Side::Rx => ring.next << 16 | ring.end,
            };
        }
        match offset {
            nhi::NOTIFY => self.notify,
            _ if ring_register(offset).is_some() => get(&self.shared, offset),
            _ => self.registers.get(offset / 4).copied().unwrap_or(0),
        }
    }

    /// Returns true if the host router shall be reset.
    pub(crate) fn write_register(&mut self, offset: usize, value: u32) -> bool {
        self.register_accesses += 1;
        match offset {
            _ if ring_register(offset).is_some() => set(&self.shared, offset, value),
            nhi::INTERRUPT_CLEAR => self.clear_notify(value),
            nhi::INTERRUPT_ENABLE => {
                let enabled = std::mem::replace(&mut self.registers[offset / 4], value);
                self.interrupt(value & !enabled & self.notify);
            }
            nhi::INTERRUPT_MASK_CLEAR => self.registers[nhi::INTERRUPT_ENABLE / 4] &= !value,
            nhi::RESET => return self.version >= 0x40 && value & 1 != 0,
            nhi::CAPABILITIES | nhi::NOTIFY => {}
            _ => {
                if let Some(register) = self.registers.get_mut(offset / 4) {
                    *register = value;
                }
                if let Some((side, number, 0)) = options_register(offset) {
                    self.set_options(side, number, value);
                }
            }
        }
        false
    }

    fn set_options(&mut self, side: Side, number: usize, value: u32) {
        let page = match side {
            Side::Tx => nhi::TX_RING,
            Side::Rx => nhi::RX_RING,
        };
        let at = page + number * nhi::RING_STRIDE;
        let base = u64::from(get(&self.shared, at)) | u64::from(get(&self.shared, at + 4)) << 32;
        let size = get(&self.shared, at + 12);
        let ring = self.ring_mut(side, number);
        let run = value & nhi::ENABLED != 0;
        if run && !ring.running {
            ring.base = base;
            ring.size = size & 0xffff;
            ring.limit = size >> 16;
            ring.next = 0;
            ring.end = 0;
            ring.waiting = false;
            ring.beyond = None;
        }
        ring.end_to_end = value & nhi::END_TO_END != 0;
        let fits = ring
            .base
            .checked_add(u64::from(ring.size) * descriptor::SIZE)
            .is_some();
        ring.running = run && ring.size > 1 && ring.base != 0 && fits;
        if run && !ring.running {
            log::warn!(
                "{side:?} ring {number}: {} descriptors at {:#x} make no ring; it stays off",
                ring.size,
                ring.base
            );
            self.guest_errors += 1;
        }
    }

    fn ring(&self, side: Side, number: usize) -> &Ring {
        match side {
            Side::Tx => &self.tx[number],
            Side::Rx => &self.rx[number],
        }
    }

    fn ring_mut(&mut self, side: Side, number: usize) -> &mut Ring {
        match side {
            Side::Tx => &mut self.tx[number],
            Side::Rx => &mut self.rx[number],
        }
    }

    /// Which rings the guest has given something since the last time: bits of transmit and of receive rings.
    pub(crate) fn doorbells(&mut self) -> (u32, u32) {
        let mut changed = [0, 0];
        for side in [Side::Tx, Side::Rx] {
            for number in 0..RINGS {
                if !self.ring(side, number).running {
                    continue;
                }
                let (page, shift) = match side {
                    Side::Tx => (nhi::TX_RING, 16),
                    Side::Rx => (nhi::RX_RING, 0),
                };
                let index =
                    get(&self.shared, page + number * nhi::RING_STRIDE + 8) >> shift & 0xffff;
                let ring = self.ring_mut(side, number);
                if index == ring.end {
                    continue;
                }
                if index >= ring.size {
                    if ring.beyond.replace(index) != Some(index) {
                        log::warn!(
                            "{side:?} ring {number}: index {index} is beyond its {} descriptors",
                            ring.size
                        );
                        self.guest_errors += 1;
                    }
                    continue;
                }
                ring.beyond = None;
                ring.end = index;
                ring.counters.doorbells += 1;
                changed[usize::from(side == Side::Rx)] |= 1 << number;
            }
        }
        (changed[0], changed[1])
    }

    // --- transmit ---

    /// The next frame of a transmit ring, its bytes in `buffer`. `None`: there is none.
    pub(crate) fn peek(&mut self, number: usize, buffer: &mut [u8; FRAME_MAX]) -> Option<Frame> {
        let ring = &self.tx[number];
        if !ring.running || ring.empty() {
            return None;
        }
        let mut raw = [0; descriptor::SIZE as usize];
        if !self.memory.read(ring.descriptor(), &mut raw) {
            return self.broken(number);
        }
        let (address, word) = parse_descriptor(&raw);
        let length = match (word & descriptor::LENGTH) as usize {
            0 => FRAME_MAX,
            length => length,
        };
        if !self.memory.read(address, &mut buffer[..length]) {
            return self.broken(number);
        }
        Some(Frame {
            length,
            sof: (word >> descriptor::SOF_SHIFT & 0xf) as u8,
            eof: (word >> descriptor::EOF_SHIFT & 0xf) as u8,
        })
    }

    /// A real NHI would bring the machine down; we stop the ring.
    fn broken(&mut self, number: usize) -> Option<Frame> {
        log::warn!("transmit ring {number}: a descriptor or buffer is not mapped; ring stopped");
        self.guest_errors += 1;
        self.tx[number].running = false;
        None
    }

    /// The frame that [`Self::peek`] gave has left; `lost`: it went nowhere.
    pub(crate) fn sent(&mut self, number: usize, frame: &Frame, lost: bool) {
        let ring = &mut self.tx[number];
        let word_at = ring.descriptor() + 8;
        let word = (frame.length as u32 & descriptor::LENGTH)
            | u32::from(frame.eof) << descriptor::EOF_SHIFT
            | u32::from(frame.sof) << descriptor::SOF_SHIFT
            | descriptor::DONE;
        ring.counters.frames += 1;
        ring.counters.bytes += frame.length as u64;
        ring.counters.drops += u64::from(lost);
        ring.advance();
        if !self.memory.publish(word_at, word) {
            self.guest_errors += 1;
        }
    }

    /// The frame that [`Self::peek`] gave has to wait for its receiver.
    pub(crate) fn wait(&mut self, number: usize) {
        let ring = &mut self.tx[number];
        ring.counters.stalls += u64::from(!ring.waiting);
        ring.waiting = true;
    }

    /// Transmit rings that wait for a receiver.
    pub(crate) fn waiting(&self) -> u32 {
        let waits = |ring: &Ring| ring.running && ring.waiting;
        (0..RINGS)
            .filter(|&n| waits(&self.tx[n]))
            .fold(0, |bits, n| bits | 1 << n)
    }

    /// Tells the guest that a transmit ring has made progress.
    pub(crate) fn transmitted(&mut self, number: usize) {
        self.happened(1 << number);
    }

    // --- receive ---

    pub(crate) fn receiving(&self, number: usize) -> bool {
        self.rx.get(number).is_some_and(|ring| ring.running)
    }

    /// What a receive ring can take.
    pub(crate) fn room(&self, number: usize) -> Room {
        match self.rx.get(number) {
            Some(ring) if ring.running && !ring.empty() => Room::Yes,
            Some(ring) if ring.running && (ring.end_to_end || number == 0) => Room::Wait,
            _ => Room::Lost,
        }
    }

    /// Counts a frame that came when there was no room.
    pub(crate) fn lost(&mut self, number: usize) {
        if let Some(ring) = self.rx.get_mut(number) {
            ring.counters.drops += 1;
        }
    }

    /// Puts a frame into a receive ring that has room.
    pub(crate) fn receive(
        &mut self,
        number: usize,
        sof: u8,
        eof: u8,
        bytes: &[u8],
        crc_error: bool,
    ) {
        let ring = &mut self.rx[number];
        let at = ring.descriptor();
        let limit = if ring.limit == 0 {
            FRAME_MAX
        } else {
            ring.limit as usize
        };
        let fits = &bytes[..bytes.len().min(limit)];
        let mut word = (fits.len() as u32 & descriptor::LENGTH)
            | u32::from(eof) << descriptor::EOF_SHIFT
            | u32::from(sof) << descriptor::SOF_SHIFT
            | descriptor::DONE;
        if crc_error {
            word |= descriptor::CRC_ERROR;
        }
        if fits.len() < bytes.len() {
            word |= descriptor::OVERRUN;
        }
        ring.counters.frames += 1;
        ring.counters.bytes += fits.len() as u64;
        ring.advance();
        let mut raw = [0; descriptor::SIZE as usize];
        let ok = self.memory.read(at, &mut raw)
            && self.memory.write(parse_descriptor(&raw).0, fits)
            && self.memory.publish(at + 8, word);
        if !ok {
            log::warn!("receive ring {number}: a descriptor or buffer is not mapped; ring stopped");
            self.guest_errors += 1;
            self.rx[number].running = false;
            return;
        }
        self.happened(1 << (RINGS + number));
    }

    // --- interrupts ---

    fn happened(&mut self, bit: u32) {
        self.again |= self.notify & bit;
        let new = bit & !self.notify;
        self.notify |= bit;
        self.interrupt(new & self.registers[nhi::INTERRUPT_ENABLE / 4]);
    }

    fn clear_notify(&mut self, bits: u32) {
        self.notify &= !bits;
        let again = self.again & bits;
        self.again &= !bits;
        for bit in (0..32).map(|n| 1 << n).filter(|bit| again & bit != 0) {
            self.happened(bit);
        }
    }

    /// The vector of a bit.
    fn route(&self, bit: usize) -> usize {
        let routes = self.registers[(nhi::VECTORS + bit / 8 * 4) / 4];
        (routes >> (bit % 8 * 4) & 0xf) as usize
    }

    /// Raises the vectors of these bits.
    fn interrupt(&mut self, bits: u32) {
        for bit in (0..32).filter(|n| bits >> n & 1 != 0) {
            let vector = self.route(bit);
            if let Some(event) = &mut self.vectors[vector] {
                // It only fails when the counter is full, and then the VMM has been told already.
                let _ = event.write_all(&1u64.to_ne_bytes());
                self.interrupts += 1;
            }
        }
    }
}

fn parse_descriptor(raw: &[u8; descriptor::SIZE as usize]) -> (u64, u32) {
    let mut address = [0; 8];
    address.copy_from_slice(&raw[..8]);
    let mut word = [0; 4];
    word.copy_from_slice(&raw[8..12]);
    (u64::from_le_bytes(address), u32::from_le_bytes(word))
}

fn ring_register(offset: usize) -> Option<(Side, usize, usize)> {
    register_of(offset, [nhi::TX_RING, nhi::RX_RING], nhi::RING_STRIDE)
}

fn options_register(offset: usize) -> Option<(Side, usize, usize)> {
    register_of(
        offset,
        [nhi::TX_OPTIONS, nhi::RX_OPTIONS],
        nhi::OPTIONS_STRIDE,
    )
}

/// Side, ring and offset within the ring's registers.
fn register_of(offset: usize, bases: [usize; 2], stride: usize) -> Option<(Side, usize, usize)> {
    [Side::Tx, Side::Rx]
        .into_iter()
        .zip(bases)
        .find_map(|(side, base)| {
            let within = offset.checked_sub(base)?;
            (within < RINGS * stride).then_some((side, within / stride, within % stride))
        })
}

fn get(shared: &MmapRegion, offset: usize) -> u32 {
    let word = shared.as_volatile_slice().load(offset, Ordering::Acquire);
    // The offsets are ours and within the pages.
    u32::from_le(word.unwrap_or(0))
}

fn set(shared: &MmapRegion, offset: usize, value: u32) {
    let stored = shared
        .as_volatile_slice()
        .store(value.to_le(), offset, Ordering::Release);
    debug_assert!(stored.is_ok());
}

#[cfg(test)]
#[path = "nhi_tests.rs"]
mod tests;
