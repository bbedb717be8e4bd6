// SPDX-License-Identifier: GPL-2.0-only
//! The `ib_device`.

use super::ops;
use crate::sys;
use crate::verbs::Hca;
use core::mem::size_of;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::Arc;

/// Driver id that binds the device to our provider (`uapi`); not in `enum rdma_driver_id`.
const DRIVER_ID: u32 = crate::uapi::DRIVER_ID;

/// What the core allocates for the device.
#[repr(C)]
pub(super) struct Device {
    pub(super) ib: sys::ib_device,
    /// From [`Arc::into_raw`]; set before registration, given back after unregistration.
    pub(super) hca: *const Hca,
}

/// An allocated `ib_device`.
///
/// # Invariants
///
/// The pointer is valid until this value is dropped.
pub(crate) struct IbDevice(NonNull<sys::ib_device>);

// SAFETY: the core's functions on a device may be called from any thread.
unsafe impl Send for IbDevice {}
// SAFETY: as above.
unsafe impl Sync for IbDevice {}

impl IbDevice {
    /// Allocates a device. Nothing is registered yet.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: the size covers the `ib_device`, which is the first field.
        let raw = unsafe { sys::tbrdma_alloc_ib_device(size_of::<Device>()) };
        // INVARIANT: a non-null return is a new device, freed in `drop`.
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ib_device {
        self.0.as_ptr()
    }

    /// Tells the core that the port went up or down.
    pub(crate) fn port_event(&self, active: bool) {
        // SAFETY: valid by the invariant; events may be sent at any time after allocation.
        unsafe { sys::tbrdma_port_event(self.as_ptr(), active) }
    }
}

impl Drop for IbDevice {
    fn drop(&mut self) {
        // SAFETY: ours, and not registered: `Registration` holds a reference while it is.
        unsafe { sys::ib_dealloc_device(self.as_ptr()) }
    }
}

/// A registered device; dropping it unregisters, which ends all user contexts.
pub(crate) struct Registration {
    device: Arc<IbDevice>,
    /// From [`Arc::into_raw`]; `None` once given back.
    hca: Option<NonNull<Hca>>,
}

// SAFETY: unregistering may be done by any thread; `hca` is a counted reference.
unsafe impl Send for Registration {}
// SAFETY: no access through `&self`.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `device` as `tbrdma0` with `hca` behind it and `netdev` at its port.
    ///
    /// `node_guid` and the port's GIDs must be the same after every boot.
    pub(crate) fn new(
        module: &'static ThisModule,
        device: Arc<IbDevice>,
        hca: Arc<Hca>,
        node_guid: [u8; 8],
        netdev: Option<NonNull<sys::net_device>>,
    ) -> Result<Self> {
        let hca = Arc::into_raw(hca);
        let raw = device.as_ptr();
        // SAFETY: the device is ours and not registered; `Device` is what was allocated.
        unsafe {
            (*raw.cast::<Device>()).hca = hca;
            (*raw).node_type = sys::RDMA_NODE_IB_CA as u8;
            (*raw).phys_port_cnt = 1;
            (*raw).num_comp_vectors = 1;
            (*raw).node_guid = u64::from_ne_bytes(node_guid);
            (*raw).uverbs_cmd_mask |= [
                sys::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND,
                sys::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_RECV,
                sys::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POLL_CQ,
                sys::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_REQ_NOTIFY_CQ,
            ]
            .iter()
            .fold(0, |mask, command| mask | 1u64 << command);
        }
        let registration = Self {
            device,
            hca: NonNull::new(hca.cast_mut()),
        };
        let table = ops::table(module.as_ptr(), DRIVER_ID);
        // SAFETY: the device is valid; the table is copied.
        unsafe { sys::ib_set_device_ops(raw, &table) };
        if let Some(netdev) = netdev {
            // SAFETY: the netdev is registered and outlives the registration (`Links` says so);
            // the core takes its own reference.
            let set = to_result(unsafe { sys::ib_device_set_netdev(raw, netdev.as_ptr(), 1) });
            if let Err(error) = set {
                registration.forget_hca();
                return Err(error);
            }
        }
        // SAFETY: valid device; before registration, as it must be. Without a DMA device the core
        // leaves memory unmapped: we copy.
        let registered = to_result(unsafe {
            sys::tbrdma_keep_name(raw);
            sys::ib_register_device(raw, c"tbrdma%d".as_char_ptr(), core::ptr::null_mut())
        });
        match registered {
            Ok(()) => Ok(registration),
            Err(error) => {
                registration.forget_hca();
                Err(error)
            }
        }
    }

    /// Gives the reference to the HCA back without unregistering.
    fn forget_hca(mut self) {
        if let Some(hca) = self.hca.take() {
            // SAFETY: the reference of `into_raw`, not used by the core, which has no device.
            drop(unsafe { Arc::from_raw(hca.as_ptr().cast_const()) });
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(hca) = self.hca.take() else { return };
        // SAFETY: registered; the core ends all users and calls no operation afterwards.
        unsafe { sys::ib_unregister_device(self.device.as_ptr()) };
        // SAFETY: the reference of `into_raw`; no operation runs any more.
        drop(unsafe { Arc::from_raw(hca.as_ptr().cast_const()) });
    }
}
