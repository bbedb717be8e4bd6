// SPDX-License-Identifier: GPL-2.0-only
//! One cable to another host, as the Thunderbolt core sees it.

use super::ring::{RxRing, TxRing};
use crate::sys;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::prelude::*;

/// Largest XDomain message with its header, bytes: a control frame of 256 bytes less its CRC
/// (USB4 v2, 6.4.3).
pub(crate) const MESSAGE_MAX: usize = 252;

/// A counted reference to an XDomain connection.
///
/// It may outlive the connection: calls then fail or do nothing.
///
/// # Invariants
///
/// `ptr` is a registered or once registered `tb_xdomain`, of which this value owns a reference.
pub(crate) struct XDomain {
    ptr: NonNull<sys::tb_xdomain>,
}

// SAFETY: the core's XDomain functions lock for themselves; references may be dropped anywhere.
unsafe impl Send for XDomain {}
// SAFETY: as above.
unsafe impl Sync for XDomain {}

impl Clone for XDomain {
    fn clone(&self) -> Self {
        // SAFETY: valid by the invariant; the new reference is the new value's.
        unsafe { sys::tbrdma_xdomain_get(self.ptr.as_ptr()) };
        Self { ptr: self.ptr }
    }
}

impl Drop for XDomain {
    fn drop(&mut self) {
        // SAFETY: gives back the reference of the invariant.
        unsafe { sys::tbrdma_xdomain_put(self.ptr.as_ptr()) };
    }
}

