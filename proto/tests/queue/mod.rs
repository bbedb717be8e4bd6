//! A send queue with a few entries, whose test says what the other end answers.

use tbrdma_proto::rc::{AckEntry, Config, Requester, Segment, Status, Syndrome, Wqe};

/// Bytes of a frame.
pub const ROOM: u32 = 64;

pub struct Queue {
    pub requester: Requester,
    pub ring: [Wqe; 8],
    pub now: u64,
}

impl Queue {
    /// A reliable queue with these entries.
    pub fn of(entries: impl IntoIterator<Item = Wqe>) -> Self {
        let config = Config {
            reliable: true,
            max_reads: 4,
            rnr_retry: 7,
            not_ready_limit_us: None,
        };
        let mut queue = Self {
            requester: Requester::new(config),
            ring: [Wqe::default(); 8],
            now: 0,
        };
        for wqe in entries {
            queue.post(wqe);
        }
        queue
    }

    pub fn post(&mut self, wqe: Wqe) {
        assert!(self.requester.post(&mut self.ring, wqe).is_ok());
    }

    /// An acknowledgement comes. Returns whether it was news.
    pub fn hear(&mut self, msn: u32, syndrome: Syndrome) -> bool {
        let entry = AckEntry::new(1, msn, syndrome);
        self.requester.on_ack(&self.ring, &entry, self.now)
    }

    /// A part of the response of a READ comes, which is expected.
    pub fn placed(&mut self, part: &Segment) {
        assert!(self.requester.read_slot(&self.ring, part).is_some());
        self.requester.read_placed(&mut self.ring, part);
    }

    /// What has ended since the last time.
    pub fn ended(&mut self) -> Vec<(u32, Status)> {
        std::iter::from_fn(|| self.requester.complete(&self.ring))
            .map(|done| (done.msn, done.status))
            .collect()
    }
}
