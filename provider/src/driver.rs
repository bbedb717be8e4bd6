//! Registration, and the contexts that libibverbs asks for.

use crate::abi::{
    sizes, Buffer, DeviceOps, MatchEntry, MatchValue, DEVICE_SIZE, MATCH_DRIVER_ID, MATCH_END,
    MATCH_MODALIAS, VERBS_CONTEXT_ROOM,
};
use crate::library::{test_setting, Library, Unusable};
use crate::{say, selfcheck, verbs};
use std::ffi::{c_int, c_void};
use std::ptr;
use tbrdma_uapi::{AllocUcontextResp, ABI_VERSION, DRIVER_ID};

const END: MatchEntry = MatchEntry {
    driver_data: ptr::null(),
    value: MatchValue { driver_id: 0 },
    vendor: 0,
    device: 0,
    kind: MATCH_END,
};

const BY_ID: MatchEntry = MatchEntry {
    driver_data: ptr::null(),
    value: MatchValue {
        driver_id: DRIVER_ID as u64,
    },
    vendor: 0,
    device: 0,
    kind: MATCH_DRIVER_ID,
};

/// Devices are ours by driver id, whatever they are called.
static MATCHES: [MatchEntry; 2] = [BY_ID, END];

/// Tests have no kernel that could tell a driver id, so there the name has to do.
static MATCHES_IN_TESTS: [MatchEntry; 3] = [
    BY_ID,
    MatchEntry {
        driver_data: ptr::null(),
        value: MatchValue {
            modalias: c"rdma_device:*Ntbrdma*".as_ptr(),
        },
        vendor: 0,
        device: 0,
        kind: MATCH_MODALIAS,
    },
    END,
];

const fn device_ops(matches: *const MatchEntry) -> DeviceOps {
    DeviceOps {
        name: c"tbrdma".as_ptr(),
        match_min_abi_version: ABI_VERSION,
        match_max_abi_version: ABI_VERSION,
        match_table: matches,
        static_providers: ptr::null(),
        match_device: None,
        alloc_context: Some(alloc_context),
        import_context: None,
        alloc_device: Some(alloc_device),
        uninit_device: Some(uninit_device),
    }
}

static OPS: DeviceOps = device_ops(MATCHES.as_ptr());
static OPS_IN_TESTS: DeviceOps = device_ops(MATCHES_IN_TESTS.as_ptr());

/// Registers with the libibverbs that loaded us, if we know it.
pub(crate) fn register() {
    match Library::get() {
        Ok(library) => {
            let in_tests = test_setting(c"TBRDMA_TEST_MATCH_NAME").is_some();
            let ops = if in_tests { &OPS_IN_TESTS } else { &OPS };
            say(
                false,
                format_args!(
                    "registering with private ABI {}, layout {:?}",
                    library.private_abi, library.family
                ),
            );
            // SAFETY: a static of the right layout.
            unsafe { library.register(ptr::from_ref(ops).cast()) }
        }
        // Loaded by something that is not libibverbs, a test for example.
        Err(reason @ Unusable::Absent) => say(false, format_args!("{reason}")),
        Err(reason) => say(true, format_args!("{reason}")),
    }
}

/// libibverbs wants a `struct verbs_device`, zeroed; it fills and owns it.
unsafe extern "C" fn alloc_device(_sysfs_device: *mut c_void) -> *mut c_void {
    // SAFETY: plain allocation.
    unsafe { libc::calloc(1, DEVICE_SIZE) }
}

unsafe extern "C" fn uninit_device(device: *mut c_void) {
    // SAFETY: from `alloc_device`; last use.
    unsafe { libc::free(device) }
}

/// What a context's memory begins with; `struct verbs_context` comes after it.
#[repr(C)]
pub(crate) struct Private {
    /// What the kernel told.
    pub(crate) kernel: AllocUcontextResp,
}

