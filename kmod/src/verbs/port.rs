// SPDX-License-Identifier: GPL-2.0-only
//! The port's state and speed in the terms of verbs.

use crate::link::PortState;

/// State and speed of the port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Port {
    /// There is somebody to talk to.
    pub(crate) active: bool,
    lane_gbps: u32,
    lanes: u32,
}

/// Widths as (lanes, `enum ib_port_width`), widest first.
const WIDTHS: [(u32, u8); 5] = [(12, 8), (8, 4), (4, 2), (2, 16), (1, 1)];

/// Speeds of one lane as (Gb/s, `enum ib_port_speed`): QDR, EDR, HDR and so on (IBTA 1.7, 14.2.5.6).
const SPEEDS: [(u32, u16); 6] = [(10, 4), (5, 2), (25, 32), (50, 64), (100, 128), (200, 256)];

impl Port {
    pub(super) fn new(state: Option<PortState>) -> Self {
        match state {
            Some(state) => Self {
                active: state.active,
                lane_gbps: state.lane_gbps,
                lanes: state.lanes,
            },
            None => Self {
                active: false,
                lane_gbps: 0,
                lanes: 0,
            },
        }
    }

    /// `active_speed` and `active_width` whose product is the speed of the link, in full lanes of
    /// USB4: 20 Gb/s is 2X QDR, 40 is 4X, 80 is 8X. Where no pair is exact (three cables, say) the
    /// next lower one is told. Without a link: 1X SDR, the least there is.
    pub(crate) fn ib_speed_and_width(&self) -> (u16, u8) {
        let total = self.lane_gbps.saturating_mul(self.lanes);
        let mut best = (0, 1, 1);
        for (gbps, speed) in SPEEDS {
            for (lanes, width) in WIDTHS {
                let product = gbps * lanes;
                if product <= total && product > best.0 {
                    best = (product, speed, width);
                }
            }
        }
        (best.1, best.2)
    }
}
