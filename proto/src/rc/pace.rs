//! When a responder acknowledges: at once, together with others, or on a frame that goes to the
//! requester anyway.
//!
//! A requester says with the last frame of a message whether it waits for the acknowledgement
//! (IBTA's AckReq). If it does not, acknowledgements are put off until they are worth a frame. If
//! it does, one is put off only as long as this QP usually takes to send something back, and only
//! while it does so regularly: once it does not, the next acknowledgements go out at once.

/// Messages, and bytes, after which an acknowledgement goes out at once.
const MESSAGES: u32 = 64;
const BYTES: u32 = 256 << 10;
/// How long one that nobody waits for is put off.
const UNASKED_US: u64 = 5_000;
/// Replies in a row before one is counted on.
const REPLIES: u8 = 2;
/// What comes later than this after a message is no reply to it.
const REPLY_MAX_US: u64 = 5_000;
/// A reply is waited for twice as long as the slowest of late took, and not less than this.
const REPLY_MIN_US: u64 = 50;

/// When an acknowledgement is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// None is owed.
    No,
    /// At the end of the batch of frames that is being received.
    Now,
    /// At this time, microseconds, unless it has left with another frame before.
    At(u64),
}

/// What one responder remembers of messages and replies.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Since the last acknowledgement.
    messages: u32,
    bytes: u32,
    /// The requester waits.
    asked: bool,
    /// It waits to go on, so that an answer does not come before.
    at_once: bool,
    /// When the oldest message that is not acknowledged ended.
    since_us: Option<u64>,
    /// Messages ended that the clock was not looked at for; the last of them was waited for.
    fresh: bool,
    /// When the last message that was waited for ended, if nothing was sent since.
    open_us: Option<u64>,
    /// Replies in a row.
    replies: u8,
    /// How long they took: the slowest of late.
    reply_us: u64,
}

impl Pace {
    /// A message of `len` bytes ended.
    pub(super) fn on_message(&mut self, len: u32, asked: bool) {
        self.messages = self.messages.saturating_add(1);
        self.bytes = self.bytes.saturating_add(len);
        if asked {
            // The one before brought no reply.
            if self.open_us.take().is_some() {
                self.replies = 0;
            }
            self.asked = true;
            self.fresh = true;
        }
    }

    /// Somebody has to hear at once.
    pub(super) fn hurry(&mut self) {
        self.asked = true;
        self.replies = 0;
    }

    /// The requester has to hear before it goes on.
    pub(super) fn at_once(&mut self) {
        self.at_once = true;
    }

    /// When the acknowledgement that is owed is due.
    pub(super) fn due(&mut self, now_us: u64) -> Due {
        let since_us = *self.since_us.get_or_insert(now_us);
        if core::mem::take(&mut self.fresh) {
            self.open_us = Some(now_us);
        }
        if self.at_once || self.messages >= MESSAGES || self.bytes >= BYTES {
            return Due::Now;
        }
        let wait_us = match (self.asked, self.replies >= REPLIES) {
            (true, true) => (2 * self.reply_us).clamp(REPLY_MIN_US, REPLY_MAX_US),
            (true, false) => return Due::Now,
            (false, _) => UNASKED_US,
        };
        Due::At(since_us.saturating_add(wait_us))
    }

    /// A frame of this QP's leaves.
    pub(super) fn on_sent(&mut self, now_us: u64) {
        let Some(open_us) = self.open_us.take() else {
            return;
        };
        let took_us = now_us.saturating_sub(open_us);
        if took_us > REPLY_MAX_US {
            self.replies = 0;
            return;
        }
        self.replies = (self.replies + 1).min(REPLIES);
        self.reply_us = took_us.max(self.reply_us - self.reply_us / 8);
    }

    /// The acknowledgement was given away.
    pub(super) fn acknowledged(&mut self) {
        self.messages = 0;
        self.bytes = 0;
        self.asked = false;
        self.at_once = false;
        self.since_us = None;
    }

    /// The wait for a reply was in vain.
    pub(super) fn in_vain(&mut self) {
        if self.asked {
            self.replies = 0;
        }
    }
}
