//! Verbs objects that are safe to use and destroyed in the right order.
//!
//! Common ground of the SAFETY comments: the objects are ours, alive as long as the borrow that
//! they hold lasts, and the functions are libibverbs', called as its manual pages say.

use crate::endpoint::open;
use crate::ffi::{
    self, AsyncEvent, Context, Library, Mr, QpAttr, RecvWr, SendWr, Sge, SrqAttr, Wc,
};
use anyhow::{bail, ensure, Result};
use std::ffi::{c_int, CStr};
use std::ptr;
use std::time::{Duration, Instant};

/// How long something may take that has to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// The errno of the call before.
pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An open device.
pub struct Device {
    pub library: Library,
    pub context: *mut Context,
    pub gid: [u8; 16],
    gid_index: u8,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Sync for Device {}

impl Device {
    pub fn open(name: &str, gid_index: u8) -> Result<Self> {
        let library = Library::open()?;
        let context = open(&library, name)?;
        let mut gid = [0; 16];
        // SAFETY: see the module's common ground, here and below.
        let failed = unsafe { (library.query_gid)(context, 1, c_int::from(gid_index), &mut gid) };
        ensure!(failed == 0, "there is no GID {gid_index}");
        Ok(Self {
            library,
            context,
            gid,
            gid_index,
        })
    }

    pub fn pd(&self) -> Result<Pd<'_>> {
        // SAFETY: as above.
        let raw = unsafe { (self.library.alloc_pd)(self.context) };
        ensure!(!raw.is_null(), "alloc_pd: errno {}", errno());
        Ok(Pd { device: self, raw })
    }

    /// A queue for `entries` completions.
    pub fn cq(&self, entries: c_int) -> Result<Cq<'_>> {
        let library = &self.library;
        // SAFETY: as above.
        let (channel, raw) = unsafe {
            let channel = (library.create_channel)(self.context);
            ensure!(!channel.is_null(), "create_comp_channel: errno {}", errno());
            let none = ptr::null_mut();
            let raw = (library.create_cq)(self.context, entries, none, channel, 0);
            (channel, raw)
        };
        ensure!(!raw.is_null(), "create_cq: errno {}", errno());
        Ok(Cq {
            device: self,
            raw,
            channel,
        })
    }

    /// The next asynchronous event: its kind, and the object that it belongs to.
    pub fn event(&self, patience: Duration) -> Result<Option<(u32, ffi::Ptr)>> {
        // SAFETY: as above.
        let fd = unsafe { (*self.context).async_fd };
        if !readable(fd, patience) {
            return Ok(None);
        }
        let mut event = AsyncEvent {
            element: ptr::null_mut(),
            kind: 0,
        };
        // SAFETY: as above; there is an event.
        unsafe {
            let failed = (self.library.get_async_event)(self.context, &mut event);
            ensure!(failed == 0, "get_async_event: errno {}", errno());
            (self.library.ack_async_event)(&mut event);
        }
        Ok(Some((event.kind, event.element)))
    }

    /// An event of this kind for this object; others are passed by.
    pub fn expect_event(&self, kind: u32, element: ffi::Ptr) -> Result<()> {
        let mut others = Vec::new();
        while let Some(event) = self.event(PATIENCE)? {
            if event == (kind, element) {
                return Ok(());
            }
            others.push(event.0);
        }
        bail!("event {kind} did not come, others did: {others:?}")
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: as above; last use.
        unsafe { (self.library.close_device)(self.context) };
    }
}

fn readable(fd: c_int, patience: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let millis = c_int::try_from(patience.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: one descriptor.
    unsafe { libc::poll(&mut poll, 1, millis) > 0 }
}

/// A protection domain.
pub struct Pd<'d> {
    pub device: &'d Device,
    pub raw: ffi::Ptr,
}

impl Drop for Pd<'_> {
    fn drop(&mut self) {
        // SAFETY: as above; last use.
        unsafe { (self.device.library.dealloc_pd)(self.raw) };
    }
}

/// A completion queue with a channel.
pub struct Cq<'d> {
    device: &'d Device,
    pub raw: *mut ffi::Cq,
    channel: *mut ffi::Channel,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Sync for Cq<'_> {}

