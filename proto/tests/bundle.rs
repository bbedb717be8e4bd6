//! A bundle by itself, step by step.

use proptest::prelude::*;
use std::collections::BTreeSet;
use tbrdma_proto::bundle::{Epoch, Receiver, Rx, Sender, Stats, Verdict, SPAN};

fn stats(receiver: &Receiver) -> Stats {
    let mut stats = Stats::default();
    receiver.stats(&mut stats);
    stats
}

/// A sender that has sent a whole span.
fn full() -> Sender {
    let mut sender = Sender::new();
    for seq in 0..SPAN {
        assert!(sender.reserve());
        assert_eq!(sender.commit(), seq);
    }
    sender
}

#[test]
fn unit_the_span_bounds_what_is_sent() {
    let mut sender = full();
    assert!(!sender.take_resume(), "nobody was refused");
    assert!(!sender.reserve());
    // What comes later helps nobody, as long as the oldest is missing.
    for seq in 1..SPAN {
        sender.acknowledged(seq);
    }
    assert!(!sender.reserve() && !sender.take_resume());
    sender.acknowledged(0);
    assert_eq!(sender.room(), SPAN);
    assert!(sender.take_resume() && !sender.take_resume());
    let mut stats = Stats::default();
    sender.stats(&mut stats);
    assert_eq!(stats.stalls, 2);
}

#[test]
fn unit_claims_count_and_can_be_given_back() {
    let mut sender = Sender::new();
    for _ in 0..SPAN {
        assert!(sender.reserve());
    }
    assert!(!sender.reserve());
    sender.cancel();
    assert!(sender.take_resume());
    assert!(sender.reserve());
    assert_eq!((sender.commit(), sender.commit(), sender.room()), (0, 1, 0));
}

#[test]
fn unit_an_acknowledgement_counts_once() {
    let mut sender = full();
    for seq in [3, 3, 0, 1, 0, SPAN, u32::MAX] {
        sender.acknowledged(seq);
    }
    let open: Vec<_> = (0..6).filter(|seq| sender.is_open(*seq)).collect();
    assert_eq!((sender.room(), open), (2, vec![2, 4, 5]));
    assert!(!sender.is_open(SPAN) && !sender.is_open(u32::MAX));
    // The place of an old number is not taken for the new one.
    assert!(sender.reserve() && sender.commit() == SPAN && sender.is_open(SPAN));
}

/// A rail that was alone has given three numbers, the last ones before they wrap, of which two are
/// unacknowledged; one frame more is being filled.
#[test]
fn unit_goes_on_where_a_rail_alone_has_begun() {
    let mut sender = Sender::resume(u32::MAX - 1, 0, 1);
    assert_eq!(sender.room(), SPAN - 3);
    assert!(sender.is_open(u32::MAX - 1) && sender.is_open(u32::MAX) && !sender.is_open(0));
    assert_eq!(sender.commit(), 0);
    assert_eq!(sender.room(), SPAN - 3);
    for seq in [u32::MAX, 0, u32::MAX - 1] {
        sender.acknowledged(seq);
    }
    assert_eq!(sender.room(), SPAN);
    assert!(sender.reserve());
    assert_eq!(sender.commit(), 1);
}

#[test]
fn unit_a_frame_that_cannot_be_kept_counts_as_beyond() {
    let mut receiver = Receiver::new();
    receiver.refuse();
    assert_eq!((receiver.expected(), stats(&receiver).beyond), (0, 1));
    assert_eq!(receiver.on_frame(0), Rx::Deliver);
}

#[test]
fn unit_frames_that_come_early_wait() {
    let mut receiver = Receiver::new();
    assert_eq!(receiver.on_frame(1), Rx::Hold);
    assert_eq!(receiver.on_frame(1), Rx::Duplicate);
    assert_eq!(receiver.on_frame(SPAN - 1), Rx::Hold);
    assert_eq!(receiver.on_frame(SPAN), Rx::Beyond);
    assert_eq!(receiver.on_frame(1 << 31), Rx::Beyond);
    assert_eq!(receiver.next_held(), None);
    assert_eq!(receiver.on_frame(0), Rx::Deliver);
    assert_eq!(
        (receiver.next_held(), receiver.next_held()),
        (Some(1), None)
    );
    assert_eq!(receiver.on_frame(0), Rx::Duplicate);
    assert_eq!(receiver.on_frame(SPAN), Rx::Hold);
    let stats = stats(&receiver);
    assert_eq!((stats.held, stats.duplicates, stats.beyond), (3, 2, 2));
}

