// SPDX-License-Identifier: GPL-2.0-only
//! The service driver: told about each cable whose other end announces `tbrdma`.

use super::xdomain::XDomain;
use crate::sys;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicPtr, Ordering};
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::Arc;

/// What becomes of a cable. All calls may sleep and come with the service's device lock held;
/// the core may wait for them while a cable is pulled or the controller goes away.
pub(crate) trait Driver: Send + Sync + 'static {
    /// What is kept per cable.
    type Link: Send + Sync + 'static;

    /// The other end of a cable speaks our protocol.
    fn probe(self: &Arc<Self>, xd: XDomain) -> Result<Arc<Self::Link>>;
    /// The cable, the other end's service or our driver goes away. Rings and paths have to be
    /// gone on return.
    fn remove(self: &Arc<Self>, link: Arc<Self::Link>);
    /// The machine goes to sleep or shuts down; rings have to be stopped on return.
    fn suspend(&self, link: &Arc<Self::Link>);
    /// The machine is awake again.
    fn resume(&self, link: &Arc<Self::Link>);
}

/// The registered driver object: there is one service driver in the module.
static DRIVER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// A registered driver. Dropping it removes all cables, then the driver.
pub(crate) struct Registration<D: Driver> {
    driver: ManuallyDrop<Arc<D>>,
}

impl<D: Driver> Registration<D> {
    /// Registers the driver; `probe` is called for the cables that are there before this returns.
    pub(crate) fn new(driver: Arc<D>) -> Result<Self> {
        let raw = Arc::as_ptr(&driver).cast_mut().cast::<()>();
        let null = core::ptr::null_mut();
        if DRIVER
            .compare_exchange(null, raw, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            return Err(EBUSY);
        }
        let ops = sys::tbrdma_service_ops {
            probe: Some(probe::<D>),
            remove: Some(remove::<D>),
            suspend: Some(suspend::<D>),
            resume: Some(resume::<D>),
        };
        // SAFETY: the shim copies `ops`; `DRIVER` is a `D` until unregistered.
        if let Err(e) = to_result(unsafe { sys::tbrdma_service_register(&ops) }) {
            DRIVER.store(null, Ordering::Release);
            return Err(e);
        }
        Ok(Self {
            driver: ManuallyDrop::new(driver),
        })
    }
}

impl<D: Driver> Drop for Registration<D> {
    fn drop(&mut self) {
        // SAFETY: registered in `new`. Returns after `remove` was called for every cable.
        unsafe { sys::tbrdma_service_unregister() };
        DRIVER.store(core::ptr::null_mut(), Ordering::Release);
        // SAFETY: dropped once; no callback runs any more.
        unsafe { ManuallyDrop::drop(&mut self.driver) };
    }
}

/// # Safety
///
/// Only from the driver's callbacks, registered with this `D`.
unsafe fn driver<D: Driver>() -> ManuallyDrop<Arc<D>> {
    // SAFETY: callbacks come only while registered, and then `DRIVER` is the pointer of an
    // `Arc<D>` that the registration holds; we only look at it (`ManuallyDrop`).
    ManuallyDrop::new(unsafe { Arc::from_raw(DRIVER.load(Ordering::Acquire).cast::<D>()) })
}

/// # Safety
///
/// `svc` must be bound to our driver, which was registered with this `D`. The result must not be
/// dropped except by `remove`.
unsafe fn link_of<D: Driver>(svc: *mut sys::tb_service) -> Option<ManuallyDrop<Arc<D::Link>>> {
    // SAFETY: valid as the caller promises.
    let data = unsafe { sys::tbrdma_service_data(svc) };
    if data.is_null() {
        return None;
    }
    // SAFETY: `probe` stored an `Arc<D::Link>`'s pointer, whose count `remove` takes back.
    Some(ManuallyDrop::new(unsafe { Arc::from_raw(data.cast()) }))
}

unsafe extern "C" fn probe<D: Driver>(svc: *mut sys::tb_service) -> c_int {
    // SAFETY: the core passes a registered service, whose parent is a registered XDomain.
    let xd = unsafe { XDomain::get(sys::tbrdma_service_xdomain(svc)) };
    let Some(xd) = xd else {
        return ENODEV.to_errno();
    };
    // SAFETY: called by the core.
    match unsafe { driver::<D>() }.probe(xd) {
        Ok(link) => {
            let data = Arc::into_raw(link).cast_mut().cast();
            // SAFETY: the service is valid and its driver data is ours.
            unsafe { sys::tbrdma_service_set_data(svc, data) };
            0
        }
        Err(e) => e.to_errno(),
    }
}

unsafe extern "C" fn remove<D: Driver>(svc: *mut sys::tb_service) {
    // SAFETY: bound to our driver.
    let link = unsafe { link_of::<D>(svc) };
    // SAFETY: as above.
    unsafe { sys::tbrdma_service_set_data(svc, core::ptr::null_mut()) };
    if let Some(link) = link {
        // SAFETY: called by the core.
        unsafe { driver::<D>() }.remove(ManuallyDrop::into_inner(link));
    }
}

unsafe extern "C" fn suspend<D: Driver>(svc: *mut sys::tb_service) {
    // SAFETY: bound to our driver.
    if let Some(link) = unsafe { link_of::<D>(svc) } {
        // SAFETY: called by the core.
        unsafe { driver::<D>() }.suspend(&link);
    }
}

unsafe extern "C" fn resume<D: Driver>(svc: *mut sys::tb_service) {
    // SAFETY: bound to our driver.
    if let Some(link) = unsafe { link_of::<D>(svc) } {
        // SAFETY: called by the core.
        unsafe { driver::<D>() }.resume(&link);
    }
}