impl Cq<'_> {
    /// Places that it says it has.
    pub fn entries(&self) -> c_int {
        // SAFETY: as above.
        unsafe { (*self.raw).cqe }
    }

    /// Returns an errno.
    pub fn resize(&self, entries: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { (self.device.library.resize_cq)(self.raw, entries) }
    }

    pub fn poll(&self) -> Result<Option<Wc>> {
        let mut wc = Wc::default();
        // SAFETY: as above; room for one.
        match unsafe { ((*self.device.context).poll_cq)(self.raw, 1, &mut wc) } {
            0 => Ok(None),
            1 => Ok(Some(wc)),
            failed => bail!("poll_cq: {failed}"),
        }
    }

    /// The next completion, whatever its status.
    pub fn next(&self) -> Result<Wc> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(wc) = self.poll()? {
                return Ok(wc);
            }
            std::thread::yield_now();
        }
        bail!("no completion came")
    }

    /// The next completion, which has to be this one, and a success.
    pub fn expect(&self, wr_id: u64) -> Result<Wc> {
        let wc = self.next()?;
        ensure!(
            wc.wr_id == wr_id && wc.status == 0,
            "completion {wr_id} was expected, {} came with status {}",
            wc.wr_id,
            wc.status
        );
        Ok(wc)
    }

    pub fn arm(&self) -> Result<()> {
        // SAFETY: as above.
        let failed = unsafe { ((*self.device.context).req_notify_cq)(self.raw, 0) };
        ensure!(failed == 0, "req_notify_cq: {failed}");
        Ok(())
    }

    /// Waits for a completion event.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: as above.
        let fd = unsafe { (*self.channel).fd };
        ensure!(readable(fd, PATIENCE), "no completion event came");
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: as above; there is an event.
        unsafe {
            let failed = (self.device.library.get_cq_event)(self.channel, &mut cq, &mut cookie);
            ensure!(failed == 0, "get_cq_event: errno {}", errno());
            (self.device.library.ack_cq_events)(cq, 1);
        }
        Ok(())
    }
}

impl Drop for Cq<'_> {
    fn drop(&mut self) {
        // SAFETY: as above; last use.
        unsafe {
            (self.device.library.destroy_cq)(self.raw);
            (self.device.library.destroy_channel)(self.channel);
        }
    }
}

/// Memory of this process.
pub struct Memory {
    pub addr: *mut u8,
    pub len: usize,
}

impl Memory {
    pub fn new(len: usize, protection: c_int, fd: c_int) -> Result<Self> {
        let flags = if fd < 0 {
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
        } else {
            libc::MAP_SHARED
        };
        // SAFETY: a new mapping, anywhere.
        let addr = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
        ensure!(addr != libc::MAP_FAILED, "mmap: errno {}", errno());
        Ok(Self {
            addr: addr.cast(),
            len,
        })
    }

    pub fn zeroed(len: usize) -> Result<Self> {
        Self::new(len, libc::PROT_READ | libc::PROT_WRITE, -1)
    }

    pub fn fill(&self, byte: u8) {
        // SAFETY: mapped to be written, and no references to it exist.
        unsafe { self.addr.write_bytes(byte, self.len) }
    }

    pub fn at(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: within the mapping; a device may write meanwhile.
        unsafe { self.addr.add(at).read_volatile() }
    }

    pub fn word(&self, at: usize) -> u64 {
        assert!(at + 8 <= self.len && at % 8 == 0);
        // SAFETY: as above, and aligned.
        unsafe { self.addr.add(at).cast::<u64>().read_volatile() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours; last use.
        unsafe { libc::munmap(self.addr.cast(), self.len) };
    }
}

/// A registration.
pub struct Region<'d> {
    device: &'d Device,
    raw: *mut Mr,
}

impl<'d> Region<'d> {
    /// The error is an errno.
    pub fn new(pd: &Pd<'d>, memory: &Memory, access: c_int) -> Result<Self, c_int> {
        let (addr, len) = (memory.addr.cast(), memory.len);
        // SAFETY: as above.
        let raw = unsafe { (pd.device.library.reg_mr)(pd.raw, addr, len, access) };
        Self::made(pd, raw)
    }

    /// Of a dma-buf; addresses in requests begin with `virt`.
    pub fn of_dma_buf(
        pd: &Pd<'d>,
        fd: c_int,
        (offset, len): (u64, usize),
        virt: u64,
        access: c_int,
    ) -> Result<Self, c_int> {
        let register = pd.device.library.reg_dmabuf_mr;
        // SAFETY: as above.
        let raw = unsafe { register(pd.raw, offset, len, virt, fd, access) };
        Self::made(pd, raw)
    }

    fn made(pd: &Pd<'d>, raw: *mut Mr) -> Result<Self, c_int> {
        if raw.is_null() {
            return Err(errno());
        }
        Ok(Self {
            device: pd.device,
            raw,
        })
    }

    pub fn key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).rkey }
    }

    /// Registers it anew. Returns what the call does.
    pub fn again(
        &self,
        flags: c_int,
        pd: &Pd<'_>,
        memory: Option<&Memory>,
        access: c_int,
    ) -> c_int {
        let (addr, len) = memory.map_or((ptr::null_mut(), 0), |m| (m.addr.cast(), m.len));
        // SAFETY: as above.
        unsafe { (self.device.library.rereg_mr)(self.raw, flags, pd.raw, addr, len, access) }
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // SAFETY: as above; last use.
        unsafe { (self.device.library.dereg_mr)(self.raw) };
    }
}

