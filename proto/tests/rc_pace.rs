//! When acknowledgements are due: at once, with others, or with the answer.

use tbrdma_proto::rc::{
    Config, Delivery, Due, Kind, NakCode, Next, Op, Requester, Responder, SendExt, Status, Step,
    Syndrome, Wqe, WqeFlags,
};

const ROOM: u32 = 4064;

/// A SEND of one frame comes at `now`.
fn receive(responder: &mut Responder, msn: u32, len: u32, ack_req: bool, now: u64) -> Due {
    let ext = SendExt {
        total: len,
        imm: 0,
        sqpn: 1,
        skip: 0,
    }
    .emit();
    let frame = Delivery {
        kind: Kind::Send,
        msn,
        offset: 0,
        len,
        first: true,
        last: true,
        imm: false,
        inv: false,
        solicited: false,
        ack_req,
        ext: &ext,
    };
    let step = responder.on_frame(&frame, true);
    assert!(matches!(step, Step::Receive { .. }), "{step:?}");
    responder.placed(&frame);
    responder.ack_due(now)
}

/// The QP sends something at `now`, with what may ride on it.
fn reply(responder: &mut Responder, now: u64) -> Option<u32> {
    let rider = responder.rider(1);
    responder.frame_sent(rider.is_some(), now);
    rider.map(|entry| entry.msn)
}

/// A responder whose program answers every message after 100 us; the next message has the number
/// that is returned.
fn answering() -> (Responder, u32, u64) {
    let mut responder = Responder::new(4, 1);
    let mut now = 1_000_000;
    for msn in 0..2 {
        assert_eq!(receive(&mut responder, msn, 64, true, now), Due::Now);
        assert!(responder.take_ack(1).is_some());
        assert_eq!(reply(&mut responder, now + 100), None);
        now += 1_000;
    }
    (responder, 2, now)
}

#[test]
fn unit_who_waits_is_told_at_once() {
    let mut responder = Responder::new(4, 1);
    assert_eq!(responder.ack_due(0), Due::No);
    for msn in 0..10 {
        assert_eq!(receive(&mut responder, msn, 64, true, 5), Due::Now);
        assert_eq!(responder.take_ack(1).map(|entry| entry.msn), Some(msn + 1));
        assert_eq!(responder.ack_due(5), Due::No);
    }
}

#[test]
fn unit_who_does_not_wait_is_told_when_it_is_worth_a_frame() {
    let mut responder = Responder::new(4, 1);
    for msn in 0..63 {
        let due = receive(&mut responder, msn, 64, false, 100 + u64::from(msn));
        assert_eq!(due, Due::At(5_100), "since the first");
    }
    assert_eq!(receive(&mut responder, 63, 64, false, 200), Due::Now);
    assert!(responder.take_ack(1).is_some());
    for msn in 64.. {
        let due = receive(&mut responder, msn, ROOM - 16, false, 300);
        if due == Due::Now {
            assert!((64..70).contains(&(msn - 63)), "256 KiB, or 64 messages");
            break;
        }
    }
    assert_eq!(responder.take_ack(1).map(|entry| entry.msn), Some(128));
}

#[test]
fn unit_an_answer_takes_the_acknowledgement_along() {
    let (mut responder, msn, now) = answering();
    let due = receive(&mut responder, msn, 64, true, now);
    let Due::At(at) = due else {
        panic!("{due:?}");
    };
    assert!((now + 100..=now + 300).contains(&at), "{}", at - now);
    assert_eq!(reply(&mut responder, now + 90), Some(msn + 1));
    assert_eq!(responder.ack_due(now + 90), Due::No);
    assert_eq!(responder.take_ack(1), None);
}

#[test]
fn unit_one_answer_that_does_not_come_ends_the_waiting() {
    let (mut responder, msn, now) = answering();
    assert!(matches!(
        receive(&mut responder, msn, 64, true, now),
        Due::At(_)
    ));
    responder.rides_not();
    assert!(responder.take_ack(1).is_some());
    let now = now + 10_000;
    assert_eq!(receive(&mut responder, msn + 1, 64, true, now), Due::Now);

    // Nor is one counted on that takes long, or does not come before the next message.
    let (mut responder, msn, now) = answering();
    receive(&mut responder, msn, 64, true, now);
    reply(&mut responder, now + 6_000);
    let now = now + 10_000;
    assert_eq!(receive(&mut responder, msn + 1, 64, true, now), Due::Now);

    let (mut responder, msn, now) = answering();
    receive(&mut responder, msn, 64, true, now);
    assert_eq!(receive(&mut responder, msn + 1, 64, true, now), Due::Now);
}

