//! Extended queue pairs (`ibv_create_qp_ex`): sends are put together by one call for each part,
//! and posted together.
//!
//! Common ground of the SAFETY comments: as in `verbs`. Besides, a program calls the functions that
//! put requests together only between the one that starts and the one that completes or aborts,
//! in one thread (`ibv_wr_post(3)`); from start to end the send queue is locked.

use crate::abi::{QP_MASK_44, QP_MASK_45, QP_MASK_EXTENDED};
use crate::ah::{number, OurAh};
use crate::driver::set_errno;
use crate::public::{
    qp_init, send_ops, state, wr, Context, DataBuf, QpEx, QpInitAttrEx, WrFunctions, QPT_RC,
    QPT_UC, QPT_UD,
};
use crate::qp::{call_kernel, create_qp, OurQp};
use crate::requests::{kept_flags, Requests};
use crate::verbs::library;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::MutexGuard;
use tbrdma_uapi::{SendEntry, Sge};

type Ptr = *mut c_void;

/// A program puts requests together, with the send queue locked.
pub(crate) struct Posting<'a> {
    requests: MutexGuard<'a, Requests>,
    /// The next place when it began.
    start: u32,
    /// The newest request.
    entry: Option<SendEntry>,
    /// The newest request still needs the address of its receiver.
    unaddressed: bool,
    /// The first error, an errno; 0: none so far. Nothing more is put in after one.
    failed: c_int,
}

