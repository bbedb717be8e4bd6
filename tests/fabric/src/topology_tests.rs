//! More hosts and more cables than two and one.

use super::*;

#[test]
fn cables_must_fit() {
    let names = ["a".to_owned(), "b".to_owned()];
    let build = |cables: &[&str]| {
        let specs: Vec<spec::Cable> = cables.iter().map(|c| c.parse().unwrap()).collect();
        Fabric::new(&names, &specs).map(drop)
    };
    assert!(build(&["a:1-b:1", "a:2-b:2"]).is_ok());
    assert!(build(&["a:1-b:1", "a:1-b:2"]).is_err());
    assert!(build(&["a:1-c:1"]).is_err());
    let twice = ["a".to_owned(), "a".to_owned()];
    assert!(Fabric::new(&twice, &[]).is_err());
}

#[test]
fn in_a_ring_of_three_each_frame_goes_to_its_neighbour() {
    let mut bed = Bed::of(&["a", "b", "c"], &["a:2-b:1", "b:2-c:1", "c:2-a:1"]);
    for host in 0..3 {
        let next = (host + 1) % 3;
        bed.connect_over((host, 3), (next, 1), 1, true);
        bed.give(next, 1, 4);
    }
    for host in 0..3 {
        bed.post(host, 1, 3, &[host as u8]);
    }
    for host in 0..3 {
        assert_eq!(bed.bytes((host + 1) % 3, 1), [[host as u8]]);
    }
    // Without the cable between b and c the others go on.
    bed.fabric.set_plugged(1, false).unwrap();
    for host in 0..3 {
        bed.post(host, 1, 3, &[10 + host as u8]);
    }
    assert_eq!(bed.bytes(1, 1), [[10]]);
    assert!(bed.bytes(2, 1).is_empty());
    assert_eq!(bed.bytes(0, 1), [[12]]);
    let frames: Vec<u64> = bed
        .fabric
        .counters()
        .cables
        .iter()
        .map(|c| c.frames)
        .collect();
    assert_eq!(frames, [2, 1, 2]);
}

#[test]
fn two_cables_between_two_hosts_are_two_links() {
    let mut bed = Bed::of(&["a", "b"], &["a:1-b:1", "a:2-b:2"]);
    bed.connect_over((0, 1), (1, 1), 1, true);
    bed.connect_over((0, 3), (1, 3), 2, true);
    bed.give(1, 1, 4);
    bed.give(1, 2, 4);
    let when = When::Nth { n: 1 };
    let kind = FaultKind::Drop;
    bed.fabric
        .set_fault(0, Direction::Forth, &Fault { kind, when })
        .unwrap();
    bed.post(0, 1, 3, b"first");
    bed.post(0, 2, 3, b"second");
    assert!(bed.bytes(1, 1).is_empty(), "the fault is on this cable");
    assert_eq!(bed.bytes(1, 2), [b"second"]);
    // XDomain requests come in at the port of the cable that they took.
    bed.ask(0, pdf::XDOMAIN_REQUEST, &[0, 3, 5]);
    assert_eq!(bed.heard(1)[0].words[1], 3);
}

#[test]
fn a_path_that_the_cable_does_not_grant_cannot_be_set_up() {
    let mut bed = Bed::new("a:1-b:1,paths=1,credits=40");
    assert_eq!(bed.read(0, 1, 1, port::CS_4) >> 20 & 0x3ff, 40);
    assert_eq!(bed.read(1, 1, 1, port::CS_5) & 0x7ff, 8);
    bed.connect(0, 1, true);
    bed.give(1, 1, 1);
    bed.post(0, 1, 3, b"granted");
    assert_eq!(bed.bytes(1, 1), [b"granted"]);
    let hop_9 = 18 | 1 << 13 | 1 << 19;
    let answer = bed.ask(1, pdf::WRITE, &[0, 0, hop_9, 1 << 31]);
    assert_eq!(answer[0].pdf, pdf::ERROR);
}

#[test]
fn a_delayed_frame_waits_for_a_receiver_with_flow_control() {
    let mut bed = Bed::new("a:1-b:1");
    bed.connect(0, 1, true);
    bed.give(1, 1, 1);
    bed.fault(FaultKind::Delay, 1);
    bed.post(0, 1, 3, b"late");
    bed.post(0, 1, 3, b"next");
    assert_eq!(bed.bytes(1, 1), [b"next"]);
    let late = bed.fabric.now + DELAY_MAX;
    bed.fabric.work(late);
    // A third frame must not take the buffer that the delayed one has waited for.
    bed.post(0, 1, 3, b"more");
    bed.give(1, 1, 1);
    assert_eq!(bed.bytes(1, 1), [b"late"]);
    bed.give(1, 1, 1);
    assert_eq!(bed.bytes(1, 1), [b"more"]);
    assert_eq!(bed.fabric.counters().routers["b"].rx[&1].drops, 0);
}

#[test]
fn events_that_nobody_hears_do_not_pile_up() {
    let mut bed = Bed::new("a:1-b:1");
    let no_hold = [0];
    let router = &mut bed.fabric.hosts[0].router;
    router.write(1, 1, port::CS_5, &no_hold).unwrap();
    bed.stop(0, false, 0);
    for _ in 0..1000 {
        bed.fabric.set_plugged(0, false).unwrap();
        bed.fabric.set_plugged(0, true).unwrap();
    }
    let events = &bed.fabric.hosts[0].events;
    assert!(events.len() <= 64, "{}", events.len());
    assert!(events.back().is_some_and(|last| !last.unplug));
}
