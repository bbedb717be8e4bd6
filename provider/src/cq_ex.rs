//! Extended completion queues (`ibv_create_cq_ex`): completions are read field by field.
//!
//! Common ground of the SAFETY comments: as in `verbs`. Besides, a program calls the functions that
//! read a completion only between those that start and end polling, in one thread
//! (`ibv_create_cq_ex(3)`); from start to end the queue is locked.

use crate::cq::{flags, service_level, OurCq, Polling};
use crate::public::{Context, CqEx, CqInitAttrEx};
use std::ffi::{c_int, c_void};
use std::ptr;
use tbrdma_uapi::CqEntry;

/// `IBV_WC_STANDARD_FLAGS`: what every queue can tell.
const STANDARD: u64 = 0x7f;
/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`.
const TIMESTAMP: u64 = 1 << 7;
/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`, the only member beyond the first that is understood; its one
/// flag, `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`, allows what we need not make use of.
const MASK_FLAGS: u32 = 1;
const SINGLE_THREADED: u32 = 1;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut Context,
    attr: *mut CqInitAttrEx,
) -> *mut c_void {
    // SAFETY: see the module's common ground.
    let attr = unsafe { &*attr };
    let flags = if attr.comp_mask & MASK_FLAGS != 0 {
        attr.flags
    } else {
        0
    };
    let known = attr.wc_flags & !(STANDARD | TIMESTAMP) == 0
        && attr.comp_mask & !MASK_FLAGS == 0
        && flags & !SINGLE_THREADED == 0;
    let (Ok(entries), true) = (c_int::try_from(attr.cqe), known) else {
        crate::driver::set_errno(libc::EOPNOTSUPP);
        return ptr::null_mut();
    };
    // SAFETY: as for the simple form, whose arguments these are.
    let cq =
        unsafe { crate::cq::create_cq(context, entries, attr.channel, attr.comp_vector as c_int) };
    if !cq.is_null() {
        // SAFETY: a queue of ours, in which libibverbs' extended structure has its place.
        unsafe { fill(&mut *cq.cast::<CqEx>()) };
    }
    cq
}

fn fill(cq: &mut CqEx) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_nothing);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_nothing);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_no_byte);
    cq.read_completion_ts = Some(read_completion_ts);
}

/// Shows the program what it reads directly.
///
/// # Safety
///
/// `cq` is a queue of ours that is being polled.
unsafe fn show(cq: *mut CqEx, entry: &CqEntry) {
    // SAFETY: as required.
    unsafe {
        (*cq).status = entry.status;
        (*cq).wr_id = entry.wr_id;
    }
}

/// 0: there is a completion; ENOENT: there is none, and polling has not started.
unsafe extern "C" fn start_poll(cq: *mut CqEx, _attr: *mut c_void) -> c_int {
    // SAFETY: see the module's common ground.
    let ours = unsafe { OurCq::of(cq.cast()) };
    let mut state = ours.lock();
    let Some(entry) = state.take() else {
        // SAFETY: as above.
        return match unsafe { OurCq::look(cq.cast(), state) } {
            0 => libc::ENOENT,
            _ => libc::EIO,
        };
    };
    // SAFETY: as above; nobody else polls while the lock is held.
    unsafe {
        show(cq, &entry);
        ours.set_polling(Some(Polling {
            completions: state,
            entry,
        }));
    }
    0
}

unsafe extern "C" fn next_poll(cq: *mut CqEx) -> c_int {
    // SAFETY: see the module's common ground.
    let Some(polling) = (unsafe { polling(cq) }) else {
        return libc::EINVAL;
    };
    let Some(entry) = polling.completions.take() else {
        return libc::ENOENT;
    };
    polling.entry = entry;
    // SAFETY: as above.
    unsafe { show(cq, &entry) };
    0
}

unsafe extern "C" fn end_poll(cq: *mut CqEx) {
    // SAFETY: see the module's common ground.
    unsafe {
        if let Some(polling) = polling(cq) {
            polling.completions.give_back();
        }
        OurCq::of(cq.cast()).set_polling(None);
    }
}

/// # Safety
///
/// See the module's common ground.
unsafe fn polling<'a>(cq: *mut CqEx) -> Option<&'a mut Polling<'static>> {
    // SAFETY: as required.
    unsafe { OurCq::of(cq.cast()).polling() }
}

/// # Safety
///
/// See the module's common ground.
unsafe fn entry(cq: *mut CqEx) -> CqEntry {
    // SAFETY: as required.
    unsafe { polling(cq) }.map_or_else(CqEntry::default, |polling| polling.entry)
}

unsafe extern "C" fn read_opcode(cq: *mut CqEx) -> u32 {
    // SAFETY: see the module's common ground, here and below.
    unsafe { entry(cq) }.opcode
}

unsafe extern "C" fn read_byte_len(cq: *mut CqEx) -> u32 {
    // SAFETY: as above.
    unsafe { entry(cq) }.byte_len
}

/// Also the key that was invalidated.
unsafe extern "C" fn read_imm_data(cq: *mut CqEx) -> u32 {
    // SAFETY: as above.
    unsafe { entry(cq) }.imm
}

unsafe extern "C" fn read_qp_num(cq: *mut CqEx) -> u32 {
    // SAFETY: as above.
    unsafe { entry(cq) }.qpn
}

unsafe extern "C" fn read_src_qp(cq: *mut CqEx) -> u32 {
    // SAFETY: as above.
    unsafe { entry(cq) }.src_qp
}

unsafe extern "C" fn read_wc_flags(cq: *mut CqEx) -> u32 {
    // SAFETY: as above.
    flags(&unsafe { entry(cq) })
}

unsafe extern "C" fn read_sl(cq: *mut CqEx) -> u8 {
    // SAFETY: as above.
    service_level(&unsafe { entry(cq) })
}

unsafe extern "C" fn read_completion_ts(cq: *mut CqEx) -> u64 {
    // SAFETY: as above.
    unsafe { entry(cq) }.timestamp
}

unsafe extern "C" fn read_nothing(_cq: *mut CqEx) -> u32 {
    0
}

unsafe extern "C" fn read_no_byte(_cq: *mut CqEx) -> u8 {
    0
}
