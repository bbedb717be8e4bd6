// SPDX-License-Identifier: GPL-2.0-only
//! Messages to the kernel log.
//!
//! The kernel crate's `pr_info!` and its relatives let vmlinux decode `core::fmt::Arguments`, which only
//! works if the same rustc built both. These macros make the text here, in a buffer of bounded size on the
//! stack, and hand over bytes (`shims/print.c` has the whole story). Messages get the prefix `tbrdma: ` and
//! the newline by themselves:
//!
//! ```ignore
//! log_info!("rail {} of link {} is up, {} descriptors", rail, link, size);
//! log_warn_ratelimited!("frame of {} bytes dropped: {:?}", len, reason);
//! ```

// The set of severities is whole, whether or not each is in use.
#![allow(unused_macros, dead_code)]

use core::fmt::{Arguments, Write};
use kernel::sync::atomic::{Atomic, Relaxed};

/// Longest text of one message in bytes; what is beyond is cut off and marked with `...`.
const TEXT_MAX: usize = 480;

/// Severity, as in `include/linux/kern_levels.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Err,
    Warn,
    Notice,
    Info,
    Debug,
}

impl Level {
    fn digit(self) -> u8 {
        match self {
            Level::Err => b'3',
            Level::Warn => b'4',
            Level::Notice => b'5',
            Level::Info => b'6',
            Level::Debug => b'7',
        }
    }
}

struct Line {
    text: [u8; TEXT_MAX],
    len: usize,
    cut: bool,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let room = &mut self.text[self.len..];
        let take = s.len().min(room.len());
        room[..take].copy_from_slice(&s.as_bytes()[..take]);
        self.len += take;
        if take < s.len() {
            self.cut = true;
            return Err(core::fmt::Error);
        }
        Ok(())
    }
}

/// Whether debug messages are switched on (dynamic debug, module tbrdma).
pub(crate) fn debug_enabled() -> bool {
    // SAFETY: The function only reads a static key; it may be called in any context.
    unsafe { crate::sys::tbrdma_debug_enabled() }
}

/// Prints one line. Use the macros of this module instead.
pub(crate) fn emit(level: Level, args: Arguments<'_>) {
    let mut line = Line {
        text: [0; TEXT_MAX],
        len: 0,
        cut: false,
    };
    // An error only says that the text was too long, or that a Display of ours failed: print what there is.
    let _ = line.write_fmt(args);
    if line.cut {
        line.text[TEXT_MAX - 3..].copy_from_slice(b"...");
    }
    let text = &line.text[..line.len];
    // SAFETY: `text` is valid for `text.len()` bytes during the call; printk may be called in any context.
    unsafe { crate::sys::tbrdma_print(level.digit() as _, text.as_ptr().cast(), text.len()) };
}

/// State of one place in the code that prints with a rate limit.
pub(crate) struct RateLimit {
    /// Time of the first message of the interval in ticks.
    begin: Atomic<usize>,
    /// Messages asked for in the interval; 0 before the very first.
    asked: Atomic<u32>,
    /// Messages that may be printed in an interval, and its length in seconds.
    burst: u32,
    seconds: usize,
}

impl RateLimit {
    /// Lets `burst` messages through in `seconds` seconds.
    pub(crate) const fn new(burst: u32, seconds: usize) -> Self {
        Self {
            begin: Atomic::new(0),
            asked: Atomic::new(0),
            burst,
            seconds,
        }
    }

    /// Whether a message may be printed now. Says how many were left out when an interval is over.
    ///
    /// Two CPUs that find an interval over at the same time may both print: the limit is not exact.
    pub(crate) fn allow(&self, level: Level) -> bool {
        // SAFETY: Both functions only read numbers.
        let (now, second) = unsafe {
            (
                crate::sys::tbrdma_print_now() as usize,
                crate::sys::tbrdma_print_second() as usize,
            )
        };
        let (burst, interval) = (self.burst, self.seconds * second);
        let asked = self.asked.load(Relaxed);
        if asked == 0 || now.wrapping_sub(self.begin.load(Relaxed)) > interval {
            self.begin.store(now, Relaxed);
            self.asked.store(1, Relaxed);
            if asked > burst {
                emit(
                    level,
                    format_args!("{} messages like the next one left out", asked - burst),
                );
            }
            return true;
        }
        // No overflow in practice, and a wrapped count would only print a few lines more.
        self.asked.fetch_add(1, Relaxed) < burst
    }
}

/// Prints at the given [`Level`].
macro_rules! log_at {
    ($level:ident, $($arg:tt)+) => {
        $crate::print::emit($crate::print::Level::$level, ::kernel::prelude::fmt!($($arg)+))
    };
}

/// Prints at the given [`Level`], as often as a [`RateLimit`] for this place in the code lets through.
macro_rules! log_at_limited {
    ($level:ident, $limit:expr, $($arg:tt)+) => {{
        static LIMIT: $crate::print::RateLimit = $limit;
        if LIMIT.allow($crate::print::Level::$level) {
            $crate::print::log_at!($level, $($arg)+);
        }
    }};
}

/// Prints at the given [`Level`], at most ten times in five seconds for this place in the code.
macro_rules! log_at_ratelimited {
    ($level:ident, $($arg:tt)+) => {
        $crate::print::log_at_limited!($level, $crate::print::RateLimit::new(10, 5), $($arg)+)
    };
}

/// As `log_warn!`, at most once per second for this place in the code.
macro_rules! log_warn_each_second {
    ($($arg:tt)+) => {
        $crate::print::log_at_limited!(Warn, $crate::print::RateLimit::new(1, 1), $($arg)+)
    };
}

/// Something that was asked for cannot be done.
macro_rules! log_err { ($($arg:tt)+) => { $crate::print::log_at!(Err, $($arg)+) }; }
/// Something is wrong or worse than it should be; work goes on.
macro_rules! log_warn { ($($arg:tt)+) => { $crate::print::log_at!(Warn, $($arg)+) }; }
/// Normal, but worth seeing.
macro_rules! log_notice { ($($arg:tt)+) => { $crate::print::log_at!(Notice, $($arg)+) }; }
/// Normal.
macro_rules! log_info { ($($arg:tt)+) => { $crate::print::log_at!(Info, $($arg)+) }; }
/// For finding faults; switched on with dynamic debug.
macro_rules! log_debug {
    ($($arg:tt)+) => {
        if $crate::print::debug_enabled() {
            $crate::print::log_at!(Debug, $($arg)+);
        }
    };
}
/// As `log_err!`, for what a peer or a program can cause over and over.
macro_rules! log_err_ratelimited { ($($arg:tt)+) => { $crate::print::log_at_ratelimited!(Err, $($arg)+) }; }
/// As `log_warn!`, for what a peer or a program can cause over and over.
macro_rules! log_warn_ratelimited { ($($arg:tt)+) => { $crate::print::log_at_ratelimited!(Warn, $($arg)+) }; }
/// As `log_notice!`, for what a peer or a program can cause over and over.
macro_rules! log_notice_ratelimited { ($($arg:tt)+) => { $crate::print::log_at_ratelimited!(Notice, $($arg)+) }; }
/// As `log_info!`, for what a peer or a program can cause over and over.
macro_rules! log_info_ratelimited { ($($arg:tt)+) => { $crate::print::log_at_ratelimited!(Info, $($arg)+) }; }

#[allow(unused_imports)]
pub(crate) use {
    log_at, log_at_limited, log_at_ratelimited, log_debug, log_err, log_err_ratelimited, log_info,
    log_info_ratelimited, log_notice, log_notice_ratelimited, log_warn, log_warn_each_second,
    log_warn_ratelimited,
};