/// Where `struct verbs_context` begins in a context's memory. Its size differs between releases
/// while its end is what we do not care for, so our own data is before it.
const VERBS_CONTEXT_AT: usize = 64;
const _: () = assert!(size_of::<Private>() <= VERBS_CONTEXT_AT);

/// An allocated context.
pub(crate) struct Context {
    base: *mut u8,
}

impl Context {
    /// Allocates a context; takes the descriptor, as libibverbs' function does.
    ///
    /// # Safety
    ///
    /// `device` is libibverbs' device, `fd` an open descriptor of it.
    pub(crate) unsafe fn new(library: &Library, device: *mut c_void, fd: c_int) -> Option<Self> {
        let size = VERBS_CONTEXT_AT + VERBS_CONTEXT_ROOM;
        // SAFETY: as required; the room is enough for any release's structure.
        let base = unsafe {
            (library.functions.init_context)(
                device,
                fd,
                size,
                VERBS_CONTEXT_AT as *mut c_void,
                DRIVER_ID,
            )
        };
        (!base.is_null()).then_some(Self { base: base.cast() })
    }

    /// The context that a public `struct ibv_context` belongs to.
    ///
    /// # Safety
    ///
    /// `public` belongs to one of our contexts.
    pub(crate) unsafe fn of(library: &Library, public: *mut c_void) -> Self {
        let back = VERBS_CONTEXT_AT + library.family.context_offset();
        // SAFETY: that is how far the public part is into the memory of our contexts.
        let base = unsafe { public.cast::<u8>().sub(back) };
        Self { base }
    }

    /// `struct verbs_context`.
    pub(crate) fn verbs(&self) -> *mut c_void {
        // SAFETY: within the memory.
        unsafe { self.base.add(VERBS_CONTEXT_AT).cast() }
    }

    fn private(&mut self) -> *mut Private {
        self.base.cast()
    }

    /// Frees the context and closes its descriptors.
    ///
    /// # Safety
    ///
    /// Nobody uses it any more.
    pub(crate) unsafe fn free(self, library: &Library) {
        // SAFETY: as required; the memory came from libibverbs' calloc.
        unsafe {
            (library.functions.uninit_context)(self.verbs());
            libc::free(self.base.cast());
        }
    }
}

/// libibverbs opens a device.
unsafe extern "C" fn alloc_context(
    device: *mut c_void,
    fd: c_int,
    _private_data: *mut c_void,
) -> *mut c_void {
    let Ok(library) = Library::get() else {
        return ptr::null_mut();
    };
    // SAFETY: libibverbs gives a device and a descriptor that are valid during this call.
    if let Err(reason) = unsafe { selfcheck::run(library, device, fd) } {
        say(true, format_args!("{reason}"));
        return ptr::null_mut();
    }
    // SAFETY: as above.
    let Some(mut context) = (unsafe { Context::new(library, device, fd) }) else {
        return ptr::null_mut();
    };
    let mut command = Buffer::<{ sizes::GET_CONTEXT }>::new();
    let mut response =
        Buffer::<{ sizes::GET_CONTEXT_RESP + size_of::<AllocUcontextResp>() }>::new();
    // SAFETY: buffers of the sizes told; a fresh context.
    let failed = unsafe {
        library.get_context(
            context.verbs(),
            command.as_mut_ptr(),
            sizes::GET_CONTEXT,
            response.as_mut_ptr(),
            sizes::GET_CONTEXT_RESP + size_of::<AllocUcontextResp>(),
        )
    };
    if failed != 0 {
        say(
            false,
            format_args!("the kernel refused a context: error {failed}"),
        );
        // SAFETY: nobody knows of it.
        unsafe { context.free(library) };
        set_errno(failed);
        return ptr::null_mut();
    }
    // SAFETY: our part of the memory; the response has that structure behind its fixed part.
    unsafe {
        (*context.private()).kernel = response.get(sizes::GET_CONTEXT_RESP);
        (library.functions.set_ops)(context.verbs(), verbs::table(library.family).as_ptr());
    }
    context.verbs()
}

pub(crate) fn set_errno(error: c_int) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = error }
}