/// A shared receive queue.
pub struct Srq<'d> {
    device: &'d Device,
    pub raw: ffi::Ptr,
}

impl<'d> Srq<'d> {
    pub fn new(pd: &Pd<'d>, receives: u32) -> Result<Self> {
        let mut init = ffi::SrqInitAttr {
            srq_context: ptr::null_mut(),
            attr: SrqAttr {
                max_wr: receives,
                max_sge: 1,
                limit: 0,
            },
        };
        // SAFETY: as above.
        let raw = unsafe { (pd.device.library.create_srq)(pd.raw, &mut init) };
        ensure!(!raw.is_null(), "create_srq: errno {}", errno());
        Ok(Self {
            device: pd.device,
            raw,
        })
    }

    /// Changes what the mask says (1: size, 2: limit). Returns an errno.
    pub fn modify(&self, mut attr: SrqAttr, mask: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { (self.device.library.modify_srq)(self.raw, &mut attr, mask) }
    }

    pub fn query(&self) -> Result<SrqAttr> {
        let mut attr = SrqAttr::default();
        // SAFETY: as above.
        let failed = unsafe { (self.device.library.query_srq)(self.raw, &mut attr) };
        ensure!(failed == 0, "query_srq: {failed}");
        Ok(attr)
    }

    pub fn receive(&self, wr_id: u64, sge: &Sge) -> Result<()> {
        let mut sge = *sge;
        let mut wr = receive(wr_id, &mut sge);
        let mut bad = ptr::null_mut();
        // SAFETY: as above.
        let failed = unsafe { ((*self.device.context).post_srq_recv)(self.raw, &mut wr, &mut bad) };
        ensure!(failed == 0, "post_srq_recv: {failed}");
        Ok(())
    }
}

impl Drop for Srq<'_> {
    fn drop(&mut self) {
        // SAFETY: as above; last use.
        unsafe { (self.device.library.destroy_srq)(self.raw) };
    }
}

fn receive(wr_id: u64, sge: &mut Sge) -> RecvWr {
    RecvWr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: sge,
        num_sge: c_int::from(sge.length > 0),
    }
}

/// How a QP is made.
#[derive(Clone, Copy, Default)]
pub struct QpPlan {
    pub kind: u32,
    pub srq: Option<ffi::Ptr>,
    /// Operations of the extended form.
    pub extended: Option<u64>,
}

/// A QP.
pub struct Qp<'d> {
    pub device: &'d Device,
    pub raw: *mut ffi::Qp,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Sync for Qp<'_> {}

const DEPTH: u32 = 128;

