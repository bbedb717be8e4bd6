//! Two nodes and the cable between them.

use super::{Chance, Driver, Faults, Setting, Upper, Wire};

/// Two nodes, their wires (0 from node 0 to node 1, 1 back) and the time.
pub struct World<U> {
    pub now: u64,
    pub chance: Chance,
    pub drivers: [Driver; 2],
    pub uppers: [U; 2],
    pub wires: [Wire; 2],
}

impl<U: Upper> World<U> {
    pub fn new(seed: u64, setting: &Setting, faults: [Faults; 2], uppers: [U; 2]) -> Self {
        let (tx, rx) = setting.first_seqs;
        let other = Setting {
            first_seqs: (rx, tx),
            ..setting.clone()
        };
        Self {
            now: 0,
            chance: Chance::new(seed),
            drivers: [Driver::new(setting.clone(), 0), Driver::new(other, 0)],
            uppers,
            wires: faults.map(Wire::new),
        }
    }

    /// Goes on to the next moment at which something happens; `None` if nothing ever will.
    pub fn step(&mut self) -> Option<()> {
        for k in 0..2 {
            while let Some(frame) = self.wires[k].receive(self.now) {
                self.drivers[1 - k].arrive(frame, self.now, &mut self.chance);
            }
        }
        for k in 0..2 {
            self.drivers[k].run(&mut self.uppers[k], self.now);
            if let Some(frame) = self.drivers[k].transmit(self.now) {
                self.wires[k].send(frame, self.now, &mut self.chance);
            }
        }
        let arrivals = self.wires.iter().filter_map(Wire::next_arrival);
        let events = self
            .drivers
            .iter()
            .zip(&self.uppers)
            .filter_map(|(driver, upper)| {
                // What is to be sent but finds no room waits for an event of the driver.
                let wanted = upper.next_timeout().filter(|at| *at > self.now);
                driver.next_event(wanted)
            });
        self.now = arrivals.chain(events).min()?.max(self.now + 1);
        Some(())
    }

    /// Runs until both sides are done and everything is acknowledged. Panics if that takes longer
    /// than `limit`, if nothing moves any more, or if a rail believes that the other is dead.
    pub fn run(&mut self, limit: u64) {
        while !self.is_done() {
            let moved = self.step().is_some();
            let dead = self.drivers.iter().any(|d| d.rail.is_dead(self.now));
            assert!(
                self.is_done() || (moved && !dead && self.now < limit),
                "no progress at {} us (moved {moved}, dead {dead}):\n{:?}\n{:?}",
                self.now,
                self.drivers[0].rail,
                self.drivers[1].rail
            );
        }
    }

    /// Node `k` gets no processor before this time; its hardware goes on.
    pub fn stop(&mut self, k: usize, until: u64) {
        self.drivers[k].stop(until);
    }

    /// Both sides are done and everything is acknowledged.
    pub fn is_done(&self) -> bool {
        self.uppers.iter().all(U::is_done) && self.drivers.iter().all(Driver::is_idle)
    }
}
