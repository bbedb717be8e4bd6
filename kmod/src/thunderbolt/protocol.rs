// SPDX-License-Identifier: GPL-2.0-only
//! XDomain messages of our own protocol.
//!
//! A message is: route (8 bytes), length and sequence (4 bytes), protocol UUID (16 bytes), body.
//! The core turns each 32-bit word from CPU to wire order and back, so bytes arrive as they were
//! sent between machines of the same byte order; we support little-endian ones only, as the
//! kernel crate's USB4 machines are.

use super::os;
use super::xdomain::{XDomain, MESSAGE_MAX};
use crate::sys;
use core::pin::Pin;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full};
use kernel::sync::Arc;
use kernel::types::Opaque;

/// UUID of our protocol, b1da3890-e891-44be-824d-e82219cb4855 in text form.
const PROTOCOL: [u8; 16] = [
    0xb1, 0xda, 0x38, 0x90, 0xe8, 0x91, 0x44, 0xbe, 0x82, 0x4d, 0xe8, 0x22, 0x19, 0xcb, 0x48, 0x55,
];

/// Bytes before the body.
const HEADER: usize = 28;

/// The core sets the top bit of the route in messages that come in.
const ROUTE_MASK: u64 = !(1 << 63);

/// A whole message, ready to be sent, or received.
pub(crate) struct Message {
    bytes: [u8; MESSAGE_MAX],
    len: usize,
}

impl Message {
    /// A message over `xd` with this body, zero-padded to a multiple of 4; `EMSGSIZE` if it is
    /// longer than a control frame allows, 224 bytes.
    pub(crate) fn new(xd: &XDomain, body: &[u8]) -> Result<Self> {
        let body_len = body.len().next_multiple_of(4);
        let len = HEADER + body_len;
        if len > MESSAGE_MAX {
            return Err(EMSGSIZE);
        }
        let mut bytes = [0; MESSAGE_MAX];
        let route = xd.route();
        let words = [
            (route >> 32) as u32,
            route as u32,
            // Words after this one; sequence 0 (requests are told apart by their bodies).
            ((len - 12) / 4) as u32,
        ];
        let head = words.iter().flat_map(|word| word.to_ne_bytes());
        for (to, from) in bytes.iter_mut().zip(head) {
            *to = from;
        }
        bytes[12..HEADER].copy_from_slice(&PROTOCOL);
        bytes[HEADER..HEADER + body.len()].copy_from_slice(body);
        Ok(Self { bytes, len })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Room for a response.
pub(crate) struct ResponseBuf {
    bytes: [u8; MESSAGE_MAX],
}

impl ResponseBuf {
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; MESSAGE_MAX],
        }
    }

    /// For [`XDomain::request`], with room for a body of `body_len` bytes.
    pub(crate) fn as_mut(&mut self, body_len: usize) -> &mut [u8] {
        let len = (HEADER + body_len.next_multiple_of(4)).min(MESSAGE_MAX);
        self.bytes.get_mut(..len).unwrap_or_default()
    }

    /// The body that came, as long as the message says.
    pub(crate) fn body(&self) -> &[u8] {
        parse(&self.bytes).map_or(&[], |(_, body)| body)
    }
}

/// Takes a message apart: route and body. Both may be anything; only lengths are right.
fn parse(message: &[u8]) -> Option<(u64, &[u8])> {
    let word = |at: usize| -> Option<u32> {
        let bytes = message.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let route = (u64::from(word(0)?) << 32 | u64::from(word(4)?)) & ROUTE_MASK;
    let len = 12 + 4 * (word(8)? & 0x3f) as usize;
    if message.get(12..HEADER)? != PROTOCOL {
        return None;
    }
    Some((route, message.get(HEADER..len)?))
}

/// Receives the messages of our protocol.
pub(crate) trait Receiver: Send + Sync + 'static {
    /// A message has come on some cable with this route; nothing about it is to be trusted.
    /// Called in process context and must not wait for other messages, nor for long.
    /// Returns whether it was a request for us. Answers to requests of ours come by here too
    /// and have to be left alone.
    fn message(&self, route: u64, body: &[u8]) -> bool;
}

/// A registered receiver. Dropping it waits until no message is being handled.
#[pin_data(PinnedDrop)]
pub(crate) struct Handler<R: Receiver> {
    #[pin]
    handler: Opaque<sys::tb_protocol_handler>,
    uuid: sys::uuid_t,
    receiver: Arc<R>,
    /// Callbacks running now.
    running: Atomic<u32>,
}

// SAFETY: the list node is the core's, under its lock; the rest is `Send + Sync`.
unsafe impl<R: Receiver> Send for Handler<R> {}
// SAFETY: as above.
unsafe impl<R: Receiver> Sync for Handler<R> {}

impl<R: Receiver> Handler<R> {
    /// Registers `receiver` for our protocol.
    pub(crate) fn new(receiver: Arc<R>) -> Result<Pin<KBox<Self>>> {
        let this = KBox::pin_init(
            pin_init!(Self {
                handler: Opaque::new(sys::tb_protocol_handler::default()),
                uuid: sys::uuid_t { b: PROTOCOL },
                receiver,
                running: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let raw = this.handler.get();
        // SAFETY: not registered yet, so it is ours alone; the pointers stay valid until `drop`
        // has unregistered it, since the box is pinned.
        let ret = unsafe {
            (*raw).uuid = &this.uuid;
            (*raw).callback = Some(Self::callback);
            (*raw).data = (&raw const *this).cast_mut().cast();
            kernel::bindings::INIT_LIST_HEAD(&raw mut (*raw).list);
            sys::tb_register_protocol_handler(raw)
        };
        kernel::error::to_result(ret)?;
        Ok(this)
    }

    unsafe extern "C" fn callback(buf: *const c_void, size: usize, data: *mut c_void) -> c_int {
        // SAFETY: `data` is the pinned handler; `drop` keeps it until no callback runs.
        let this = unsafe { &*data.cast::<Self>() };
        this.running.fetch_add(1, Full);
        // SAFETY: the core passes a message of `size` bytes that lives until we return.
        let message = unsafe { core::slice::from_raw_parts(buf.cast::<u8>(), size) };
        let ours = parse(message).is_some_and(|(route, body)| this.receiver.message(route, body));
        this.running.fetch_sub(1, Full);
        ours.into()
    }
}

#[pinned_drop]
impl<R: Receiver> PinnedDrop for Handler<R> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: either registered, or its list node is initialised and empty.
        unsafe { sys::tb_unregister_protocol_handler(self.handler.get()) };
        // The core calls callbacks without its lock, so one may still be about to run or running.
        // A task that has picked ours up has not slept since, so after a grace period of tasks
        // RCU it has entered the callback and is counted, or is through.
        os::synchronize_tasks();
        while self.running.load(kernel::sync::atomic::Acquire) != 0 {
            os::sleep_ms(1);
        }
        // And what counted itself out has left our code after another one.
        os::synchronize_tasks();
    }
}
