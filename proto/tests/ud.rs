//! Datagrams: what is written is read again, nothing else is taken, and the route header is what
//! consumers expect.

use proptest::prelude::*;
use tbrdma_proto::frame::{Header, Opcode, FRAME_MAX};
use tbrdma_proto::ud::{ipv4_of, Datagram, DatagramError, Gid, GRH_LEN, UD_EXT_LEN, UD_MTU};

const LINK_LOCAL: [Gid; 2] = [
    [
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 1,
    ],
    [
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 2,
    ],
];
const MAPPED: [Gid; 2] = [
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 1],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 199],
];

fn datagram(gids: [Gid; 2]) -> Datagram {
    Datagram {
        dqpn: 1,
        sqpn: 0x12_3456,
        qkey: 0x8001_0000,
        imm: None,
        solicited: false,
        sgid: gids[0],
        dgid: gids[1],
    }
}

prop_compose! {
    fn any_datagram()(
        dqpn in 1..1u32 << 24,
        sqpn in 1..0x00ff_ffffu32,
        qkey in any::<u32>(),
        imm in any::<Option<u32>>(),
        solicited in any::<bool>(),
        from in (0..0xffu8, any::<[u8; 15]>()),
        dgid in any::<Gid>(),
    ) -> Datagram {
        let mut sgid = [1; 16];
        sgid[0] = from.0;
        sgid[1..].copy_from_slice(&from.1);
        // Neither may be zero.
        sgid[15] |= 1;
        let mut dgid = dgid;
        dgid[15] |= 1;
        Datagram { dqpn, sqpn, qkey, imm, solicited, sgid, dgid }
    }
}

proptest! {
    #[test]
    fn prop_what_is_written_is_read_again(datagram in any_datagram(), len in 0..=UD_MTU) {
        let (header, ext) = datagram.emit(len).expect("valid");
        let mut frame = vec![0; FRAME_MAX];
        let at = header.emit(&ext, len, &mut frame).expect("fits");
        frame.truncate(at + len);
        let (header, ext, payload) = Header::parse(&frame).expect("a frame");
        prop_assert_eq!(Datagram::parse(&header, ext, payload.len()), Ok(datagram));
    }

    /// What is taken is what would be written.
    #[test]
    fn prop_nothing_is_read_that_is_not_written(
        datagram in any_datagram(),
        changes in prop::collection::vec((0..UD_EXT_LEN, any::<u8>()), 0..4),
        flags in any::<[bool; 5]>(),
        numbers in (0..2u32, 0..2u32, 0..4u32),
    ) {
        let (_, mut ext) = datagram.emit(0).expect("valid");
        for (at, value) in changes {
            ext[at] = value;
        }
        let [first, last, imm, inv, solicited] = flags;
        let (msn, offset, dqpn) = numbers;
        let header =
            Header { opcode: Opcode::Datagram, first, last, imm, inv, solicited, msn, offset, dqpn,
                ..Header::default() };
        if let Ok(read) = Datagram::parse(&header, &ext, 9) {
            prop_assert_eq!(read.emit(9), Ok((header, ext)));
        }
    }

    #[test]
    fn prop_the_checksum_of_the_ipv4_header_is_right(
        from in any::<[u8; 4]>(),
        to in any::<[u8; 4]>(),
        len in 0..=UD_MTU,
    ) {
        let mut gids = MAPPED;
        gids[0][12..].copy_from_slice(&from);
        gids[1][12..].copy_from_slice(&to);
        let header = datagram(gids).route_header(len);
        // The sum over a header with its checksum is all ones (RFC 1071).
        let mut sum: u32 = header[20..]
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        prop_assert_eq!(sum, 0xffff);
    }
}

#[test]
fn unit_the_layout_is_the_documented_one() {
    let full = Datagram {
        imm: Some(0x0a0b_0c0d),
        solicited: true,
        ..datagram(LINK_LOCAL)
    };
    let (header, ext) = full.emit(5).expect("valid");
    let expected = Header {
        opcode: Opcode::Datagram,
        first: true,
        last: true,
        solicited: true,
        imm: true,
        dqpn: 1,
        ..Header::default()
    };
    assert_eq!(header, expected);
    let words = [
        0x56, 0x34, 0x12, 0, 0, 0, 1, 0x80, 0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0,
    ];
    assert_eq!(ext[..16], words);
    assert_eq!(ext[16..], LINK_LOCAL.concat());
}

