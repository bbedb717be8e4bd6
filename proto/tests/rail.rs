//! A rail by itself, step by step.

use tbrdma_proto::frame::{Header, Opcode};
use tbrdma_proto::rail::{before, Config, Rail, Rx, CONTROL_MAX};

const WINDOW: u32 = 64;

fn rail() -> Rail {
    let config = Config {
        window: WINDOW,
        rx_capacity: WINDOW,
        dead_after_us: 5_000_000,
    };
    Rail::new(config, 0)
}

fn send(rail: &mut Rail, now: u64) -> Header {
    assert!(rail.reserve());
    let mut header = Header {
        opcode: Opcode::Send,
        ..Header::default()
    };
    rail.commit(&mut header, now);
    header
}

fn ack(ack: u32, credit: u32) -> Header {
    Header {
        opcode: Opcode::Ack,
        ack: ack as u16,
        credit: credit as u16,
        ..Header::default()
    }
}

/// A rail that may send its whole window.
fn sending() -> Rail {
    let mut rail = rail();
    rail.on_frame(&ack(0, WINDOW), &[], 0);
    rail
}

fn control(rail: &mut Rail, now: u64) -> Option<(Header, Vec<u8>)> {
    let mut payload = [0; CONTROL_MAX];
    let (header, len) = rail.poll_control(now, &mut payload)?;
    Some((header, payload[..len].to_vec()))
}

fn data(seq: u32) -> Header {
    Header {
        opcode: Opcode::Send,
        seq: seq as u16,
        ..Header::default()
    }
}

fn nak(ranges: &[(u32, u32)]) -> Vec<u8> {
    ranges
        .iter()
        .flat_map(|(from, to)| [from.to_le_bytes(), to.to_le_bytes()])
        .flatten()
        .collect()
}

/// All sequences that are to be sent again, which they are.
fn resend(rail: &mut Rail, now: u64) -> Vec<u32> {
    let mut all = Vec::new();
    let mut from = rail.una();
    while let Some(seq) = rail.next_retransmit(from) {
        rail.retransmitted(seq, now);
        all.push(seq);
        from = seq.wrapping_add(1);
    }
    all
}

#[test]
fn unit_credit_bounds_what_is_sent() {
    let mut rail = rail();
    assert!(rail.reserve());
    assert!(!rail.reserve(), "one frame before any credit");
    rail.commit(&mut Header::default(), 0);
    assert_eq!(rail.on_frame(&ack(1, 4), &[], 10), Rx::Control);
    assert_eq!(rail.room(), 3);
    rail.on_frame(&ack(1, 2), &[], 11);
    assert_eq!(rail.room(), 3, "credit does not go back");
    rail.on_frame(&ack(1, 1 + 512), &[], 12);
    assert_eq!(rail.room(), WINDOW, "the window bounds it too");
}

#[test]
fn unit_claims_count_and_can_be_given_back() {
    let mut rail = sending();
    for _ in 0..WINDOW {
        assert!(rail.reserve());
    }
    assert!(!rail.reserve());
    assert_eq!(rail.stats().stalls, 1);
    rail.cancel();
    assert_eq!(rail.room(), 1);
    assert!(rail.reserve());
}

#[test]
fn unit_what_cannot_be_true_is_not_believed() {
    let mut rail = sending();
    for _ in 0..10 {
        send(&mut rail, 0);
    }
    // Acknowledged: what was not sent, or long ago. Credit: beyond every window.
    for (acked, credit) in [
        (11, 100),
        (1 << 15, 0),
        (5u32.wrapping_sub(600), 5),
        (0, 1000),
        (1 << 15, (1 << 15) + 50),
    ] {
        let absurd = rail.stats().absurd;
        rail.on_frame(&ack(acked, credit), &[], 1);
        assert_eq!(rail.stats().absurd, absurd + 1, "{acked} {credit}");
        assert_eq!((rail.una(), rail.room()), (0, WINDOW - 10));
    }
    let absurd = rail.stats().absurd;
    let lies = nak(&[(11, 12), (5, 3), (0, 11), (1 << 31, 0), (5000, 5001)]);
    let header = Header {
        opcode: Opcode::Nak,
        ..ack(0, WINDOW)
    };
    rail.on_frame(&header, &lies, 1);
    assert_eq!(rail.stats().absurd, absurd + 5);
    assert_eq!(rail.next_retransmit(0), None);
    rail.on_frame(&header, &nak(&[(3, 5), (9, 10)])[..13], 1);
    assert_eq!(resend(&mut rail, 1), [3, 4], "half a range is none");
}