impl<'d> Qp<'d> {
    /// The error is an errno.
    pub fn new(pd: &Pd<'d>, cq: &Cq<'_>, plan: QpPlan) -> Result<Self, c_int> {
        let mut init = ffi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq.raw,
            recv_cq: cq.raw,
            srq: plan.srq.unwrap_or(ptr::null_mut()),
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
            qp_type: plan.kind,
            sq_sig_all: 0,
            comp_mask: 1 | 1 << 6,
            pd: pd.raw,
            unused: [0; 7],
            send_ops_flags: plan.extended.unwrap_or(0),
        };
        type CreateEx = unsafe extern "C" fn(*mut Context, *mut ffi::QpInitAttr) -> *mut ffi::Qp;
        let context = pd.device.context;
        // SAFETY: as above; the context has the function, as its size says.
        let raw = unsafe {
            if plan.extended.is_some() {
                let words = context.cast::<usize>();
                assert!(words.sub(ffi::CONTEXT_SIZE).read() > 328 + ffi::CREATE_QP_EX * 8);
                let create = context.cast::<Option<CreateEx>>();
                match create.sub(ffi::CREATE_QP_EX).read() {
                    Some(create) => create(context, &mut init),
                    None => return Err(libc::EOPNOTSUPP),
                }
            } else {
                (pd.device.library.create_qp)(pd.raw, &mut init)
            }
        };
        if raw.is_null() {
            return Err(errno());
        }
        Ok(Self {
            device: pd.device,
            raw,
        })
    }

    pub fn number(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).qp_num }
    }

    /// Its extended form.
    pub fn extended(&self) -> Result<*mut ffi::QpEx> {
        // SAFETY: as above.
        let qp = unsafe { (self.device.library.qp_to_qp_ex)(self.raw) };
        ensure!(
            !qp.is_null(),
            "libibverbs does not know it for an extended QP"
        );
        Ok(qp)
    }

    pub fn modify(&self, mut attr: QpAttr, mask: c_int) -> Result<()> {
        // SAFETY: as above.
        let failed = unsafe { (self.device.library.modify_qp)(self.raw, &mut attr, mask) };
        ensure!(
            failed == 0,
            "modify_qp to {}: errno {failed}",
            attr.qp_state
        );
        Ok(())
    }

    /// All attributes.
    pub fn query(&self) -> Result<QpAttr> {
        let mut attr = QpAttr::default();
        // SAFETY: numbers and pointers, for which zeros are values.
        let mut init = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let failed = unsafe {
            (self.device.library.query_qp)(self.raw, &mut attr, ffi::MASK_ALL, &mut init)
        };
        ensure!(failed == 0, "query_qp: errno {failed}");
        Ok(attr)
    }

    pub fn init(&self) -> Result<()> {
        let attr = QpAttr {
            qp_state: ffi::STATE_INIT,
            qp_access_flags: 15,
            port_num: 1,
            ..QpAttr::default()
        };
        self.modify(attr, ffi::MASK_INIT)
    }

    /// Ready to receive from the QP `from` of this device.
    pub fn ready_to_receive(&self, from: &Qp<'_>) -> Result<()> {
        let mut attr = QpAttr {
            qp_state: ffi::STATE_RTR,
            path_mtu: ffi::MTU_4096,
            dest_qp_num: from.number(),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..QpAttr::default()
        };
        attr.ah = self.device.address();
        self.modify(attr, ffi::MASK_RTR)
    }

    pub fn ready_to_send(&self) -> Result<()> {
        let attr = QpAttr {
            qp_state: ffi::STATE_RTS,
            max_rd_atomic: 4,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        self.modify(attr, ffi::MASK_RTS)
    }

    /// Posts a send whose completion is wanted; `remote`: address and key.
    pub fn send(&self, wr_id: u64, opcode: u32, sge: &Sge, remote: (u64, u32)) -> Result<()> {
        let mut sge = *sge;
        let mut wr = SendWr {
            wr_id,
            next: ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: c_int::from(sge.length > 0),
            opcode,
            send_flags: ffi::SEND_SIGNALED,
            imm_data: 0,
            remote_addr: remote.0,
            rkey: remote.1,
            rest: [0; 76],
        };
        let mut bad = ptr::null_mut();
        // SAFETY: as above.
        let failed = unsafe { ((*self.device.context).post_send)(self.raw, &mut wr, &mut bad) };
        ensure!(failed == 0, "post_send: {failed}");
        Ok(())
    }

    pub fn receive(&self, wr_id: u64, sge: &Sge) -> Result<()> {
        let mut sge = *sge;
        let mut wr = receive(wr_id, &mut sge);
        let mut bad = ptr::null_mut();
        // SAFETY: as above.
        let failed = unsafe { ((*self.device.context).post_recv)(self.raw, &mut wr, &mut bad) };
        ensure!(failed == 0, "post_recv: {failed}");
        Ok(())
    }
}

impl Drop for Qp<'_> {
    fn drop(&mut self) {
        // SAFETY: as above; last use.
        unsafe { (self.device.library.destroy_qp)(self.raw) };
    }
}

impl Device {
    /// The way to this device itself.
    pub fn address(&self) -> ffi::AhAttr {
        ffi::AhAttr {
            dgid: self.gid,
            sgid_index: self.gid_index,
            hop_limit: 64,
            is_global: 1,
            port_num: 1,
            ..ffi::AhAttr::default()
        }
    }

    /// What the library calls a status.
    pub fn status(&self, status: u32) -> String {
        // SAFETY: a constant string for any number.
        let text = unsafe { CStr::from_ptr((self.library.wc_status_str)(status)) };
        text.to_string_lossy().into_owned()
    }
}

/// Two QPs connected with each other.
pub fn pair<'d>(pd: &Pd<'d>, cq: &Cq<'_>, plan: QpPlan) -> Result<(Qp<'d>, Qp<'d>)> {
    let make =
        || Qp::new(pd, cq, plan).map_err(|error| anyhow::anyhow!("create_qp: errno {error}"));
    let (a, b) = (make()?, make()?);
    for qp in [&a, &b] {
        qp.init()?;
    }
    a.ready_to_receive(&b)?;
    b.ready_to_receive(&a)?;
    a.ready_to_send()?;
    b.ready_to_send()?;
    Ok((a, b))
}

/// An element.
pub fn sge(memory: &Memory, at: usize, len: usize, region: &Region<'_>) -> Sge {
    assert!(at + len <= memory.len);
    Sge {
        addr: memory.addr as u64 + at as u64,
        length: len as u32,
        lkey: region.key(),
    }
}
