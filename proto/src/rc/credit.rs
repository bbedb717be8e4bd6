//! End-to-end credits (IBTA 1.7, 9.7.7.2): how many messages may begin that take a receive.
//!
//! Without them a message that finds no receive crosses the cable for nothing, and so do all that
//! are under way behind it. The responder tells how many receives it has, and no message begins
//! that takes another. If nothing is under way that could bring news, one goes all the same, as a
//! probe, and nothing behind it until it is acknowledged.
//!
//! A responder that has told that there is no receive tells when the next one is posted. So a probe
//! waits for that, and goes only if it takes long.
//!
//! Only messages that take a receive are counted, since the QP was connected, modulo 2^32: `n`
//! stands for the first `n` of them. IBTA counts all messages, so that WRITEs use up credits that
//! they do not need.

use super::msn_before;

/// How long promised news are waited for before a probe, microseconds. It doubles with each probe
/// that finds no receive, up to [`PAUSE_MAX_US`], and begins anew when one was right not to wait
/// longer.
const PAUSE_MIN_US: u64 = 1_000;
const PAUSE_MAX_US: u64 = 64_000;

/// What one requester knows of the receives.
#[derive(Debug)]
pub(super) struct Credit {
    /// So many have a receive; `None`: it was not told. Never less than are acknowledged.
    limit: Option<u32>,
    /// The last of so many asks for news, while some may still begin.
    ask_at: u32,
    /// News will come when there is a receive beyond the limit.
    promised: bool,
    /// How long they are waited for, and until when; `None`: nothing had to wait yet.
    pause_us: u64,
    probe_at: Option<u64>,
}

impl Credit {
    /// Nothing was told.
    pub(super) const fn new() -> Self {
        Self {
            limit: None,
            ask_at: 0,
            promised: false,
            pause_us: PAUSE_MIN_US,
            probe_at: None,
        }
    }

    /// A message may begin that `before` others precede. Behind a probe none may; otherwise those
    /// that take no receive always.
    pub(super) fn allows(&self, before: u32, takes: bool) -> bool {
        match self.limit {
            Some(limit) if takes => msn_before(before, limit),
            Some(limit) => !msn_before(limit, before),
            None => true,
        }
    }

    /// The one that `before` others precede asks for news, so that they come before the others are
    /// used up.
    pub(super) fn asks(&self, before: u32) -> bool {
        self.limit.is_some() && before.wrapping_add(1) == self.ask_at
    }

    /// Nothing is under way, and what comes next lacks a receive: when it goes as a probe.
    pub(super) fn probe_at(&mut self, now_us: u64) -> u64 {
        if !self.promised {
            return now_us;
        }
        let at = now_us.saturating_add(self.pause_us);
        *self.probe_at.get_or_insert(at)
    }

    /// The first `done` are acknowledged: they had a receive.
    pub(super) fn acknowledged(&mut self, done: u32) {
        if self.limit.is_some_and(|limit| msn_before(limit, done)) {
            self.raise(done);
            self.pause_us = PAUSE_MIN_US;
        }
    }

    /// There are so many receives beyond those of the first `done`; `begun` have begun. A responder
    /// that does not tell is sent what there is, and may refuse.
    ///
    /// A receive that is there stays until it is taken. So if this is less than was known, it is
    /// late: an acknowledgement that rides may overtake another.
    pub(super) fn told(&mut self, done: u32, begun: u32, receives: Option<u16>) {
        let Some(receives) = receives else {
            self.limit = None;
            return;
        };
        let end = done.wrapping_add(receives.into());
        if self.limit.is_none_or(|limit| msn_before(limit, end)) {
            self.raise(end);
            let left = if msn_before(begun, end) {
                end.wrapping_sub(begun)
            } else {
                0
            };
            self.ask_at = begun.wrapping_add(left / 2);
        }
        if receives == 0 && self.limit == Some(end) {
            self.promised = true;
            self.probe_at = None;
        }
    }

    fn raise(&mut self, limit: u32) {
        self.limit = Some(limit);
        self.promised = false;
    }

    /// There was no receive for the next one after the first `done`. By now there are so many.
    pub(super) fn refused(&mut self, done: u32, receives: Option<u16>, now_us: u64) {
        self.limit = Some(done);
        self.told(done, done, receives);
        self.probe_at = Some(now_us.saturating_add(self.pause_us));
        self.pause_us = (self.pause_us * 2).min(PAUSE_MAX_US);
    }
}