/// A NAK costs the peer 40 bytes and us 4096 for each frame: asking twice must not cost us twice.
#[test]
fn unit_a_flood_of_naks_repeats_each_frame_once() {
    let mut rail = sending();
    for _ in 0..WINDOW {
        send(&mut rail, 0);
    }
    let header = Header {
        opcode: Opcode::Nak,
        ..ack(0, WINDOW)
    };
    let mut repeated = 0;
    for now in 0..1000 {
        rail.on_frame(&header, &nak(&[(0, WINDOW)]), now);
        repeated += resend(&mut rail, now).len();
    }
    assert_eq!(repeated, WINDOW as usize);
    // But a repetition can get lost as well, and the peer asks again.
    rail.on_frame(&header, &nak(&[(0, 1)]), 12_000);
    rail.on_frame(&header, &nak(&[(0, 1)]), 13_001);
    assert_eq!(resend(&mut rail, 13_001), [0]);
}

#[test]
fn unit_a_frame_in_the_ring_is_not_sent_twice() {
    let mut rail = sending();
    send(&mut rail, 0);
    let header = Header {
        opcode: Opcode::Nak,
        ..ack(0, WINDOW)
    };
    rail.on_frame(&header, &nak(&[(0, 1)]), 100);
    assert_eq!(rail.next_retransmit(0), Some(0));
    rail.defer(0);
    assert_eq!(rail.next_retransmit(0), None);
    // If it is lost again, the other side says so again.
    rail.on_frame(&header, &nak(&[(0, 1)]), 101);
    assert_eq!(rail.next_retransmit(0), Some(0));
}

/// The timer repeats nothing: it asks, and the answer says what is missing.
#[test]
fn unit_a_timeout_asks_what_is_missing() {
    let (mut a, mut b) = (sending(), rail());
    let frames: Vec<_> = (0..10).map(|_| send(&mut a, 0)).collect();
    assert_eq!(b.on_frame(&frames[0], &[], 5), Rx::Deliver);
    let at = a.next_timeout().unwrap();
    assert!(at <= 100_000, "{at} us");
    a.on_timeout(at);
    assert_eq!(resend(&mut a, at), []);
    let (probe, payload) = control(&mut a, at).expect("a probe");
    assert_eq!((probe.opcode, probe.solicited), (Opcode::Ack, true));
    assert_eq!(control(&mut a, at), None);
    b.on_frame(&probe, &payload, at);
    let (answer, ranges) = control(&mut b, at).expect("an answer");
    assert_eq!(answer.opcode, Opcode::Nak);
    assert_eq!(ranges, nak(&[(1, 10)]));
    a.on_frame(&answer, &ranges, at);
    assert_eq!(a.una(), 1);
    assert_eq!(resend(&mut a, at), (1..10).collect::<Vec<_>>());
}

/// Whoever asks has not heard what was told: it is told again at once.
#[test]
fn unit_a_probe_is_answered_with_gaps_that_were_told_already() {
    let mut rail = rail();
    while control(&mut rail, 0).is_some() {}
    rail.on_frame(&data(2), &[], 10);
    let told = control(&mut rail, 10).unwrap().1;
    let probe = Header {
        solicited: true,
        seq: 3,
        ..ack(0, 1)
    };
    rail.on_frame(&probe, &[], 20);
    let (answer, ranges) = control(&mut rail, 20).unwrap();
    assert_eq!((answer.opcode, &ranges), (Opcode::Nak, &told));
    assert_eq!(control(&mut rail, 20), None);
}

#[test]
fn unit_a_probe_is_answered_even_if_nothing_is_missing() {
    let mut rail = rail();
    while control(&mut rail, 0).is_some() {}
    let probe = Header {
        solicited: true,
        ..ack(0, 1)
    };
    rail.on_frame(&probe, &[], 0);
    let (answer, _) = control(&mut rail, 0).expect("an answer");
    assert_eq!((answer.opcode, answer.solicited), (Opcode::Ack, false));
    // An answer is not answered, or two rails would never be quiet.
    rail.on_frame(&answer, &[], 0);
    assert_eq!(control(&mut rail, 0), None);
}

