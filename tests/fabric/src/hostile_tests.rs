//! A guest that writes anything anywhere must not harm anybody but itself.

use super::*;
use crate::layout::RINGS;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// What a hostile guest does.
#[derive(Clone, Debug)]
enum Act {
    Register(usize, u32),
    Memory(u64, u64),
    /// A control packet with a right CRC.
    Packet(u8, Vec<u32>),
    /// A frame on the control channel that is none.
    Frame(u8, Vec<u8>),
    /// Sets a ring up as a driver does, but with any base, size and index.
    Ring(bool, usize, u64, u32, u32),
}

fn register() -> impl Strategy<Value = usize> {
    let within = |base: usize, size: usize| (base / 4..(base + size) / 4).prop_map(|n| n * 4);
    prop_oneof![
        within(nhi::TX_RING, 0x100),
        within(nhi::RX_RING, 0x100),
        within(nhi::TX_OPTIONS, 0x200),
        within(nhi::RX_OPTIONS, 0x200),
        within(nhi::NOTIFY, 0x20),
        within(nhi::INTERRUPT_ENABLE, 0x10),
        within(nhi::VECTORS, 0x10),
        within(0, crate::layout::BAR0_SIZE),
        Just(nhi::RESET),
    ]
}

fn base() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..SIZE).prop_map(|offset| MEMORY + offset),
        (0..0x100u64).prop_map(|n| u64::MAX - n),
        (0..0x100u64).prop_map(|n| MEMORY + SIZE - n),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (register(), any::<u32>()).prop_map(|(at, value)| Act::Register(at, value)),
        (0..SIZE / 8, any::<u64>()).prop_map(|(at, value)| Act::Memory(MEMORY + at * 8, value)),
        (0..16u8, prop::collection::vec(any::<u32>(), 2..20))
            .prop_map(|(pdf, words)| Act::Packet(pdf, words)),
        (
            1..3u8,
            0..0x80u32,
            0..64u32,
            0..8u32,
            0..4u32,
            prop::collection::vec(any::<u32>(), 0..8)
        )
            .prop_map(|(pdf, offset, length, number, space, data)| {
                let address = offset | length << 13 | number << 19 | space << 25;
                Act::Packet(pdf, [vec![0, 0, address], data].concat())
            }),
        (0..16u8, prop::collection::vec(any::<u8>(), 1..64))
            .prop_map(|(pdf, bytes)| Act::Frame(pdf, bytes)),
        (any::<bool>(), 0..RINGS, base(), any::<u32>(), any::<u32>())
            .prop_map(|(tx, ring, base, size, index)| Act::Ring(tx, ring, base, size, index)),
    ]
}

impl Bed {
    /// Restarts the control channel, whatever was done to it: the state that a driver starts from.
    fn restart_control(&mut self, host: usize) {
        self.stop(host, true, 0);
        self.stop(host, false, 0);
        self.tx_index[host][0] = 0;
        self.rx_index[host][0] = 0;
        self.rx_seen[host][0] = 0;
        self.start(host, true, 0, 0);
        self.start(host, false, 0, 0);
        self.give(host, 0, 15);
    }

    fn act(&mut self, host: usize, act: Act) {
        match act {
            Act::Register(at, value) => self.fabric.write_register(host, at, value),
            Act::Memory(at, value) => {
                let memory = &self.fabric.hosts[host].nhi.memory;
                assert!(memory.write(at, &value.to_le_bytes()));
            }
            Act::Packet(pdf, words) => {
                self.restart_control(host);
                self.post(host, 0, pdf, &Packet::new(pdf, words).bytes());
            }
            Act::Frame(pdf, bytes) => {
                self.restart_control(host);
                self.post(host, 0, pdf, &bytes);
            }
            Act::Ring(tx, ring, base, size, index) => {
                let (page, at) = if tx {
                    (nhi::TX_RING, nhi::TX_OPTIONS)
                } else {
                    (nhi::RX_RING, nhi::RX_OPTIONS)
                };
                let page = page + ring * nhi::RING_STRIDE;
                let at = at + ring * nhi::OPTIONS_STRIDE;
                self.fabric.write_register(host, at, 0);
                for (offset, value) in [(0, base as u32), (4, (base >> 32) as u32), (12, size)] {
                    self.fabric.write_register(host, page + offset, value);
                }
                self.fabric.write_register(host, at, nhi::ENABLED);
                self.fabric.write_register(host, page + 8, index);
            }
        }
        self.fabric.read_register(host, nhi::NOTIFY);
        self.work();
    }
}

proptest! {
    // A fixed seed: a run that passed once passes always.
    #![proptest_config(ProptestConfig {
        cases: 200,
        rng_seed: RngSeed::Fixed(4),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_hostile_guest_harms_only_itself(acts in prop::collection::vec(act(), 1..40)) {
        let mut bed = Bed::of(&["a", "b", "c"], &["a:1-b:1,gen=4", "b:2-c:1"]);
        bed.connect_over((1, 3), (2, 1), 1, true);
        bed.give(2, 1, 4);
        for act in acts {
            bed.act(0, act);
        }
        // The others do not notice.
        bed.post(1, 1, 3, b"fine");
        prop_assert_eq!(bed.bytes(2, 1), [b"fine"]);
        // And it is well again once it restarts.
        bed.power_on(0);
        prop_assert_eq!(bed.read(0, 2, 0, 0), 0x05b4_1234);
    }
}
