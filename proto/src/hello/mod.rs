//! HELLO: two hosts agree to use a cable.
//!
//! It travels over XDomain requests, before there is any path for data. Stock kernels tell the
//! receiver of a request only a route, which two controllers of one host may share, so the message
//! names the cable by the two routers it joins.
//!
//! Each end sends HELLO until the other has answered; the answer carries the same facts in the
//! other direction, so one exchange in either direction suffices. Then both enable their paths and
//! prove them with pings, which are frames on the rail. HELLO is idempotent, is repeated slowly
//! for ever, and either end may start first. A new nonce in it means that the other end began
//! anew, and so do we.

mod action;
mod machine;
mod message;

pub use action::{Action, Agreed, State};
pub use machine::Hello;
pub use message::{Facts, Kind, Message, Refusal, MAX_RAILS, MESSAGE_LEN};

/// Oldest and newest version of HELLO, rails and messages that this code speaks.
pub const VERSIONS: (u8, u8) = (1, 1);
