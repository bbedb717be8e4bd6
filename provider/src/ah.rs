//! Address handles. The kernel keeps them; requests name them by a number.
//!
//! Common ground of the SAFETY comments: as in `verbs`.

use crate::abi::{sizes, Buffer, AH_SIZE};
use crate::verbs::{destroy, functions, object};
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use tbrdma_uapi::CreateAhResp;

type Ptr = *mut c_void;

/// An address handle: libibverbs' part first.
#[repr(C)]
pub(crate) struct OurAh {
    verbs: [u64; AH_SIZE / 8],
    number: u32,
}

pub(crate) unsafe extern "C" fn create_ah(pd: Ptr, attr: Ptr) -> Ptr {
    const RESPONSE: usize = sizes::CREATE_AH_RESP + size_of::<CreateAhResp>();
    let mut response = Buffer::<RESPONSE>::new();
    object(size_of::<OurAh>(), |ah| {
        // SAFETY: see the module's common ground; a buffer of the size told.
        let failed =
            unsafe { (functions().create_ah)(pd, ah, attr, response.as_mut_ptr(), RESPONSE) };
        if failed == 0 {
            let told: CreateAhResp = response.get(sizes::CREATE_AH_RESP);
            // SAFETY: room for it.
            unsafe { (*ah.cast::<OurAh>()).number = told.number };
        }
        failed
    })
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: Ptr) -> c_int {
    // SAFETY: see the module's common ground.
    unsafe { destroy(ah, functions().destroy_ah, |_| ()) }
}

/// The number by which requests name the handle.
///
/// # Safety
///
/// `ah` is a handle of ours.
pub(crate) unsafe fn number(ah: *const OurAh) -> u32 {
    // SAFETY: as required.
    unsafe { (*ah).number }
}
