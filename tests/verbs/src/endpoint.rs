//! A connected QP with its memory, safe to use.

use crate::ffi::{self, Channel, Context, Cq, Library, Mr, Qp, QpAttr, RecvWr, SendWr, Sge, Wc};
use anyhow::{bail, ensure, Context as _, Result};
use std::ffi::{c_int, CStr, CString};
use std::ptr;
use std::time::Duration;

/// Registered memory.
pub struct Memory {
    bytes: Vec<u8>,
    mr: *mut Mr,
}

impl Memory {
    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// Key for the other end.
    pub fn rkey(&self) -> u32 {
        // SAFETY: registered as long as the endpoint lives, which owns this.
        unsafe { (*self.mr).rkey }
    }

    fn lkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr).lkey }
    }

    /// A part of the memory. What the device writes meanwhile is not synchronised: look at a part
    /// only after its completion.
    pub fn part(&self, at: usize, len: usize) -> &[u8] {
        &self.bytes[at..at + len]
    }

    /// A part of the memory, to be changed.
    pub fn part_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        &mut self.bytes[at..at + len]
    }

    /// The first eight bytes as a number that the other end may write at any time.
    pub fn counter(&self) -> u64 {
        // SAFETY: at least eight bytes, aligned by the allocator; volatile, since a device writes.
        unsafe { self.bytes.as_ptr().cast::<u64>().read_volatile() }
    }
}

/// What to send.
pub struct Send {
    pub id: u64,
    pub opcode: u32,
    /// Part of the memory: which one, offset, length.
    pub from: (usize, usize, usize),
    pub imm: u32,
    pub remote: (u64, u32),
    /// What FETCH_ADD adds.
    pub add: u64,
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub id: u64,
    pub receive: bool,
    pub len: u32,
    pub imm: Option<u32>,
}

/// Why no completion came.
#[derive(Debug)]
pub enum Failure {
    /// A completion says so.
    Completion(String),
    /// The device itself fails.
    Device(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Completion(what) => write!(f, "a completion failed: {what}"),
            Self::Device(what) => write!(f, "the device failed: {what}"),
        }
    }
}

impl std::error::Error for Failure {}

/// A QP, its queues and its memory.
pub struct Endpoint {
    library: Library,
    context: *mut Context,
    pd: ffi::Ptr,
    channel: *mut Channel,
    cq: *mut Cq,
    qp: *mut Qp,
    gid: [u8; 16],
    gid_index: u8,
    /// The memories, by number.
    pub memories: Vec<Memory>,
    unacknowledged: u32,
}

fn errno() -> std::io::Error {
    std::io::Error::last_os_error()
}

impl Endpoint {
    /// Opens a device and makes a QP for `depth` requests in each direction.
    pub fn new(device: &str, gid_index: u8, depth: usize, sizes: &[usize]) -> Result<Self> {
        let library =
            Library::open().context("libibverbs cannot be loaded (package libibverbs1)")?;
        let context = open(&library, device)?;
        let mut this = Self {
            library,
            context,
            pd: ptr::null_mut(),
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            gid: [0; 16],
            gid_index,
            memories: Vec::new(),
            unacknowledged: 0,
        };
        this.build(depth, sizes)?;
        Ok(this)
    }

    fn build(&mut self, depth: usize, sizes: &[usize]) -> Result<()> {
        let library = &self.library;
        // SAFETY: an open context; arguments as the header asks.
        unsafe {
            let index = c_int::from(self.gid_index);
            ensure!(
                (library.query_gid)(self.context, 1, index, &mut self.gid) == 0,
                "there is no GID {index}: {}",
                errno()
            );
            self.pd = (library.alloc_pd)(self.context);
            ensure!(!self.pd.is_null(), "alloc_pd: {}", errno());
            self.channel = (library.create_channel)(self.context);
            ensure!(!self.channel.is_null(), "create_comp_channel: {}", errno());
            let entries = c_int::try_from(4 * depth + 16)?;
            self.cq = (library.create_cq)(self.context, entries, ptr::null_mut(), self.channel, 0);
            ensure!(!self.cq.is_null(), "create_cq: {}", errno());
            let requests = u32::try_from(2 * depth + 4)?;
            let mut init = ffi::QpInitAttr {
                qp_context: ptr::null_mut(),
                send_cq: self.cq,
                recv_cq: self.cq,
                srq: ptr::null_mut(),
                max_send_wr: requests,
                max_recv_wr: requests,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
                qp_type: ffi::QPT_RC,
                sq_sig_all: 0,
                comp_mask: 0,
                pd: ptr::null_mut(),
                unused: [0; 7],
                send_ops_flags: 0,
            };
            self.qp = (library.create_qp)(self.pd, &mut init);
            ensure!(!self.qp.is_null(), "create_qp: {}", errno());
            for size in sizes {
                let mut bytes = vec![0u8; (*size).max(8)];
                let mr = (library.reg_mr)(
                    self.pd,
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                    ffi::ACCESS_ALL,
                );
                ensure!(
                    !mr.is_null(),
                    "reg_mr of {} bytes: {} (is RLIMIT_MEMLOCK large enough?)",
                    bytes.len(),
                    errno()
                );
                self.memories.push(Memory { bytes, mr });
            }
        }
        let attr = QpAttr {
            qp_state: ffi::STATE_INIT,
            qp_access_flags: ffi::ACCESS_ALL as u32,
            port_num: 1,
            ..QpAttr::default()
        };
        self.modify(attr, ffi::MASK_INIT)
    }