#[test]
fn unit_what_cannot_be_is_neither_written_nor_read() {
    use DatagramError::{Gid, Length, Qpn};
    let good = datagram(LINK_LOCAL);
    let multicast = Datagram {
        sgid: [0xff; 16],
        ..good
    };
    let cases = [
        (good, UD_MTU + 1, Length),
        (Datagram { dqpn: 0, ..good }, 0, Qpn),
        (
            Datagram {
                dqpn: 1 << 24,
                ..good
            },
            0,
            Qpn,
        ),
        (Datagram { sqpn: 0, ..good }, 0, Qpn),
        (
            Datagram {
                sqpn: 0x00ff_ffff,
                ..good
            },
            0,
            Qpn,
        ),
        (
            Datagram {
                sgid: [0; 16],
                ..good
            },
            0,
            Gid,
        ),
        (
            Datagram {
                dgid: [0; 16],
                ..good
            },
            0,
            Gid,
        ),
        (multicast, 0, Gid),
    ];
    for (bad, len, error) in cases {
        assert_eq!(bad.emit(len), Err(error), "{bad:?}");
        // As a peer would write it.
        let (header, mut ext) = good.emit(0).expect("valid");
        let header = Header {
            dqpn: bad.dqpn,
            ..header
        };
        ext[..4].copy_from_slice(&bad.sqpn.to_le_bytes());
        ext[16..32].copy_from_slice(&bad.sgid);
        ext[32..].copy_from_slice(&bad.dgid);
        assert_eq!(Datagram::parse(&header, &ext, len), Err(error), "{bad:?}");
    }
}

#[test]
fn unit_malformed_frames_are_not_read() {
    let (good, ext) = datagram(LINK_LOCAL).emit(0).expect("valid");
    let bad = Err(DatagramError::Malformed);
    let headers = [
        Header {
            opcode: Opcode::Send,
            ..good
        },
        Header {
            first: false,
            ..good
        },
        Header {
            last: false,
            ..good
        },
        Header { inv: true, ..good },
        Header { msn: 1, ..good },
        Header { offset: 1, ..good },
    ];
    for header in headers {
        assert_eq!(Datagram::parse(&header, &ext, 0), bad, "{header:?}");
    }
    for len in [0, 16, 32, 47] {
        assert_eq!(Datagram::parse(&good, &ext[..len], 0), bad);
    }
    // Immediate data that is not announced, and bytes that have to be zero.
    for at in 8..16 {
        let mut ext = ext;
        ext[at] = 1;
        assert_eq!(Datagram::parse(&good, &ext, 0), bad, "byte {at}");
    }
}

#[test]
fn unit_the_route_header_between_ipv6_addresses() {
    let header = datagram(LINK_LOCAL).route_header(256);
    assert_eq!(header.len(), GRH_LEN);
    // Version 6, class and label 0; UDP, BTH, DETH, 256 bytes and ICRC; UDP; hop limit.
    assert_eq!(header[..8], [0x60, 0, 0, 0, 1, 32, 17, 64]);
    assert_eq!(header[8..], LINK_LOCAL.concat());
    let full = Datagram {
        imm: Some(1),
        ..datagram(LINK_LOCAL)
    };
    // 5 bytes are padded to 8; immediate data has 4.
    assert_eq!(full.route_header(5)[4..6], [0, 32 + 4 + 8]);
    // Only one is mapped.
    let mixed = datagram([LINK_LOCAL[0], MAPPED[1]]);
    assert_eq!(mixed.route_header(0)[0], 0x60);
}

#[test]
fn unit_the_route_header_between_ipv4_addresses() {
    let header = datagram(MAPPED).route_header(63);
    assert_eq!(header[..20], [0; 20]);
    // 20 bytes of IP, 32 of RoCE, 64 of payload: 116 (0x74). The words 4500, 0074, 4000, 4011, c0a8,
    // 0001, c0a8 and 00c7 sum up to 2479d, that is 479f with the carry, the complement of b860.
    let expected = [
        0x45, 0, 0, 0x74, 0, 0, 0x40, 0, 64, 17, 0xb8, 0x60, 192, 168, 0, 1, 192, 168, 0, 199,
    ];
    assert_eq!(header[20..], expected);
}

#[test]
fn unit_mapped_addresses_are_known() {
    assert_eq!(ipv4_of(&MAPPED[1]), Some([192, 168, 0, 199]));
    assert_eq!(ipv4_of(&LINK_LOCAL[0]), None);
    let mut almost = MAPPED[0];
    almost[9] = 1;
    assert_eq!(ipv4_of(&almost), None);
}
