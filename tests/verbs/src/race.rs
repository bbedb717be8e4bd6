//! Transfers side by side: how much each gets while all are under way.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

/// What the transfers have done, as they tell it.
pub struct Race {
    sent: Vec<AtomicU64>,
    begun: AtomicUsize,
    /// What each had sent when the last one began, and when the first one was done.
    from: OnceLock<Vec<u64>>,
    to: OnceLock<Vec<u64>>,
}

impl Race {
    /// Of so many transfers.
    pub fn new(transfers: usize) -> Self {
        Self {
            sent: (0..transfers).map(|_| AtomicU64::new(0)).collect(),
            begun: AtomicUsize::new(0),
            from: OnceLock::new(),
            to: OnceLock::new(),
        }
    }

    fn now(&self) -> Vec<u64> {
        let sent = self.sent.iter();
        sent.map(|sent| sent.load(Ordering::SeqCst)).collect()
    }

    /// One more sends from now on.
    pub fn begins(&self) {
        if self.begun.fetch_add(1, Ordering::SeqCst) + 1 == self.sent.len() {
            self.from.get_or_init(|| self.now());
        }
    }

    /// Transfer `at` has sent so many messages to the end.
    pub fn has_sent(&self, at: usize, messages: u64) {
        self.sent[at].store(messages, Ordering::SeqCst);
    }

    /// One has sent all.
    pub fn ends(&self) {
        self.to.get_or_init(|| self.now());
    }

    /// Messages of each while all were under way; none if the first was done before the last began.
    pub fn shares(&self) -> Option<Vec<u64>> {
        let shares = self.to.get()?.iter().zip(self.from.get()?);
        shares.map(|(to, from)| to.checked_sub(*from)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_all_were_under_way_for_counts() {
        let race = Race::new(2);
        race.begins();
        race.has_sent(0, 30);
        race.begins();
        race.has_sent(0, 50);
        race.has_sent(1, 10);
        race.ends();
        race.has_sent(1, 50);
        race.ends();
        assert_eq!(race.shares(), Some(vec![20, 10]));
    }

    #[test]
    fn who_comes_too_late_has_no_share() {
        let race = Race::new(2);
        race.begins();
        race.has_sent(0, 50);
        race.ends();
        assert_eq!(race.shares(), None);
        race.has_sent(0, 60);
        race.begins();
        assert_eq!(race.shares(), None);
    }
}