    fn modify(&self, mut attr: QpAttr, mask: c_int) -> Result<()> {
        // SAFETY: our QP.
        let failed = unsafe { (self.library.modify_qp)(self.qp, &mut attr, mask) };
        ensure!(
            failed == 0,
            "modify_qp to state {}: {}",
            attr.qp_state,
            std::io::Error::from_raw_os_error(failed)
        );
        Ok(())
    }

    /// QP number and GID, for the other end.
    pub fn identity(&self) -> (u32, [u8; 16]) {
        // SAFETY: our QP.
        (unsafe { (*self.qp).qp_num }, self.gid)
    }

    /// Connects to the other end's QP.
    pub fn connect(&self, qpn: u32, gid: [u8; 16]) -> Result<()> {
        let mut attr = QpAttr {
            qp_state: ffi::STATE_RTR,
            path_mtu: ffi::MTU_4096,
            dest_qp_num: qpn,
            max_dest_rd_atomic: 8,
            min_rnr_timer: 12,
            ..QpAttr::default()
        };
        attr.ah.dgid = gid;
        attr.ah.sgid_index = self.gid_index;
        attr.ah.hop_limit = 64;
        attr.ah.is_global = 1;
        attr.ah.port_num = 1;
        self.modify(attr, ffi::MASK_RTR)?;
        let attr = QpAttr {
            qp_state: ffi::STATE_RTS,
            max_rd_atomic: 8,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        self.modify(attr, ffi::MASK_RTS)
    }

    /// Posts sends in one call; all give a completion.
    pub fn send(&mut self, sends: &[Send]) -> Result<(), Failure> {
        let mut sges: Vec<Sge> = sends
            .iter()
            .map(|send| {
                let (memory, at, len) = send.from;
                let memory = &self.memories[memory];
                assert!(at + len <= memory.bytes.len(), "beyond the memory");
                Sge {
                    addr: memory.addr() + at as u64,
                    length: len as u32,
                    lkey: memory.lkey(),
                }
            })
            .collect();
        let mut requests: Vec<SendWr> = sends
            .iter()
            .zip(&mut sges)
            .map(|(send, sge)| {
                let mut request = SendWr {
                    wr_id: send.id,
                    next: ptr::null_mut(),
                    sg_list: sge,
                    num_sge: 1,
                    opcode: send.opcode,
                    send_flags: ffi::SEND_SIGNALED,
                    imm_data: send.imm,
                    remote_addr: send.remote.0,
                    rkey: send.remote.1,
                    rest: [0; 76],
                };
                if send.opcode == ffi::WR_FETCH_ADD {
                    request.make_atomic(send.add, send.remote.1);
                }
                request
            })
            .collect();
        for i in 1..requests.len() {
            let next: *mut SendWr = &mut requests[i];
            requests[i - 1].next = next;
        }
        let Some(first) = requests.first_mut() else {
            return Ok(());
        };
        let mut bad = ptr::null_mut();
        // SAFETY: a list of valid requests over registered memory.
        let failed = unsafe { ((*self.context).post_send)(self.qp, first, &mut bad) };
        posted("post_send", failed)
    }

    /// Posts receives in one call: (id, memory, offset, length).
    pub fn receive(&mut self, receives: &[(u64, usize, usize, usize)]) -> Result<(), Failure> {
        let mut sges: Vec<Sge> = receives
            .iter()
            .map(|(_, memory, at, len)| {
                let memory = &self.memories[*memory];
                assert!(at + len <= memory.bytes.len(), "beyond the memory");
                Sge {
                    addr: memory.addr() + *at as u64,
                    length: *len as u32,
                    lkey: memory.lkey(),
                }
            })
            .collect();
        let mut requests: Vec<RecvWr> = receives
            .iter()
            .zip(&mut sges)
            .map(|((id, _, _, len), sge)| RecvWr {
                wr_id: *id,
                next: ptr::null_mut(),
                sg_list: sge,
                num_sge: c_int::from(*len > 0),
            })
            .collect();
        for i in 1..requests.len() {
            let next: *mut RecvWr = &mut requests[i];
            requests[i - 1].next = next;
        }
        let Some(first) = requests.first_mut() else {
            return Ok(());
        };
        let mut bad = ptr::null_mut();
        // SAFETY: a list of valid requests over registered memory.
        let failed = unsafe { ((*self.context).post_recv)(self.qp, first, &mut bad) };
        posted("post_recv", failed)
    }

    /// Looks whether the QP has failed: without any request under way, no completion would tell.
    pub fn look(&self) -> Result<(), Failure> {
        let mut attr = QpAttr::default();
        // SAFETY: numbers and pointers, for which zeros are values.
        let mut init = unsafe { std::mem::zeroed() };
        // SAFETY: our QP, and structures of the library.
        let failed =
            unsafe { (self.library.query_qp)(self.qp, &mut attr, ffi::MASK_STATE, &mut init) };
        if failed != 0 {
            return Err(Failure::Device(format!("query_qp: errno {failed}")));
        }
        if attr.qp_state == ffi::STATE_ERR {
            return Err(Failure::Device("the QP is in the error state".into()));
        }
        Ok(())
    }

    /// Takes completions, waiting for one by event if there is none, not longer than `patience`.
    pub fn completions(&mut self, patience: Duration) -> Result<Vec<Done>, Failure> {
        let found = self.poll()?;
        if !found.is_empty() {
            return Ok(found);
        }
        // SAFETY: our CQ.
        let failed = unsafe { ((*self.context).req_notify_cq)(self.cq, 0) };
        posted("req_notify_cq", failed)?;
        // One more look: what came before the request gives no event.
        let found = self.poll()?;
        if !found.is_empty() {
            return Ok(found);
        }
        self.wait(patience)?;
        self.poll()
    }

    fn wait(&mut self, patience: Duration) -> Result<(), Failure> {
        // SAFETY: our channel.
        let fd = unsafe { (*self.channel).fd };
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let millis = c_int::try_from(patience.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: one descriptor.
        let ready = unsafe { libc::poll(&mut poll, 1, millis) };
        if ready <= 0 || poll.revents & libc::POLLIN == 0 {
            return Ok(());
        }
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: our channel, which has an event.
        if unsafe { (self.library.get_cq_event)(self.channel, &mut cq, &mut cookie) } != 0 {
            return Err(Failure::Device(format!("get_cq_event: {}", errno())));
        }
        self.unacknowledged += 1;
        Ok(())
    }

    fn poll(&mut self) -> Result<Vec<Done>, Failure> {
        let mut found = [Wc::default(); 64];
        // SAFETY: room for as many completions as told.
        let count = unsafe { ((*self.context).poll_cq)(self.cq, 64, found.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(Failure::Device(format!("poll_cq: {}", errno())));
        };
        let mut done = Vec::with_capacity(count);
        for wc in &found[..count] {
            if wc.status != 0 {
                // SAFETY: the library returns a constant string for any number.
                let text = unsafe { CStr::from_ptr((self.library.wc_status_str)(wc.status)) };
                return Err(Failure::Completion(text.to_string_lossy().into_owned()));
            }
            done.push(Done {
                id: wc.wr_id,
                receive: wc.opcode & ffi::WC_RECV != 0,
                len: wc.byte_len,
                imm: (wc.wc_flags & ffi::WC_WITH_IMM != 0).then_some(wc.imm_data),
            });
        }
        Ok(done)
    }
}

fn posted(what: &str, failed: c_int) -> Result<(), Failure> {
    if failed == 0 {
        return Ok(());
    }
    let error = std::io::Error::from_raw_os_error(failed.abs());
    Err(Failure::Device(format!("{what}: {error}")))
}

pub fn open(library: &Library, wanted: &str) -> Result<*mut Context> {
    let name = CString::new(wanted)?;
    let mut count = 0;
    // SAFETY: the list has `count` devices, whose names are C strings, until it is freed.
    unsafe {
        let list = (library.get_device_list)(&mut count);
        ensure!(!list.is_null(), "no RDMA devices: {}", errno());
        let devices = std::slice::from_raw_parts(list, usize::try_from(count)?);
        let names: Vec<&CStr> = devices
            .iter()
            .map(|d| CStr::from_ptr((library.get_device_name)(*d)))
            .collect();
        let found = names.iter().position(|n| **n == *name);
        let context = found.map(|at| (library.open_device)(devices[at]));
        let names: Vec<String> = names
            .iter()
            .map(|n| n.to_string_lossy().into_owned())
            .collect();
        (library.free_device_list)(list);
        match context {
            Some(context) if !context.is_null() => Ok(context),
            Some(_) => bail!("{wanted} cannot be opened: {}", errno()),
            None => bail!("there is no RDMA device {wanted}; there are {names:?}"),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let library = &self.library;
        // SAFETY: each object is ours and destroyed once, users before what they use.
        unsafe {
            if !self.qp.is_null() {
                (library.destroy_qp)(self.qp);
            }
            if !self.cq.is_null() {
                (library.ack_cq_events)(self.cq, self.unacknowledged);
                (library.destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (library.destroy_channel)(self.channel);
            }
            for memory in &self.memories {
                (library.dereg_mr)(memory.mr);
            }
            if !self.pd.is_null() {
                (library.dealloc_pd)(self.pd);
            }
            (library.close_device)(self.context);
        }
    }
}