impl Posting<'_> {
    fn new(requests: MutexGuard<'_, Requests>, failed: c_int) -> Posting<'_> {
        Posting {
            start: requests.next(),
            requests,
            entry: None,
            unaddressed: false,
            failed,
        }
    }

    fn fail(&mut self, error: c_int) {
        if self.failed == 0 {
            self.failed = error;
        }
    }

    /// The newest request is complete.
    fn seal(&mut self) {
        if std::mem::take(&mut self.unaddressed) {
            self.fail(libc::EINVAL);
        }
    }

    fn open(&mut self, entry: SendEntry) {
        self.seal();
        self.entry = None;
        if self.failed != 0 {
            return;
        }
        match self.requests.open(&entry) {
            Ok(()) => {
                self.unaddressed = self.requests.datagrams();
                self.entry = Some(entry);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Changes the newest request.
    fn change(&mut self, change: impl FnOnce(&mut Requests, &mut SendEntry) -> Result<(), c_int>) {
        if self.failed != 0 {
            return;
        }
        let changed = match &mut self.entry {
            Some(entry) => change(&mut self.requests, entry),
            None => Err(libc::EINVAL),
        };
        if let Err(error) = changed {
            self.fail(error);
        }
    }

    /// Shows the kernel everything, or nothing if something failed. `true`: the kernel has to be
    /// called.
    fn end(&mut self) -> Result<bool, c_int> {
        self.seal();
        if self.failed != 0 {
            self.requests.rewind(self.start);
            return Err(self.failed);
        }
        Ok(self.requests.publish())
    }
}

/// The operations that QPs of this type have.
fn operations(qp_type: u32) -> u64 {
    let datagram = send_ops::SEND | send_ops::SEND_WITH_IMM;
    let unreliable = datagram | send_ops::RDMA_WRITE | send_ops::RDMA_WRITE_WITH_IMM;
    match qp_type {
        QPT_RC => {
            unreliable
                | send_ops::RDMA_READ
                | send_ops::ATOMIC_CMP_AND_SWP
                | send_ops::ATOMIC_FETCH_AND_ADD
                | send_ops::SEND_WITH_INV
        }
        QPT_UC => unreliable,
        QPT_UD => datagram,
        _ => 0,
    }
}

/// Whether all of what is asked for is there. EOPNOTSUPP: not; EINVAL: no protection domain.
fn check(attr: &QpInitAttrEx, mask_at: Option<usize>) -> Result<(), c_int> {
    let mask = attr.basic.comp_mask;
    let known = qp_init::PD | qp_init::CREATE_FLAGS | qp_init::SEND_OPS_FLAGS;
    if mask & !known != 0 || mask & qp_init::CREATE_FLAGS != 0 && attr.create_flags != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if mask & qp_init::SEND_OPS_FLAGS != 0 {
        let missing = attr.send_ops_flags & !operations(attr.basic.qp_type);
        if missing != 0 || mask_at.is_none() {
            return Err(libc::EOPNOTSUPP);
        }
    }
    if mask & qp_init::PD == 0 || attr.pd.is_null() {
        return Err(libc::EINVAL);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut Context,
    attr: *mut QpInitAttrEx,
) -> Ptr {
    let mask_at = library().qp_mask_at;
    // SAFETY: see the module's common ground.
    let attr = unsafe { &mut *attr };
    if let Err(error) = check(attr, mask_at) {
        set_errno(error);
        return ptr::null_mut();
    }
    // SAFETY: as for the simple form, whose attributes the extended ones begin with.
    let qp = unsafe { create_qp(attr.pd, &mut attr.basic) };
    if let (false, true, Some(mask_at)) = (
        qp.is_null(),
        attr.basic.comp_mask & qp_init::SEND_OPS_FLAGS != 0,
        mask_at,
    ) {
        // SAFETY: a QP of ours, in which libibverbs' extended structure has its place.
        unsafe { fill(qp.cast(), mask_at) };
    }
    qp
}

/// Makes a QP an extended one.
///
/// # Safety
///
/// `qp` is a QP of ours, and `mask_at` where libibverbs has its mask in there.
unsafe fn fill(qp: *mut QpEx, mask_at: usize) {
    // SAFETY: as required; what is behind the functions is written only if it is not the mask yet.
    unsafe {
        (&raw mut (*qp).wr).write(FUNCTIONS);
        if mask_at >= QP_MASK_44 {
            (*qp).atomic_write = no_remote as *const () as usize;
        }
        if mask_at >= QP_MASK_45 {
            (*qp).flush = no_remote as *const () as usize;
        }
        qp.cast::<u8>()
            .add(mask_at)
            .cast::<u32>()
            .write(QP_MASK_EXTENDED);
    }
}

const FUNCTIONS: WrFunctions = WrFunctions {
    atomic_cmp_swp,
    atomic_fetch_add,
    bind_mw: no_bind_mw,
    local_inv: no_word,
    rdma_read,
    rdma_write,
    rdma_write_imm,
    send,
    send_imm,
    send_inv,
    send_tso: no_send_tso,
    set_ud_addr,
    set_xrc_srqn: no_word,
    set_inline_data,
    set_inline_data_list,
    set_sge,
    set_sge_list,
    start,
    complete,
    abort,
};

/// The posting under way, if one is.
///
/// # Safety
///
/// See the module's common ground.
unsafe fn posting<'a>(qp: *mut QpEx) -> Option<&'a mut Posting<'static>> {
    // SAFETY: as required.
    unsafe { OurQp::of(qp.cast()).posting() }
}

unsafe extern "C" fn start(qp: *mut QpEx) {
    // SAFETY: see the module's common ground.
    unsafe {
        let ours = OurQp::of(qp.cast());
        let sends = ours.sends();
        let failed = if (*qp).qp.state < state::RTS {
            libc::EINVAL
        } else {
            0
        };
        ours.set_posting(Some(Posting::new(sends, failed)));
    }
}

unsafe extern "C" fn complete(qp: *mut QpEx) -> c_int {
    // SAFETY: see the module's common ground.
    let Some(mut posting) = (unsafe { OurQp::of(qp.cast()).set_posting(None) }) else {
        return libc::EINVAL;
    };
    let ended = posting.end();
    drop(posting);
    match ended {
        // SAFETY: as above.
        Ok(true) => unsafe { call_kernel(qp.cast()) },
        Ok(false) => 0,
        Err(error) => error,
    }
}

unsafe extern "C" fn abort(qp: *mut QpEx) {
    // SAFETY: see the module's common ground.
    if let Some(mut posting) = unsafe { OurQp::of(qp.cast()).set_posting(None) } {
        let start = posting.start;
        posting.requests.rewind(start);
    }
}

/// Begins a request, which `fill` completes but for its data.
///
/// # Safety
///
/// See the module's common ground.
unsafe fn open(qp: *mut QpEx, opcode: u32, needs: u64, fill: impl FnOnce(&mut SendEntry)) {
    // SAFETY: as required.
    let (qp_type, wr_id, flags, posting) =
        unsafe { ((*qp).qp.qp_type, (*qp).wr_id, (*qp).wr_flags, posting(qp)) };
    let Some(posting) = posting else {
        return;
    };
    if operations(qp_type) & needs == 0 {
        posting.fail(libc::EOPNOTSUPP);
    }
    let mut entry = SendEntry {
        wr_id,
        opcode: opcode as u16,
        flags: kept_flags(flags),
        ..SendEntry::default()
    };
    fill(&mut entry);
    posting.open(entry);
}

unsafe extern "C" fn send(qp: *mut QpEx) {
    // SAFETY: see the module's common ground, here and below.
    unsafe { open(qp, wr::SEND, send_ops::SEND, |_| ()) }
}

unsafe extern "C" fn send_imm(qp: *mut QpEx, imm: u32) {
    let needs = send_ops::SEND_WITH_IMM;
    // SAFETY: as above.
    unsafe { open(qp, wr::SEND_WITH_IMM, needs, |entry| entry.imm = imm) }
}

unsafe extern "C" fn send_inv(qp: *mut QpEx, rkey: u32) {
    let needs = send_ops::SEND_WITH_INV;
    // SAFETY: as above.
    unsafe { open(qp, wr::SEND_WITH_INV, needs, |entry| entry.imm = rkey) }
}

unsafe extern "C" fn rdma_read(qp: *mut QpEx, rkey: u32, addr: u64) {
    let remote = |entry: &mut SendEntry| (entry.rkey, entry.raddr) = (rkey, addr);
    // SAFETY: as above.
    unsafe { open(qp, wr::RDMA_READ, send_ops::RDMA_READ, remote) }
}

unsafe extern "C" fn rdma_write(qp: *mut QpEx, rkey: u32, addr: u64) {
    let remote = |entry: &mut SendEntry| (entry.rkey, entry.raddr) = (rkey, addr);
    // SAFETY: as above.
    unsafe { open(qp, wr::RDMA_WRITE, send_ops::RDMA_WRITE, remote) }
}

unsafe extern "C" fn rdma_write_imm(qp: *mut QpEx, rkey: u32, addr: u64, imm: u32) {
    let needs = send_ops::RDMA_WRITE_WITH_IMM;
    let remote = |entry: &mut SendEntry| {
        (entry.rkey, entry.raddr, entry.imm) = (rkey, addr, imm);
    };
    // SAFETY: as above.
    unsafe { open(qp, wr::RDMA_WRITE_WITH_IMM, needs, remote) }
}

unsafe extern "C" fn atomic_cmp_swp(qp: *mut QpEx, rkey: u32, addr: u64, compare: u64, swap: u64) {
    let needs = send_ops::ATOMIC_CMP_AND_SWP;
    let remote = |entry: &mut SendEntry| {
        (entry.rkey, entry.raddr) = (rkey, addr);
        (entry.compare_add, entry.swap) = (compare, swap);
    };
    // SAFETY: as above.
    unsafe { open(qp, wr::ATOMIC_CMP_AND_SWP, needs, remote) }
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut QpEx, rkey: u32, addr: u64, add: u64) {
    let needs = send_ops::ATOMIC_FETCH_AND_ADD;
    let remote = |entry: &mut SendEntry| {
        (entry.rkey, entry.raddr, entry.compare_add) = (rkey, addr, add);
    };
    // SAFETY: as above.
    unsafe { open(qp, wr::ATOMIC_FETCH_AND_ADD, needs, remote) }
}

/// Changes the newest request.
///
/// # Safety
///
/// See the module's common ground.
unsafe fn change(
    qp: *mut QpEx,
    change: impl FnOnce(&mut Requests, &mut SendEntry) -> Result<(), c_int>,
) {
    // SAFETY: as required.
    if let Some(posting) = unsafe { posting(qp) } {
        posting.change(change);
    }
}

unsafe extern "C" fn set_ud_addr(qp: *mut QpEx, ah: Ptr, qpn: u32, qkey: u32) {
    // SAFETY: as above.
    let Some(posting) = (unsafe { posting(qp) }) else {
        return;
    };
    if ah.is_null() || !posting.requests.datagrams() {
        return posting.fail(libc::EINVAL);
    }
    // SAFETY: the program gives a handle of this device.
    let ah = unsafe { number(ah.cast::<OurAh>()) };
    posting.unaddressed = false;
    posting.change(|requests, entry| {
        (entry.ah, entry.dqpn, entry.qkey) = (ah, qpn, qkey);
        requests.rewrite(entry);
        Ok(())
    });
}

unsafe extern "C" fn set_sge(qp: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    let list = [Sge { addr, length, lkey }];
    // SAFETY: as above.
    unsafe { change(qp, |requests, entry| requests.set_elements(entry, &list)) }
}

unsafe extern "C" fn set_sge_list(qp: *mut QpEx, count: usize, list: *const Sge) {
    let list = if count == 0 {
        &[]
    } else {
        // SAFETY: the program gives that many.
        unsafe { std::slice::from_raw_parts(list, count) }
    };
    // SAFETY: as above.
    unsafe { change(qp, |requests, entry| requests.set_elements(entry, list)) }
}

/// Gives the newest request inline data, which READs and atomics cannot have.
///
/// # Safety
///
/// See the module's common ground; the bytes are there.
unsafe fn set_inline(qp: *mut QpEx, pieces: impl Iterator<Item = (*const u8, usize)> + Clone) {
    let set = |requests: &mut Requests, entry: &mut SendEntry| {
        let answered = [
            wr::RDMA_READ,
            wr::ATOMIC_CMP_AND_SWP,
            wr::ATOMIC_FETCH_AND_ADD,
        ];
        if answered.contains(&u32::from(entry.opcode)) {
            return Err(libc::EINVAL);
        }
        // SAFETY: as required.
        unsafe { requests.set_inline(entry, pieces) }
    };
    // SAFETY: as required.
    unsafe { change(qp, set) }
}

unsafe extern "C" fn set_inline_data(qp: *mut QpEx, addr: Ptr, length: usize) {
    let piece = (addr.cast_const().cast(), length);
    // SAFETY: as above; the program gives that many bytes.
    unsafe { set_inline(qp, std::iter::once(piece)) }
}

unsafe extern "C" fn set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    let list = if count == 0 {
        &[]
    } else {
        // SAFETY: the program gives that many.
        unsafe { std::slice::from_raw_parts(list, count) }
    };
    let pieces = list.iter().map(|buf| (buf.addr, buf.length));
    // SAFETY: as above; the program gives the bytes.
    unsafe { set_inline(qp, pieces) }
}

/// What the device does not have fails when the requests are completed.
///
/// # Safety
///
/// See the module's common ground.
unsafe fn refuse(qp: *mut QpEx) {
    // SAFETY: as required.
    if let Some(posting) = unsafe { posting(qp) } {
        posting.fail(libc::EOPNOTSUPP);
    }
}

unsafe extern "C" fn no_word(qp: *mut QpEx, _word: u32) {
    // SAFETY: see the module's common ground, here and below.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn no_bind_mw(qp: *mut QpEx, _mw: Ptr, _rkey: u32, _info: *const c_void) {
    // SAFETY: as above.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn no_send_tso(qp: *mut QpEx, _header: Ptr, _len: u16, _mss: u16) {
    // SAFETY: as above.
    unsafe { refuse(qp) }
}

/// Atomic write, which has a pointer after these, and flush, which has a length and two bytes.
unsafe extern "C" fn no_remote(qp: *mut QpEx, _rkey: u32, _addr: u64, _a: usize, _b: u8, _c: u8) {
    // SAFETY: as above.
    unsafe { refuse(qp) }
}

#[cfg(test)]
#[path = "qp_ex_tests.rs"]
mod tests;