impl XDomain {
    /// Takes a new reference.
    ///
    /// # Safety
    ///
    /// `ptr` must point at a `tb_xdomain` that is registered on the bus now.
    pub(super) unsafe fn get(ptr: *mut sys::tb_xdomain) -> Option<Self> {
        let ptr = NonNull::new(ptr)?;
        // SAFETY: valid as the caller promises.
        unsafe { sys::tbrdma_xdomain_get(ptr.as_ptr()) };
        // INVARIANT: the reference was just taken.
        Some(Self { ptr })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::tb_xdomain {
        self.ptr.as_ptr()
    }

    fn get_ref(&self) -> &sys::tb_xdomain {
        // SAFETY: valid by the invariant. The fields read through this reference are either set
        // before registration (route, UUIDs) or single words whose momentary value is wanted.
        unsafe { self.ptr.as_ref() }
    }

    /// The route string: which port of this host. Two domains may use the same.
    pub(crate) fn route(&self) -> u64 {
        self.get_ref().route
    }

    /// UUID of our router.
    pub(crate) fn local_uuid(&self) -> [u8; 16] {
        uuid_at(self.get_ref().local_uuid)
    }

    /// UUID of the other host's router.
    pub(crate) fn remote_uuid(&self) -> [u8; 16] {
        uuid_at(self.get_ref().remote_uuid)
    }

    /// Speed of one lane, Gb/s.
    pub(crate) fn lane_gbps(&self) -> u32 {
        // SAFETY: a plain word that the core updates; any momentary value will do.
        unsafe { (&raw const (*self.ptr.as_ptr()).link_speed).read_volatile() }
    }

    /// Lanes, 1 or 2.
    pub(crate) fn lanes(&self) -> u32 {
        // SAFETY: valid by the invariant; the shim reads one word.
        let lanes = unsafe { sys::tbrdma_xdomain_lanes(self.ptr.as_ptr()) };
        lanes.unsigned_abs()
    }

    /// The cable is gone.
    pub(crate) fn is_unplugged(&self) -> bool {
        // SAFETY: as in `lane_gbps`.
        unsafe { (&raw const (*self.ptr.as_ptr()).is_unplugged).read_volatile() }
    }

    /// Tells the other host to read anew what services we have. Sleeps.
    pub(crate) fn announce_again(&self) {
        // SAFETY: valid by the invariant.
        unsafe { sys::tbrdma_announce_again(self.ptr.as_ptr()) };
    }

    /// Reserves a HopID for frames that we send.
    pub(crate) fn alloc_out_hopid(&self) -> Result<OutHopId> {
        // SAFETY: valid by the invariant.
        let id = unsafe { sys::tb_xdomain_alloc_out_hopid(self.ptr.as_ptr(), -1) };
        to_result(id.min(0))?;
        Ok(OutHopId {
            xd: self.clone(),
            id,
        })
    }

    /// Reserves exactly the HopID `id`, on which the other host sends. `EBUSY` if another service
    /// has it.
    pub(crate) fn alloc_in_hopid(&self, id: u32) -> Result<InHopId> {
        let id = c_int::try_from(id).map_err(|_| EINVAL)?;
        // SAFETY: valid by the invariant; the function checks the range of `id`.
        let got = unsafe { sys::tb_xdomain_alloc_in_hopid(self.ptr.as_ptr(), id) };
        to_result(got.min(0))?;
        let hop = InHopId {
            xd: self.clone(),
            id: got,
        };
        // The core hands out the next free one above; that is no use to us, and dropping it
        // gives it back.
        if got != id {
            return Err(EBUSY);
        }
        Ok(hop)
    }

    /// Joins rings to the wire. Sleeps; takes `tb->lock`. `ENODEV` if the cable is gone.
    pub(crate) fn enable_paths(&self, out: &OutHopId, in_: &InHopId, ends: Ends) -> Result<Paths> {
        // When a cable is pulled the core first takes its paths down, and only then, without its lock,
        // unbinds us (since 7.2). Paths that are made in between stay for ever: disabling them does
        // nothing any more, and their rings' numbers cannot be used again.
        // SAFETY: valid by the invariant; its domain is there as long as the XDomain.
        if unsafe { sys::tbrdma_xdomain_has_gone(self.ptr.as_ptr()) } {
            return Err(ENODEV);
        }
        // SAFETY: valid by the invariant; the core checks the numbers, which are those of rings
        // and HopIDs that exist.
        to_result(unsafe {
            sys::tb_xdomain_enable_paths(self.ptr.as_ptr(), out.id, ends.tx, in_.id, ends.rx)
        })?;
        Ok(Paths {
            xd: self.clone(),
            tx_path: out.id,
            rx_path: in_.id,
            ends,
        })
    }

    /// Sends a request and waits up to `timeout_ms` for a response with the same route and
    /// protocol UUID, which is copied to `response`. Sleeps. Both lengths are multiples of 4.
    pub(crate) fn request(&self, request: &[u8], response: &mut [u8], timeout_ms: u32) -> Result {
        check_len(request)?;
        check_len(response)?;
        // SAFETY: valid by the invariant; the buffers live until the call returns, after which
        // the core holds no pointer to them (it waits for the request to be finished or
        // cancelled).
        to_result(unsafe {
            sys::tb_xdomain_request(
                self.ptr.as_ptr(),
                request.as_ptr().cast(),
                request.len(),
                sys::tb_cfg_pkg_type_TB_CFG_PKG_XDOMAIN_REQ,
                response.as_mut_ptr().cast(),
                response.len(),
                sys::tb_cfg_pkg_type_TB_CFG_PKG_XDOMAIN_RESP,
                timeout_ms,
            )
        })
    }

    /// Sends a response; not waited for.
    pub(crate) fn respond(&self, response: &[u8]) -> Result {
        check_len(response)?;
        // SAFETY: valid by the invariant; the core copies the message into its ring before it
        // returns.
        to_result(unsafe {
            sys::tb_xdomain_response(
                self.ptr.as_ptr(),
                response.as_ptr().cast(),
                response.len(),
                sys::tb_cfg_pkg_type_TB_CFG_PKG_XDOMAIN_RESP,
            )
        })
    }
}

fn check_len(message: &[u8]) -> Result {
    if message.len() % 4 != 0 || message.len() > MESSAGE_MAX {
        return Err(EMSGSIZE);
    }
    Ok(())
}

fn uuid_at(ptr: *const sys::uuid_t) -> [u8; 16] {
    if ptr.is_null() {
        return [0; 16];
    }
    // SAFETY: the UUIDs of an XDomain are allocated before it is registered and freed with it.
    unsafe { (*ptr).b }
}

/// A reserved HopID for frames to the other host.
pub(crate) struct OutHopId {
    xd: XDomain,
    id: c_int,
}

impl OutHopId {
    /// The number, which the other host has to know.
    pub(crate) fn id(&self) -> u32 {
        self.id.unsigned_abs()
    }
}

impl Drop for OutHopId {
    fn drop(&mut self) {
        // SAFETY: `id` was reserved on this XDomain and is released once.
        unsafe { sys::tb_xdomain_release_out_hopid(self.xd.as_ptr(), self.id) };
    }
}

/// A reserved HopID for frames from the other host.
pub(crate) struct InHopId {
    xd: XDomain,
    id: c_int,
}

impl Drop for InHopId {
    fn drop(&mut self) {
        // SAFETY: `id` was reserved on this XDomain and is released once.
        unsafe { sys::tb_xdomain_release_in_hopid(self.xd.as_ptr(), self.id) };
    }
}

/// Numbers of the two rings of a rail.
pub(crate) struct Ends {
    tx: c_int,
    rx: c_int,
}

impl Ends {
    pub(crate) fn of(tx: &TxRing, rx: &RxRing) -> Self {
        Self {
            tx: tx.hop(),
            rx: rx.hop(),
        }
    }
}

/// Rings joined to the wire, until dropped. Dropping takes `tb->lock` unless the cable is gone.
pub(crate) struct Paths {
    xd: XDomain,
    tx_path: c_int,
    rx_path: c_int,
    ends: Ends,
}

impl Drop for Paths {
    fn drop(&mut self) {
        // SAFETY: the same numbers as enabled. A failure leaves nothing that we could do; the
        // core tears all paths down when the cable is pulled.
        let _ = unsafe {
            sys::tb_xdomain_disable_paths(
                self.xd.as_ptr(),
                self.tx_path,
                self.ends.tx,
                self.rx_path,
                self.ends.rx,
            )
        };
    }
}