/// Both ends begin together, whoever of them hears first.
#[test]
fn unit_a_fresh_pair_begins() {
    let (a, b) = (Epoch { mine: 1, yours: 0 }, Epoch { mine: 2, yours: 0 });
    assert_eq!(a.judge(&b), Verdict::Join);
    let begun = Epoch { yours: 2, ..a };
    assert_eq!(b.judge(&begun), Verdict::Join);
    assert_eq!(
        begun.judge(&b),
        Verdict::Join,
        "another rail, before b has begun"
    );
    let both = Epoch { yours: 1, ..b };
    assert_eq!(begun.judge(&both), Verdict::Join);
    assert_eq!(both.judge(&begun), Verdict::Join);
    let (tx, rx) = both.tags();
    assert_eq!(begun.tags(), (rx, tx));
    assert_ne!(tx, rx);
}

#[test]
fn unit_who_has_begun_anew_waits_until_the_other_has_noticed() {
    let stale = Epoch { mine: 1, yours: 2 };
    let fresh = Epoch { mine: 3, yours: 0 };
    assert_eq!(stale.judge(&fresh), Verdict::Over);
    assert_eq!(fresh.judge(&stale), Verdict::Wait);
    // Both have begun anew with others than each other: impossible, but it mends itself.
    let other = Epoch { mine: 3, yours: 4 };
    assert_eq!(stale.judge(&other), Verdict::Over);
    assert_eq!(other.judge(&stale), Verdict::Over);
}

#[test]
fn unit_an_epoch_is_read_as_written() {
    let epoch = Epoch {
        mine: 0x0102_0304_0506_0708,
        yours: u64::MAX,
    };
    let bytes = epoch.emit();
    assert_eq!(bytes[0], 8);
    assert_eq!(Epoch::parse(&bytes), Some(epoch));
    assert_eq!(Epoch::parse(&bytes[..15]), None);
    assert_eq!(Epoch::parse(&[0; 16]), None, "no nonce");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any order of arrival and repetition: each frame goes up once, in order, and what is kept is
    /// bounded by the span.
    #[test]
    fn prop_each_frame_once_in_order(
        arrivals in prop::collection::vec((0..SPAN, any::<bool>()), 1..3000),
    ) {
        let (mut sender, mut receiver) = (Sender::new(), Receiver::new());
        let mut under_way = BTreeSet::new();
        let mut next = 0;
        for (pick, again) in arrivals {
            while under_way.len() < 1 + pick as usize / 2 && sender.reserve() {
                under_way.insert(sender.commit());
            }
            let Some(seq) = under_way.iter().copied().nth(pick as usize % under_way.len().max(1)) else {
                continue;
            };
            let mut kept = 0;
            match receiver.on_frame(seq) {
                Rx::Deliver => {
                    prop_assert_eq!(seq, next);
                    next += 1;
                    while let Some(held) = receiver.next_held() {
                        prop_assert_eq!(held, next);
                        next += 1;
                    }
                }
                Rx::Hold => kept += 1,
                Rx::Duplicate => {}
                Rx::Beyond => prop_assert!(false, "{} beyond {}", seq, next),
            }
            prop_assert!(kept < SPAN);
            prop_assert_eq!(receiver.expected(), next);
            if !again {
                under_way.remove(&seq);
                sender.acknowledged(seq);
                prop_assert!(!sender.is_open(seq));
            }
        }
        prop_assert_eq!(stats(&receiver).beyond, 0);
    }

    /// Whatever a hostile peer sends, frames go up in order and nothing is kept twice.
    #[test]
    fn prop_any_numbers_do_no_harm(numbers in prop::collection::vec(prop_oneof![
        0..2 * SPAN, any::<u32>(),
    ], 0..3000)) {
        let mut receiver = Receiver::new();
        let (mut next, mut held) = (0, BTreeSet::new());
        for seq in numbers {
            match receiver.on_frame(seq) {
                Rx::Deliver => {
                    prop_assert_eq!(seq, next);
                    next += 1;
                    while let Some(seq) = receiver.next_held() {
                        prop_assert_eq!(seq, next);
                        prop_assert!(held.remove(&seq));
                        next += 1;
                    }
                }
                Rx::Hold => prop_assert!(held.insert(seq) && seq > next && seq - next < SPAN),
                Rx::Duplicate => prop_assert!(
                    held.contains(&seq) || (next.wrapping_sub(seq) <= SPAN)
                ),
                Rx::Beyond => prop_assert!(seq.wrapping_sub(next) >= SPAN),
            }
        }
    }
}
