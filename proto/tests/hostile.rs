//! Hostile peers, by chance: the twin of the fuzz targets that every test run takes along.

mod adversary;

use proptest::prelude::*;
use tbrdma_proto::frame::{Header, Opcode, EXT_MAX, FRAME_MAX};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn prop_hostile_bytes_in_the_parser(data in prop::collection::vec(any::<u8>(), 0..5000)) {
        adversary::frame(&data);
    }

    /// Frames that were right before some bytes were changed.
    #[test]
    fn prop_hostile_changes_of_a_frame(
        numbers in any::<[u32; 5]>(),
        ext in prop::sample::select(&[0usize, 16, 32, EXT_MAX][..]),
        payload in 0..200usize,
        changes in prop::collection::vec((0..300usize, any::<u8>()), 0..4),
    ) {
        let header = Header {
            opcode: Opcode::Write,
            bundle: numbers[0],
            seq: numbers[1] as u16,
            ack: (numbers[1] >> 16) as u16,
            credit: numbers[2] as u16,
            tag: (numbers[2] >> 16) as u16,
            msn: numbers[3],
            offset: numbers[4],
            ..Header::default()
        };
        let mut data = vec![0x5a; FRAME_MAX];
        let at = header.emit(&[7; EXT_MAX][..ext], payload, &mut data).unwrap();
        data.truncate(at + payload);
        for (place, value) in changes {
            if let Some(byte) = data.get_mut(place) {
                *byte = value;
            }
        }
        adversary::frame(&data);
    }

    #[test]
    fn prop_hostile_frames_on_a_rail(data in prop::collection::vec(any::<u8>(), 0..4000)) {
        adversary::rail(&data);
    }

    #[test]
    fn prop_hostile_messages_in_hello(data in prop::collection::vec(any::<u8>(), 0..4000)) {
        adversary::hello(&data);
    }

    #[test]
    fn prop_hostile_frames_at_a_qp(data in prop::collection::vec(any::<u8>(), 0..4000)) {
        adversary::qp::rc(&data);
    }

    #[test]
    fn prop_hostile_frames_at_an_unreliable_qp(data in prop::collection::vec(any::<u8>(), 0..4000)) {
        adversary::qp::uc(&data);
    }

    #[test]
    fn prop_hostile_extensions(data in prop::collection::vec(any::<u8>(), 0..100)) {
        adversary::extensions(&data);
    }

    /// Acknowledgements that are right but for some bytes.
    #[test]
    fn prop_hostile_changes_of_acknowledgements(
        entries in prop::collection::vec((any::<[u8; 3]>(), any::<u32>(), 0..4u8, 0..6u8), 0..20),
        changes in prop::collection::vec((0..300usize, any::<u8>()), 0..3),
    ) {
        let mut data = Vec::new();
        for (qpn, msn, kind, detail) in entries {
            data.extend(qpn);
            data.push(0);
            data.extend(msn.to_le_bytes());
            data.extend([kind, if kind % 2 == 0 { 0 } else { detail }, 0, 0]);
        }
        for (place, value) in changes {
            if let Some(byte) = data.get_mut(place) {
                *byte = value;
            }
        }
        adversary::extensions(&data);
    }

    #[test]
    fn prop_hostile_requests_of_a_program(data in prop::collection::vec(any::<u8>(), 0..1000)) {
        adversary::user::send(&data);
    }

    #[test]
    fn prop_hostile_datagrams(data in prop::collection::vec(any::<u8>(), 0..100)) {
        adversary::datagram(&data);
    }
}
