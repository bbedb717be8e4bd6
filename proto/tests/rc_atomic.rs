//! Atomics at the responder: executed once, answered in order with READs.

use tbrdma_proto::frame::{Header, Opcode};
use tbrdma_proto::rc::{
    AckEntry, AtomicExt, AtomicOp, Delivery, Kind, NakCode, Responder, Response, RethExt, Step,
    Syndrome, Wqe, WqeFlags, ATOMIC_EXT_LEN,
};

const ADD: AtomicOp = AtomicOp::FetchAdd { add: 3 };
const SWAP: AtomicOp = AtomicOp::CmpSwap {
    compare: 0x0102_0304_0506_0708,
    swap: u64::MAX - 1,
};

fn frame(kind: Kind, msn: u32, ext: &[u8]) -> Delivery<'_> {
    Delivery {
        kind,
        msn,
        offset: 0,
        len: 0,
        first: true,
        last: true,
        imm: false,
        inv: false,
        solicited: false,
        ack_req: true,
        ext,
    }
}

fn atomic(raddr: u64) -> [u8; ATOMIC_EXT_LEN] {
    AtomicExt {
        raddr,
        rkey: 5,
        sqpn: 1,
        op: ADD,
        skip: 0,
    }
    .emit()
}

fn refused(responder: &mut Responder, msn: u32) {
    let syndrome = Syndrome::Nak(NakCode::InvalidRequest);
    let entry = AckEntry::new(1, msn, syndrome);
    assert_eq!(responder.take_ack(1), Some(entry));
}

