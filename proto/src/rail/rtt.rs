//! Round-trip time and the retransmission timer's length (RFC 6298, in integers).

use super::receiver::ACK_DELAY_US;

/// The timer's shortest length. Above the longest time by which the receiver may delay an
/// acknowledgement, two of its clock ticks included (10 ms where they are longest); frames lost
/// in the middle are told by NAK long before.
const RTO_MIN_US: u64 = ACK_DELAY_US + 2 * TICK_US;
const TICK_US: u64 = 10_000;
const RTO_FIRST_US: u64 = 50_000;
const RTO_MAX_US: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Rtt {
    /// Eight times the smoothed time.
    srtt8: u64,
    /// Four times the smoothed deviation.
    var4: u64,
    measured: bool,
    /// Timeouts in a row.
    backoff: u32,
}

impl Rtt {
    pub(super) fn sample(&mut self, us: u64) {
        let us = us.min(60_000_000);
        if !self.measured {
            self.measured = true;
            self.srtt8 = us * 8;
            self.var4 = us * 2;
        } else {
            let deviation = us.abs_diff(self.srtt8 / 8);
            self.var4 = self.var4 - self.var4 / 4 + deviation;
            self.srtt8 = self.srtt8 - self.srtt8 / 8 + us;
        }
        self.backoff = 0;
    }

    pub(super) fn progress(&mut self) {
        self.backoff = 0;
    }

    pub(super) fn timed_out(&mut self) {
        self.backoff = (self.backoff + 1).min(10);
    }

    pub(super) fn smoothed_us(&self) -> u64 {
        self.srtt8 / 8
    }

    pub(super) fn rto_us(&self) -> u64 {
        let base = if self.measured {
            self.srtt8 / 8 + self.var4
        } else {
            RTO_FIRST_US
        };
        (base.max(RTO_MIN_US) << self.backoff).min(RTO_MAX_US)
    }
}
