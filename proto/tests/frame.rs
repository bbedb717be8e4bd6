//! The frame header: what is written is read again, and nothing else is accepted.

use proptest::prelude::*;
use tbrdma_proto::frame::{
    patch_rail_fields, FrameError, Header, Opcode, EXT_MAX, FRAME_MAX, HEADER_LEN, PAYLOAD_MAX,
};

const OPCODES: [Opcode; 13] = [
    Opcode::Ack,
    Opcode::Nak,
    Opcode::Ping,
    Opcode::Pong,
    Opcode::Send,
    Opcode::Write,
    Opcode::ReadReq,
    Opcode::ReadResp,
    Opcode::QpAck,
    Opcode::AtomicReq,
    Opcode::AtomicResp,
    Opcode::Datagram,
    Opcode::Netdev,
];

fn header() -> impl Strategy<Value = Header> {
    let flags = any::<(bool, bool, bool, bool, bool, bool, bool)>();
    let numbers = (any::<[u16; 4]>(), any::<u32>(), 0..1u32 << 24);
    (
        prop::sample::select(&OPCODES[..]),
        flags,
        numbers,
        any::<(u32, u32)>(),
    )
        .prop_map(
            |(
                opcode,
                (first, last, solicited, imm, inv, rider, ack_req),
                ([seq, ack, credit, tag], bundle, dqpn),
                (msn, offset),
            )| {
                Header {
                    opcode,
                    first,
                    last,
                    solicited,
                    imm,
                    inv,
                    rider: rider && opcode.is_message(),
                    ack_req,
                    seq,
                    ack,
                    credit,
                    tag,
                    bundle,
                    dqpn,
                    msn,
                    offset,
                }
            },
        )
}

proptest! {
    #[test]
    fn prop_what_is_written_is_read_again(
        header in header(),
        ext_len in prop::sample::select(&[16usize, 32, 48, 64][..]),
        payload in prop::collection::vec(any::<u8>(), 0..PAYLOAD_MAX - EXT_MAX),
        rail in any::<(u16, u16)>(),
    ) {
        let ext = vec![0x5a; ext_len];
        let mut frame = vec![0; FRAME_MAX];
        let at = header.emit(&ext, payload.len(), &mut frame).unwrap();
        prop_assert_eq!(at, HEADER_LEN + ext_len);
        frame[at..at + payload.len()].copy_from_slice(&payload);
        prop_assert_eq!(Header::parse(&frame), Ok((header, &ext[..], &payload[..])));
        prop_assert!(patch_rail_fields(&mut frame, rail.0, rail.1));
        let patched = Header { ack: rail.0, credit: rail.1, ..header };
        prop_assert_eq!(Header::parse(&frame), Ok((patched, &ext[..], &payload[..])));
    }

    #[test]
    fn prop_arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        if let Ok((_, ext, payload)) = Header::parse(&bytes) {
            prop_assert!(HEADER_LEN + ext.len() + payload.len() <= bytes.len());
        }
    }

    /// A changed header byte is noticed: by the check, or because the change makes no sense.
    #[test]
    fn prop_a_changed_byte_is_noticed(header in header(), at in 0..HEADER_LEN, with in 1..=255u8) {
        let header = Header { rider: false, ..header };
        let mut frame = vec![0; HEADER_LEN];
        header.emit(&[], 0, &mut frame).unwrap();
        frame[at] ^= with;
        prop_assert!(Header::parse(&frame).is_err());
    }
}

#[test]
fn unit_each_reason_is_given() {
    let mut frame = [0; 64];
    let header = Header {
        opcode: Opcode::Send,
        ..Header::default()
    };
    assert_eq!(header.emit(&[], 32, &mut frame), Ok(HEADER_LEN));
    assert!(Header::parse(&frame).is_ok());
    assert_eq!(Header::parse(&frame[..31]), Err(FrameError::Length));
    assert_eq!(Header::parse(&frame[..40]), Err(FrameError::Length));
    assert_eq!(Header::parse(&[0; FRAME_MAX + 1]), Err(FrameError::Length));
    let changed = |at: usize, to: u8| {
        let mut frame = frame;
        frame[at] = to;
        Header::parse(&frame).map(|_| ())
    };
    assert_eq!(changed(0, 2), Err(FrameError::Version));
    assert_eq!(changed(3, 8), Err(FrameError::Extension));
    assert_eq!(changed(3, 80), Err(FrameError::Extension));
    assert_eq!(changed(30, frame[30] ^ 1), Err(FrameError::Check));
    assert_eq!(
        header.emit(&[0; 8], 0, &mut frame),
        Err(FrameError::Extension)
    );
    assert_eq!(
        header.emit(&[0; EXT_MAX + 16], 0, &mut [0; FRAME_MAX]),
        Err(FrameError::Extension)
    );
    assert_eq!(
        header.emit(&[], FRAME_MAX, &mut [0; FRAME_MAX]),
        Err(FrameError::Length)
    );
    let wide = Header {
        dqpn: 1 << 24,
        ..header
    };
    assert_eq!(wide.emit(&[], 0, &mut frame), Err(FrameError::Reserved));
}

#[test]
fn unit_riders_are_on_frames_of_messages_and_have_room() {
    let mut frame = [0; 128];
    let mut parse = |opcode, ext: &[u8]| {
        let header = Header {
            opcode,
            rider: true,
            ..Header::default()
        };
        header.emit(ext, 3, &mut frame).unwrap();
        Header::parse(&frame).map(|(header, ext, _)| {
            let (own, rider) = header.split_rider(ext);
            (own.len(), rider.map(|rider| rider[0]))
        })
    };
    let ext: Vec<u8> = (0..64).collect();
    assert_eq!(parse(Opcode::Send, &ext[..16]), Ok((0, Some(0))));
    assert_eq!(parse(Opcode::AtomicReq, &ext), Ok((48, Some(48))));
    assert_eq!(parse(Opcode::Write, &[]), Err(FrameError::Extension));
    for opcode in [Opcode::Ack, Opcode::QpAck, Opcode::Datagram, Opcode::Netdev] {
        assert_eq!(parse(opcode, &ext), Err(FrameError::Reserved));
    }
    let without = Header {
        opcode: Opcode::Send,
        ..Header::default()
    };
    assert_eq!(without.split_rider(&ext), (&ext[..], None));
}