#[test]
fn unit_the_extension_is_read_as_it_was_written() {
    for op in [ADD, SWAP] {
        let ext = AtomicExt {
            raddr: 0x1122_3344_5566_7788,
            rkey: 0x99aa_bbcc,
            sqpn: 0x00dd_eeff,
            op,
            skip: 0,
        };
        let bytes = ext.emit();
        assert_eq!(AtomicExt::parse(&bytes), Some(ext));
        assert_eq!(AtomicExt::parse(&bytes[..47]), None);
        for (at, value) in [(32, 0), (32, 3), (33, 1), (35, 1), (40, 1), (47, 1)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(AtomicExt::parse(&bytes), None, "byte {at} is {value}");
        }
    }
    let bytes = AtomicExt {
        raddr: 1,
        rkey: 2,
        sqpn: 3,
        op: SWAP,
        skip: 4,
    }
    .emit();
    let expected = [
        &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0][..],
        &[
            8, 7, 6, 5, 4, 3, 2, 1, 0xfe, 255, 255, 255, 255, 255, 255, 255,
        ],
        &[1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(bytes[..], expected[..]);
    // Nothing is compared when adding.
    let mut bytes = atomic(0);
    bytes[16] = 1;
    assert_eq!(AtomicExt::parse(&bytes), None);
}

#[test]
fn unit_an_entry_becomes_its_frame() {
    let wqe = Wqe::atomic(SWAP, WqeFlags::default(), 64, 5);
    let segment = tbrdma_proto::rc::Segment {
        msn: 7,
        offset: 0,
        len: 0,
        first: true,
        last: true,
    };
    let header = wqe.header(&segment, 2).expect("not local");
    assert_eq!((header.opcode, header.msn), (Opcode::AtomicReq, 7));
    let ext = AtomicExt {
        raddr: 64,
        rkey: 5,
        sqpn: 9,
        op: SWAP,
        skip: 0,
    };
    let own = wqe.extension(&segment, 9);
    assert_eq!(AtomicExt::parse(own.bytes()), Some(ext));
    assert_eq!(
        tbrdma_proto::rc::first_sqpn(Kind::Atomic, own.bytes()),
        Some(9)
    );
}

#[test]
fn unit_operations_do_what_they_say() {
    assert_eq!(ADD.apply(u64::MAX), Some(2));
    assert_eq!(SWAP.apply(0x0102_0304_0506_0708), Some(u64::MAX - 1));
    assert_eq!(SWAP.apply(0), None);
}

#[test]
fn unit_an_atomic_is_executed_once_and_its_value_kept() {
    let ext = atomic(16);
    let frame = frame(Kind::Atomic, 0, &ext);
    let mut responder = Responder::new(4, 1);
    let step = Step::Atomic {
        addr: 16,
        rkey: 5,
        op: ADD,
    };
    assert_eq!(responder.on_frame(&frame, false), step);
    assert!(!responder.owes_ack(), "it is not done yet");
    assert_eq!(responder.next_response(64), None);
    responder.executed(40);
    responder.executed(41);
    for _ in 0..3 {
        // The requester repeats it, because it does not know.
        assert_eq!(responder.on_frame(&frame, false), Step::Answer);
        responder.executed(42);
    }
    let ack = AckEntry::new(1, 1, Syndrome::Ack);
    assert_eq!(responder.take_ack(1), Some(ack));
    let response = Response::Atomic {
        msn: 0,
        original: 40,
    };
    assert_eq!(responder.next_response(64), Some(response));
    let header = Header {
        opcode: Opcode::AtomicResp,
        first: true,
        last: true,
        dqpn: 3,
        ..Header::default()
    };
    assert_eq!(response.header(3), header);
    responder.response_sent(&response);
    responder.response_sent(&response);
    assert_eq!(responder.next_response(64), None);
}

#[test]
fn unit_answers_come_in_the_order_of_the_requests() {
    let mut responder = Responder::new(4, 1);
    let read = RethExt {
        raddr: 1000,
        rkey: 5,
        total: 100,
        imm: 0,
        sqpn: 1,
        skip: 0,
    }
    .emit();
    let ext = atomic(16);
    for msn in 0..4 {
        if msn % 2 == 0 {
            responder.on_frame(&frame(Kind::Read, msn, &read), false);
        } else {
            responder.on_frame(&frame(Kind::Atomic, msn, &ext), false);
            responder.executed(u64::from(msn));
        }
    }
    let mut sent = Vec::new();
    while let Some(response) = responder.next_response(64) {
        responder.response_sent(&response);
        let header = response.header(1);
        sent.push((header.msn, header.offset, response.payload_len()));
    }
    let expected = [
        (0, 0, 64),
        (0, 64, 36),
        (1, 0, 8),
        (2, 0, 64),
        (2, 64, 36),
        (3, 0, 8),
    ];
    assert_eq!(sent, expected);
}

#[test]
fn unit_too_many_and_misaligned_atomics_are_refused() {
    for addr in (17..24).chain([u64::MAX - 6, u64::MAX]) {
        let mut responder = Responder::new(4, 1);
        let ext = atomic(addr);
        let step = responder.on_frame(&frame(Kind::Atomic, 0, &ext), false);
        assert_eq!(step, Step::Answer);
        refused(&mut responder, 0);
    }
    let mut responder = Responder::new(1, 1);
    let ext = atomic(16);
    responder.on_frame(&frame(Kind::Atomic, 0, &ext), false);
    responder.executed(0);
    let step = responder.on_frame(&frame(Kind::Atomic, 1, &ext), false);
    assert_eq!(step, Step::Answer);
    // The refusal does not overtake the first one's answer.
    assert_eq!(responder.take_ack(1), None);
    let response = responder.next_response(64).expect("an answer");
    responder.response_sent(&response);
    refused(&mut responder, 1);
}

#[test]
fn unit_a_refused_atomic_has_no_answer() {
    let mut responder = Responder::new(4, 1);
    let ext = atomic(16);
    responder.on_frame(&frame(Kind::Atomic, 0, &ext), false);
    responder.refuse(NakCode::RemoteAccess);
    responder.executed(1);
    assert_eq!(responder.next_response(64), None);
    let entry = responder.take_ack(1).expect("a refusal");
    assert_eq!(entry.syndrome, Syndrome::Nak(NakCode::RemoteAccess));
}
