//! Tests of the host interface against the contract that the driver relies on.

use super::*;
use std::io::Read;
use std::os::fd::OwnedFd;

const MEMORY: u64 = 0x10_0000;
const TX_DESCRIPTORS: u64 = MEMORY;
const RX_DESCRIPTORS: u64 = MEMORY + 0x1000;
const BUFFER: u64 = MEMORY + 0x2000;

fn nhi() -> Nhi {
    let (mut nhi, _file) = Nhi::new(0x10).unwrap();
    let memory = tempfile::tempfile().unwrap();
    memory.set_len(0x10_000).unwrap();
    nhi.memory.map(MEMORY, 0x10_000, memory, 0).unwrap();
    nhi
}

fn start(nhi: &mut Nhi, side: Side, ring: usize, base: u64, size: u32, options: u32) {
    let (page, options_at) = match side {
        Side::Tx => (nhi::TX_RING, nhi::TX_OPTIONS),
        Side::Rx => (nhi::RX_RING, nhi::RX_OPTIONS),
    };
    let at = page + ring * nhi::RING_STRIDE;
    nhi.write_register(at, base as u32);
    nhi.write_register(at + 4, (base >> 32) as u32);
    nhi.write_register(at + 12, 4096 << 16 | size);
    nhi.write_register(
        options_at + ring * nhi::OPTIONS_STRIDE,
        nhi::ENABLED | options,
    );
}

fn give_buffer(nhi: &Nhi, descriptors: u64, index: u64, word: u32) {
    let at = descriptors + index * descriptor::SIZE;
    assert!(nhi.memory.write(at, &BUFFER.to_le_bytes()));
    assert!(nhi.memory.write(at + 8, &word.to_le_bytes()));
}

fn word(nhi: &Nhi, descriptors: u64, index: u64) -> u32 {
    let mut raw = [0; 4];
    assert!(nhi
        .memory
        .read(descriptors + index * descriptor::SIZE + 8, &mut raw));
    u32::from_le_bytes(raw)
}

fn event() -> (File, File) {
    let event = nix::sys::eventfd::EventFd::from_value_and_flags(
        0,
        nix::sys::eventfd::EfdFlags::EFD_NONBLOCK,
    )
    .unwrap();
    let file = File::from(OwnedFd::from(event));
    (file.try_clone().unwrap(), file)
}

