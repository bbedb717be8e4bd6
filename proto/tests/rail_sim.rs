//! Rails in the simulator: everything arrives exactly once and in order, and repair is cheap.

mod sim;

use proptest::prelude::*;
use sim::{Chance, Driver, Faults, Setting, Stream, World};
use std::collections::BTreeSet;

/// Virtual time in which every run has to end, microseconds.
const LIMIT: u64 = 600_000_000;

fn world(seed: u64, setting: &Setting, faults: [Faults; 2], frames: [u64; 2]) -> World<Stream> {
    let [a, b] = frames;
    let streams = [Stream::new(seed, a, b), Stream::new(seed, b, a)];
    World::new(seed, setting, faults, streams)
}

fn faults() -> impl Strategy<Value = Faults> {
    (0..200u32, 0..100u32, 0..100u32, 0..50u32).prop_map(
        |(loss, duplication, reordering, corruption)| Faults {
            loss,
            duplication,
            reordering,
            corruption,
            ..Faults::default()
        },
    )
}

fn setting() -> impl Strategy<Value = Setting> {
    (
        1..=512u32,
        1..=512u32,
        2..600usize,
        0..40usize,
        prop::sample::select(&[1u64, 100, 1_000, 4_000, 10_000][..]),
        0..300u32,
        (
            prop_oneof![Just(0), Just(u32::MAX - 300), any::<u32>()],
            any::<u32>(),
        ),
    )
        .prop_map(
            |(window, capacity, tx_size, spare, tick, irq_delay, first_seqs)| {
                let rx_capacity = capacity.min(window);
                Setting {
                    window,
                    rx_capacity,
                    tx_size,
                    rx_size: rx_capacity as usize + spare,
                    tick,
                    irq_delay,
                    dead_after: 60_000_000,
                    first_seqs,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every frame arrives exactly once, in order and unchanged, in both directions, whatever the
    /// wires do and however small the rings are.
    #[test]
    fn prop_exactly_once_in_order(
        seed in any::<u64>(),
        setting in setting(),
        faults in (faults(), faults()),
        frames in (0..800u64, 0..800u64),
        slow in any::<bool>(),
    ) {
        let mut world = world(seed, &setting, faults.into(), frames.into());
        if slow {
            let [a, b] = world.uppers;
            world.uppers = [a.slow(150), b.slow(70)];
        }
        world.run(LIMIT);
    }

    /// On a wire that only loses, what is repeated is what was lost, and nothing more.
    #[test]
    fn prop_repair_repeats_just_the_gap(
        seed in any::<u64>(),
        loss in 0..30u32,
        irq_delay in 0..100u32,
        frames in 100..2000u64,
    ) {
        let setting = Setting { irq_delay, ..Setting::default() };
        let faults = [Faults::loss(loss), Faults::loss(loss)];
        let mut world = world(seed, &setting, faults, [frames, 0]);
        world.run(LIMIT);
        let stats = world.drivers[0].rail.stats();
        prop_assert!(
            stats.retransmits <= world.wires[0].lost,
            "{} lost, {:?}", world.wires[0].lost, stats
        );
        prop_assert!(stats.timeouts <= world.wires[0].lost + world.wires[1].lost);
    }
}

/// Chosen frames are lost, single ones and in rows: exactly these are repeated, no timer goes off,
/// and each gap costs less than a millisecond.
#[test]
fn sim_a_gap_costs_one_round_trip() {
    let setting = Setting::default();
    let mut clean = world(3, &setting, Default::default(), [5_000, 0]);
    clean.run(LIMIT);
    let lost: BTreeSet<u64> = [100, 101, 102, 500, 1000, 1002, 1004, 2000]
        .into_iter()
        .chain(3000..3100)
        .collect();
    let gaps = 7;
    let faults = Faults {
        lost: lost.clone(),
        ..Faults::default()
    };
    let mut world = world(3, &setting, [faults, Faults::default()], [5_000, 0]);
    world.run(LIMIT);
    let stats = world.drivers[0].rail.stats();
    assert_eq!(world.wires[0].lost, lost.len() as u64);
    assert_eq!((stats.retransmits, stats.timeouts), (lost.len() as u64, 0));
    let cost = (world.uppers[1].last_us - clean.uppers[1].last_us) / gaps;
    assert!(cost < 1_000, "{cost} us of virtual time for each gap");
}

/// The last frame of all is lost, so no frame after it shows the gap: the timer makes the sender
/// ask, in milliseconds, and one repetition is enough.
#[test]
fn sim_a_lost_tail_is_repaired_by_the_timer() {
    for tail in [1, 2, 3, 10, 17, 63, 100] {
        let setting = Setting::default();
        let lost = (1000 - tail..1000).collect();
        let faults = Faults {
            lost,
            ..Faults::default()
        };
        // The first frame on the wire tells the credit of the other direction.
        let mut world = world(9, &setting, [faults, Faults::default()], [999, 0]);
        world.run(LIMIT);
        let stats = world.drivers[0].rail.stats();
        assert_eq!(world.wires[0].lost, tail);
        assert_eq!(stats.retransmits, tail);
        assert_eq!(stats.timeouts, 1, "tail of {tail}");
        assert!(world.now < 60_000, "{} us", world.now);
    }
}

/// One in a hundred frames is lost, in both directions at once: milliseconds for each.
#[test]
fn sim_a_lost_frame_costs_milliseconds() {
    for seed in 0..4 {
        let setting = Setting::default();
        let mut clean = world(seed, &setting, Default::default(), [10_000, 10_000]);
        clean.run(LIMIT);
        let faults = [Faults::loss(10), Faults::loss(10)];
        let mut world = world(seed, &setting, faults, [10_000, 10_000]);
        world.run(LIMIT);
        let lost = world.wires[0].lost + world.wires[1].lost;
        assert!(lost > 150, "only {lost} frames were lost");
        let cost = (world.now - clean.now) / lost;
        assert!(cost < 2_000, "{cost} us of virtual time per lost frame");
    }
}

/// A request and its answer, one at a time, as a latency test does it.
#[test]
fn sim_sparse_frames_are_repaired_in_milliseconds() {
    let setting = Setting::default();
    let faults = [Faults::loss(50), Faults::loss(50)];
    let mut world = world(11, &setting, faults, [1000, 1000]);
    world.uppers = world.uppers.map(|stream| stream.slow(2_000));
    let alone = 2_000 * 1000;
    world.run(LIMIT);
    let lost = world.wires[0].lost + world.wires[1].lost;
    let cost = (world.now - alone) / lost;
    assert!(cost < 2_000, "{cost} us of virtual time per lost frame");
}

/// Without faults nothing is repeated, and one control frame goes with many data frames.
#[test]
fn sim_a_clean_wire_needs_no_repetition() {
    for frames in [[10_000, 0], [10_000, 10_000]] {
        let mut world = world(1, &Setting::default(), Default::default(), frames);
        world.run(LIMIT);
        for driver in &world.drivers {
            let stats = driver.rail.stats();
            assert_eq!(
                (stats.retransmits, stats.timeouts, stats.naks_sent),
                (0, 0, 0)
            );
            assert_eq!((driver.overruns, stats.outside, stats.absurd), (0, 0, 0));
            assert!(
                driver.controls <= 10_000 / 64 + 2,
                "{} control frames",
                driver.controls
            );
        }
    }
}

/// All acknowledgements of a while are lost: the sender stops for want of credit, asks, and both
/// go on when the wire lets them.
#[test]
fn sim_lost_credit_comes_again() {
    let back = Faults {
        cut: 500..300_000,
        ..Faults::default()
    };
    let mut world = world(
        5,
        &Setting::default(),
        [Faults::default(), back],
        [5_000, 0],
    );
    world.run(LIMIT);
    let stats = world.drivers[0].rail.stats();
    assert!(world.now > 300_000, "the cut came too late");
    assert!(world.now < 1_500_000, "went on after {} us only", world.now);
    assert!(stats.timeouts > 1);
    assert_eq!(stats.retransmits, 0, "{stats:?}");
}

/// The receiver gets no processor for a while, as a guest of a busy machine does: everything that
/// waits for it is there, so nothing is repeated.
#[test]
fn sim_a_receiver_that_stands_still_causes_no_repetition() {
    for stall in [5_000, 50_000, 500_000] {
        let mut world = world(13, &Setting::default(), Default::default(), [5_000, 5_000]);
        world.uppers = world.uppers.map(|stream| stream.slow(20));
        let (mut from, mut stalls) = (1_000, 0);
        while !world.is_done() {
            if world.now >= from {
                world.stop(stalls % 2, from + stall);
                from += 20_000 + stall;
                stalls += 1;
            }
            let moved = world.step().is_some();
            assert!(moved || world.is_done());
            assert!(world.now < LIMIT);
        }
        assert!(stalls >= 3, "{stalls} stalls of {stall} us");
        for driver in &world.drivers {
            let stats = driver.rail.stats();
            assert_eq!((stats.retransmits, stats.naks_sent), (0, 0), "{stats:?}");
            assert_eq!(driver.overruns, 0);
        }
        let asked: u64 = world.drivers.iter().map(|d| d.rail.stats().timeouts).sum();
        assert_eq!(asked > 0, stall > 20_000, "asked {asked} times");
    }
}

/// A cable that is dead for a while, shorter than the verdict takes.
#[test]
fn sim_both_directions_survive_a_cut() {
    let cut = Faults {
        cut: 1_000..4_000_000,
        ..Faults::default()
    };
    let mut world = world(5, &Setting::default(), [cut.clone(), cut], [5_000, 5_000]);
    world.run(LIMIT);
    assert!(world.now > 4_000_000);
    assert!(world.now < 5_200_000, "went on after {} us only", world.now);
}

/// A cable that stays dead: both sides say so, in the time agreed on.
#[test]
fn sim_a_dead_cable_is_noticed() {
    let cut = Faults {
        cut: 1_000..u64::MAX,
        ..Faults::default()
    };
    let mut world = world(5, &Setting::default(), [cut.clone(), cut], [50_000, 50_000]);
    let is_dead = |world: &World<Stream>, k: usize| {
        let driver: &Driver = &world.drivers[k];
        driver.rail.is_dead(world.now)
    };
    while !(is_dead(&world, 0) && is_dead(&world, 1)) {
        world.step().expect("the timers run");
        assert!(world.now < 7_000_000);
    }
    assert!(world.now >= 5_000_000);
    // Nobody floods a dead cable.
    for driver in &world.drivers {
        let stats = driver.rail.stats();
        assert!(stats.retransmits < 40, "{stats:?}");
        assert!(driver.controls < 400, "{} control frames", driver.controls);
    }
}

/// Without spare descriptors, repeated and control frames displace data frames; none is lost for
/// good.
#[test]
fn sim_overruns_are_repaired() {
    let setting = Setting {
        rx_size: 32,
        rx_capacity: 32,
        irq_delay: 500,
        ..Setting::default()
    };
    let faults = Faults {
        duplication: 200,
        ..Faults::default()
    };
    let mut world = world(5, &setting, [faults.clone(), faults], [3_000, 3_000]);
    world.run(LIMIT);
    assert!(world.drivers.iter().any(|driver| driver.overruns > 0));
}

/// The receiver never keeps more frames than it gave credit for; the driver checks it, and this
/// makes sure that the check is reached.
#[test]
fn sim_frames_after_a_gap_are_kept() {
    let faults = Faults {
        lost: [50].into(),
        ..Faults::default()
    };
    let mut world = world(
        5,
        &Setting::default(),
        [faults, Faults::default()],
        [1_000, 0],
    );
    world.run(LIMIT);
    assert!(world.drivers[1].most_held > 1);
}

/// The same seed gives the same run.
#[test]
fn sim_runs_can_be_repeated() {
    let run = |seed| {
        let faults = [Faults::loss(50), Faults::loss(50)];
        let mut world = world(seed, &Setting::default(), faults, [2_000, 2_000]);
        world.run(LIMIT);
        (world.now, world.wires[0].count, world.chance.clone().next())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let mut chance = Chance::new(7);
    assert!((0..100).any(|_| chance.happens(100)));
}
