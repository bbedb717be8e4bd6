//! The responder of an unreliable connection (UC; IBTA 1.7, 9.8.2).
//!
//! Nothing is answered. A message that cannot be received is dropped whole, and the next first frame
//! begins anew; the receive that it would have used stays at the head of the queue.

use super::incoming::{Begin, Current};
use super::request::{Delivery, Kind, Step};
use super::Responder;

/// Messages that were dropped.
#[derive(Debug, Default)]
pub(super) struct Drops {
    count: u32,
    /// The last of them, if no message began since, so that each is counted once.
    last: Option<u32>,
}

impl Drops {
    /// Message `msn` is dropped.
    pub(super) fn count(&mut self, msn: u32) {
        if self.last != Some(msn) {
            self.last = Some(msn);
            self.count = self.count.saturating_add(1);
        }
    }
}

impl Responder {
    /// A responder of an unreliable connection (UC).
    ///
    /// [`on_frame`](Self::on_frame) gives only [`Step::Receive`], [`Step::Write`] and
    /// [`Step::Drop`], and no acknowledgement is ever owed. If the receive or the memory does not
    /// allow what a step asks for, call [`refuse`](Self::refuse).
    pub fn unreliable() -> Self {
        let mut own = Self::new(0, 0);
        own.drops = Some(Drops::default());
        own
    }

    /// How many messages were dropped since this was asked last.
    pub fn take_dropped(&mut self) -> u32 {
        match &mut self.drops {
            Some(drops) => core::mem::take(&mut drops.count),
            None => 0,
        }
    }

    pub(super) fn on_unreliable(&mut self, frame: &Delivery<'_>, receive_posted: bool) -> Step {
        if frame.first {
            if self.current.is_some() {
                // Its end is missing.
                self.drop_message(self.msn);
            }
            let begin =
                Begin::parse(frame).filter(|_| matches!(frame.kind, Kind::Send | Kind::Write));
            let usable = receive_posted || !frame.takes_receive();
            return match begin {
                Some(begin) if usable => {
                    let current = Current::new(frame, &begin);
                    if let Some(drops) = &mut self.drops {
                        drops.last = None;
                    }
                    self.msn = frame.msn;
                    self.current = Some(current);
                    current.step(frame)
                }
                _ => self.drop_message(frame.msn),
            };
        }
        match self.current {
            Some(current) if frame.msn == self.msn && current.goes_on(frame) => current.step(frame),
            Some(_) => {
                self.drop_message(self.msn);
                self.drop_message(frame.msn)
            }
            None => self.drop_message(frame.msn),
        }
    }

    fn drop_message(&mut self, msn: u32) -> Step {
        self.current = None;
        if let Some(drops) = &mut self.drops {
            drops.count(msn);
        }
        Step::Drop
    }
}