fn fired(event: &mut File) -> u64 {
    let mut count = [0; 8];
    match event.read_exact(&mut count) {
        Ok(()) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

#[test]
fn sends_what_the_doorbell_covers() {
    let mut nhi = nhi();
    start(&mut nhi, Side::Tx, 2, TX_DESCRIPTORS, 4, 0);
    assert!(nhi.memory.write(BUFFER, b"hello"));
    give_buffer(&nhi, TX_DESCRIPTORS, 0, 5 | 3 << 12 | 1 << 16);
    assert_eq!(nhi.doorbells(), (0, 0));
    nhi.write_register(nhi::TX_RING + 2 * 16 + 8, 1 << 16);
    assert_eq!(nhi.doorbells(), (1 << 2, 0));
    let mut buffer = [0; FRAME_MAX];
    let frame = nhi.peek(2, &mut buffer).unwrap();
    assert_eq!(
        frame,
        Frame {
            length: 5,
            sof: 1,
            eof: 3
        }
    );
    assert_eq!(&buffer[..5], b"hello");
    nhi.sent(2, &frame, false);
    assert!(word(&nhi, TX_DESCRIPTORS, 0) & descriptor::DONE != 0);
    assert_eq!(nhi.peek(2, &mut buffer), None);
    assert_eq!(nhi.counters().tx[&2].bytes, 5);
}

#[test]
fn length_zero_stands_for_a_page() {
    let mut nhi = nhi();
    start(&mut nhi, Side::Tx, 1, TX_DESCRIPTORS, 4, 0);
    give_buffer(&nhi, TX_DESCRIPTORS, 0, 0);
    nhi.write_register(nhi::TX_RING + 16 + 8, 1 << 16);
    nhi.doorbells();
    let frame = nhi.peek(1, &mut [0; FRAME_MAX]).unwrap();
    assert_eq!(frame.length, 4096);
}

#[test]
fn a_full_receive_ring_waits_only_with_flow_control() {
    let mut nhi = nhi();
    assert_eq!(nhi.room(1), Room::Lost);
    start(&mut nhi, Side::Rx, 1, RX_DESCRIPTORS, 4, 0);
    assert_eq!(nhi.room(1), Room::Lost);
    start(&mut nhi, Side::Rx, 2, RX_DESCRIPTORS, 4, nhi::END_TO_END);
    assert_eq!(nhi.room(2), Room::Wait);
    give_buffer(&nhi, RX_DESCRIPTORS, 0, 0);
    nhi.write_register(nhi::RX_RING + 2 * 16 + 8, 1);
    assert_eq!(nhi.doorbells(), (0, 1 << 2));
    assert_eq!(nhi.room(2), Room::Yes);
    nhi.receive(2, 1, 2, b"abc", true);
    assert_eq!(nhi.room(2), Room::Wait);
    let word = word(&nhi, RX_DESCRIPTORS, 0);
    assert_eq!(
        word,
        3 | 2 << 12 | 1 << 16 | descriptor::DONE | descriptor::CRC_ERROR
    );
}

#[test]
fn a_ring_that_is_stopped_touches_nothing() {
    let mut nhi = nhi();
    start(&mut nhi, Side::Tx, 1, TX_DESCRIPTORS, 4, 0);
    give_buffer(&nhi, TX_DESCRIPTORS, 0, 5);
    nhi.write_register(nhi::TX_RING + 16 + 8, 1 << 16);
    nhi.doorbells();
    nhi.write_register(nhi::TX_OPTIONS + 32, 0);
    assert_eq!(nhi.peek(1, &mut [0; FRAME_MAX]), None);
}

#[test]
fn what_is_not_mapped_stops_the_ring() {
    let mut nhi = nhi();
    start(&mut nhi, Side::Tx, 1, 0xdead_0000, 4, 0);
    nhi.write_register(nhi::TX_RING + 16 + 8, 1 << 16);
    nhi.doorbells();
    assert_eq!(nhi.peek(1, &mut [0; FRAME_MAX]), None);
    assert_eq!(nhi.guest_errors, 1);
    // An index beyond the ring is ignored.
    start(&mut nhi, Side::Rx, 1, RX_DESCRIPTORS, 4, 0);
    nhi.write_register(nhi::RX_RING + 16 + 8, 9);
    for _ in 0..3 {
        assert_eq!(nhi.doorbells(), (0, 0));
        assert_eq!(nhi.guest_errors, 2, "told once, not at every look");
    }
    nhi.write_register(nhi::RX_RING + 16 + 8, 1);
    assert_eq!(nhi.doorbells(), (0, 1 << 1));
    // A ring whose end lies beyond 2^64 is none.
    start(&mut nhi, Side::Tx, 2, u64::MAX - 15, 4, 0);
    nhi.write_register(nhi::TX_RING + 2 * 16 + 8, 1 << 16);
    assert_eq!(nhi.doorbells(), (0, 0));
    assert_eq!(nhi.guest_errors, 3);
}

#[test]
fn no_interrupt_is_lost() {
    let mut nhi = nhi();
    let (ours, mut theirs) = event();
    nhi.set_vector(5, Some(ours));
    // Transmit ring 1 to vector 5
    nhi.write_register(nhi::VECTORS, 5 << 4);
    // While it is off, a bit is set but nothing fires; turning it on fires.
    nhi.transmitted(1);
    assert_eq!(nhi.read_register(nhi::NOTIFY), 2);
    assert_eq!(fired(&mut theirs), 0);
    nhi.write_register(nhi::INTERRUPT_ENABLE, 2);
    assert_eq!(fired(&mut theirs), 1);
    // What happens before the guest clears the bit is told after it has.
    nhi.transmitted(1);
    assert_eq!(fired(&mut theirs), 0);
    nhi.write_register(nhi::INTERRUPT_CLEAR, 2);
    assert_eq!(fired(&mut theirs), 1);
    nhi.write_register(nhi::INTERRUPT_CLEAR, 2);
    assert_eq!(nhi.read_register(nhi::NOTIFY), 0);
    nhi.write_register(nhi::INTERRUPT_MASK_CLEAR, 2);
    nhi.transmitted(1);
    assert_eq!(fired(&mut theirs), 0);
}

#[test]
fn only_version_2_can_reset_the_router() {
    let (mut v1, _) = Nhi::new(0x10).unwrap();
    assert!(!v1.write_register(nhi::RESET, 1));
    let (mut v2, _) = Nhi::new(0x40).unwrap();
    assert!(v2.write_register(nhi::RESET, 1));
    assert_eq!(v2.read_register(nhi::RESET), 0);
    assert_eq!(v2.read_register(nhi::CAPABILITIES), 0x40_0010);
}

#[test]
fn what_happens_while_a_vector_has_no_event_is_told_when_it_gets_one() {
    let mut nhi = nhi();
    nhi.write_register(nhi::INTERRUPT_ENABLE, 1 << 3 | 1 << 4);
    nhi.write_register(nhi::VECTORS, 2 << 12 | 1 << 16);
    nhi.set_vector(2, None);
    nhi.transmitted(3);
    let (given, mut other) = event();
    nhi.set_vector(1, Some(given));
    let (given, mut right) = event();
    nhi.set_vector(2, Some(given));
    assert_eq!((fired(&mut right), fired(&mut other)), (1, 0));
    // Nothing is told that the guest has dealt with.
    nhi.write_register(nhi::INTERRUPT_CLEAR, 1 << 3);
    let (given, mut right) = event();
    nhi.set_vector(2, Some(given));
    assert_eq!(fired(&mut right), 0);
}