/// A peer that acknowledges everything and takes nothing more is as good as dead.
#[test]
fn unit_a_peer_that_gives_no_credit_is_found_dead() {
    let mut rail = rail();
    send(&mut rail, 0);
    rail.on_frame(&ack(1, 1), &[], 1_000);
    assert_eq!(rail.room(), 0);
    let mut now = 1_000;
    while !rail.is_dead(now) {
        now = rail.next_timeout().expect("the timer runs");
        rail.on_timeout(now);
        assert!(control(&mut rail, now).is_some_and(|(probe, _)| probe.solicited));
        rail.on_frame(&ack(1, 1), &[], now);
        assert!(now < 20_000_000);
    }
    assert!(now >= 5_000_000);
}

#[test]
fn unit_the_receiver_keeps_no_more_than_it_promised() {
    let config = Config {
        window: WINDOW,
        rx_capacity: 8,
        dead_after_us: 5_000_000,
    };
    let mut rail = Rail::new(config, 0);
    assert_eq!(control(&mut rail, 0).unwrap().0.credit, 8);
    for seq in 1..8 {
        assert_eq!(rail.on_frame(&data(seq), &[], 0), Rx::Hold);
        assert_eq!(rail.on_frame(&data(seq), &[], 0), Rx::Duplicate);
    }
    for seq in [8, 9, 100, (1 << 15) - 1] {
        assert_eq!(rail.on_frame(&data(seq), &[], 0), Rx::Outside);
    }
    assert_eq!(rail.next_held(), None);
    assert_eq!(rail.on_frame(&data(0), &[], 0), Rx::Deliver);
    let held: Vec<_> = std::iter::from_fn(|| rail.next_held()).collect();
    assert_eq!(held, (1..8).collect::<Vec<_>>());
    assert_eq!(rail.stats().held, 7);
}

#[test]
fn unit_acknowledgements_are_few_but_in_time() {
    let mut rail = rail();
    while control(&mut rail, 0).is_some() {}
    for seq in 0..15 {
        rail.on_frame(&data(seq), &[], 100);
        assert_eq!(control(&mut rail, 100), None);
    }
    let due = rail.next_timeout().expect("an acknowledgement is owed");
    assert!(due <= 10_100);
    rail.on_frame(&data(15), &[], 100);
    let (header, _) = control(&mut rail, 100).expect("a quarter of the window has come");
    assert_eq!((header.ack, header.credit), (16, 16 + WINDOW as u16));
    rail.on_frame(&data(16), &[], 200);
    let due = rail.next_timeout().unwrap();
    assert_eq!(control(&mut rail, due - 1), None);
    assert_eq!(control(&mut rail, due).unwrap().0.ack, 17);
    // A data frame carries it as well.
    rail.on_frame(&data(17), &[], 30_000);
    assert_eq!(send(&mut rail, 30_000).ack, 18);
    assert_eq!(control(&mut rail, 1 << 40), None);
}

#[test]
fn unit_gaps_are_told_at_once_and_again_ever_more_slowly() {
    let mut rail = rail();
    while control(&mut rail, 0).is_some() {}
    rail.on_frame(&data(2), &[], 10);
    let first = control(&mut rail, 10).unwrap();
    assert_eq!((first.0.opcode, first.1), (Opcode::Nak, nak(&[(0, 2)])));
    assert_eq!(control(&mut rail, 10), None);
    rail.on_frame(&data(5), &[], 20);
    let new = control(&mut rail, 20).unwrap();
    assert_eq!(new.1, nak(&[(3, 5)]), "only what is new");
    let mut told = vec![10];
    while told.len() < 6 {
        let at = rail.next_timeout().expect("the gap is still there");
        assert_eq!(control(&mut rail, at).unwrap().1, nak(&[(0, 2), (3, 5)]));
        assert_eq!(control(&mut rail, at), None);
        told.push(at);
    }
    for three in told.windows(3) {
        assert!(three[2] - three[1] >= three[1] - three[0]);
    }
    assert!(told[1] < 30_000 && told[5] > 100_000);
}