#[test]
fn unit_refusals_never_wait_and_never_ride() {
    let (mut responder, msn, now) = answering();
    let ext = SendExt {
        total: 8,
        imm: 0,
        sqpn: 1,
        skip: 0,
    }
    .emit();
    let frame = Delivery {
        kind: Kind::Send,
        msn,
        offset: 0,
        len: 8,
        first: true,
        last: true,
        imm: false,
        inv: false,
        solicited: false,
        ack_req: false,
        ext: &ext,
    };
    assert_eq!(responder.on_frame(&frame, false), Step::Answer);
    assert_eq!(responder.ack_due(now), Due::Now);
    assert_eq!(responder.rider(1), None);
}

/// That there are receives again is told at once, even if an answer is counted on, and once.
#[test]
fn unit_receives_that_were_waited_for_are_told_at_once() {
    let (mut responder, msn, now) = answering();
    responder.receives_posted();
    assert_eq!(responder.ack_due(now), Due::Now);
    let entry = responder.take_ack(1).expect("it is owed");
    assert_eq!((entry.msn, entry.syndrome), (msn, Syndrome::Ack));
    assert_eq!(responder.take_ack(1), None);
    // That says nothing of how fast answers come.
    let due = receive(&mut responder, msn, 64, true, now);
    assert!(matches!(due, Due::At(_)), "{due:?}");
    responder.receives_posted();
    assert_eq!(responder.ack_due(now), Due::Now);
    // What leaves anyway takes it along.
    assert_eq!(reply(&mut responder, now + 10), Some(msn + 1));
    assert_eq!(responder.ack_due(now + 10), Due::No);
}

#[test]
fn unit_who_receives_no_more_tells_of_no_receives() {
    let mut refusing = Responder::new(4, 1);
    refusing.refuse(NakCode::RemoteAccess);
    assert!(refusing.take_ack(1).is_some());
    for mut responder in [refusing, Responder::unreliable()] {
        responder.receives_posted();
        assert_eq!(responder.ack_due(0), Due::No);
        assert_eq!(responder.take_ack(1), None);
    }
}

/// What was taken and could not be sent is due at once.
#[test]
fn unit_what_could_not_be_sent_is_due() {
    let (mut responder, msn, now) = answering();
    receive(&mut responder, msn, 64, true, now);
    let entry = responder.take_ack(1).unwrap();
    responder.restore_ack(&entry);
    assert_eq!(responder.ack_due(now), Due::Now);
}

fn requester(places: usize, ops: &[Op]) -> (Requester, Vec<Wqe>) {
    let mut requester = Requester::new(Config {
        reliable: true,
        max_reads: 4,
        rnr_retry: 7,
        not_ready_limit_us: None,
    });
    let mut ring = vec![Wqe::default(); places];
    for &op in ops {
        let wqe = Wqe::new(op, WqeFlags::default(), 10, 0, 0, 0);
        requester.post(&mut ring, wqe).unwrap();
    }
    (requester, ring)
}

/// Which of these messages ask for an acknowledgement.
fn asking(places: usize, ops: &[Op], more: bool) -> Vec<bool> {
    let (mut requester, mut ring) = requester(places, ops);
    let mut asked = Vec::new();
    for _ in ops {
        match requester.next(&ring, 0, ROOM) {
            Next::Frame(segment) => {
                asked.push(requester.asks(&ring, &segment, more));
                requester.sent(&ring, &segment);
            }
            Next::Local(msn) => requester.local_done(&mut ring, msn, Status::Success),
            _ => break,
        }
    }
    asked
}

#[test]
fn unit_the_last_message_of_a_burst_asks() {
    use Op::{LocalInv, Read, RegMr, Send};
    assert_eq!(asking(64, &[Send; 3], false), [false, false, true]);
    assert_eq!(asking(64, &[Send; 3], true), [false, false, false]);
    assert_eq!(asking(64, &[Send, Read], false), [false, false]);
    // It has to be acknowledged before the local operation.
    assert_eq!(asking(64, &[Send, LocalInv], false), [true]);
    assert_eq!(asking(64, &[Send, RegMr, LocalInv], false), [true]);
    // A registration does not wait for it, nor does anything go out for it.
    assert_eq!(asking(64, &[Send, RegMr, Send], true), [false, false]);
    assert_eq!(asking(64, &[Send, RegMr], false), [true]);
    let of_eight = asking(8, &[Send; 8], true);
    assert_eq!(of_eight, [false, true].repeat(4), "a quarter of the queue");
    for ops in [[Send, RegMr].repeat(8), [RegMr, Send].repeat(8)] {
        let of_sixteen = asking(16, &ops, true);
        assert_eq!(
            of_sixteen,
            [false, true].repeat(4),
            "a quarter of the queue"
        );
    }
    assert_eq!(asking(1, &[Send], true), [true]);
}

/// A message of several frames asks with its last.
#[test]
fn unit_only_a_last_frame_asks() {
    let (mut requester, ring) = requester(4, &[Op::Send]);
    let mut asked = Vec::new();
    while let Next::Frame(segment) = requester.next(&ring, 0, 20) {
        asked.push(requester.asks(&ring, &segment, false));
        requester.sent(&ring, &segment);
    }
    assert_eq!(asked, [false, true]);
}