/// More gaps than fit into one NAK need several, at once.
#[test]
fn unit_every_gap_is_told() {
    let mut rail = rail();
    while control(&mut rail, 0).is_some() {}
    for seq in (1..WINDOW).step_by(2) {
        assert_eq!(rail.on_frame(&data(seq), &[], 0), Rx::Hold);
    }
    let mut ranges = Vec::new();
    while let Some((header, payload)) = control(&mut rail, 0) {
        assert_eq!(header.opcode, Opcode::Nak);
        ranges.extend(payload);
    }
    let all: Vec<_> = (0..WINDOW).step_by(2).map(|seq| (seq, seq + 1)).collect();
    assert_eq!(ranges, nak(&all));
}

#[test]
fn unit_the_round_trip_is_measured_without_repetitions() {
    let mut rail = sending();
    send(&mut rail, 1_000);
    rail.on_frame(&ack(1, WINDOW), &[], 1_300);
    assert_eq!(rail.stats().rtt_us, 300);
    send(&mut rail, 2_000);
    let at = rail.next_timeout().unwrap();
    assert!((2_000 + 20_000..2_000 + 40_000).contains(&at), "{at}");
    rail.on_timeout(at);
    rail.on_frame(&ack(2, WINDOW), &[], at + 100_000);
    assert_eq!(rail.stats().rtt_us, 300, "Karn's rule");
    assert_eq!(rail.next_timeout(), None);
}

#[test]
fn unit_the_timer_backs_off_up_to_a_second() {
    let mut rail = sending();
    send(&mut rail, 0);
    let mut times = vec![0];
    while times.len() < 12 {
        let at = rail.next_timeout().unwrap();
        rail.on_timeout(at);
        assert_eq!(resend(&mut rail, at), []);
        times.push(at);
    }
    let pauses: Vec<_> = times.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.windows(2).all(|two| two[0] <= two[1]));
    assert_eq!(pauses.last(), Some(&1_000_000));
}

/// The kernel allocates it in place and moves it on a stack of 16 KiB.
#[test]
fn unit_a_rail_is_small() {
    assert!(size_of::<Rail>() <= 1024, "{} bytes", size_of::<Rail>());
}

/// Frames of earlier agreements, or of another bundle, are not taken, whatever their numbers.
#[test]
fn unit_frames_of_other_agreements_are_refused() {
    let (mut a, mut b) = (rail(), rail());
    a.set_sequences(0x1234_fff0, 0x5678_0001);
    b.set_sequences(0x5678_0001, 0x1234_fff0);
    let (hello, _) = control(&mut b, 0).unwrap();
    assert_eq!(a.on_frame(&hello, &[], 0), Rx::Control);
    assert_eq!(a.room(), WINDOW);
    a.set_bundle(7, 9);
    let frame = send(&mut a, 0);
    assert_eq!((frame.seq, frame.tag), (0xfff0, 0x1234 ^ 7));
    assert_eq!(b.on_frame(&frame, &[], 0), Rx::Outside);
    b.set_bundle(9, 7);
    let mut other = frame;
    other.tag ^= 1;
    assert_eq!(b.on_frame(&other, &[], 0), Rx::Outside);
    assert_eq!(b.on_frame(&frame, &[], 0), Rx::Deliver);
    // And on over the end of the lower half.
    for _ in 0..40 {
        let frame = send(&mut a, 0);
        assert_eq!(b.on_frame(&frame, &[], 0), Rx::Deliver);
        let back = send(&mut b, 0);
        assert_eq!(a.on_frame(&back, &[], 0), Rx::Deliver);
        let stale = Header {
            tag: 0x5678,
            ..back
        };
        assert_eq!(a.on_frame(&stale, &[], 0), Rx::Outside);
    }
    assert_eq!(a.una(), 0x1234_fff0 + 41);
    assert_eq!(b.stats().outside, 2);
}

#[test]
fn unit_sequences_are_in_circular_order() {
    assert!(before(u32::MAX, 0) && before(0, 1) && before(5, 5 + (1 << 31) - 1));
    assert!(!before(0, u32::MAX) && !before(7, 7) && !before(5, 5 + (1 << 31)));
}
