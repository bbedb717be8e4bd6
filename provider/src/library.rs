//! The libibverbs that loaded us: its private functions.

use crate::abi::{QP_MASK_34, QP_MASK_44, QP_MASK_45, QP_MASK_EXTENDED, QP_SIZE};
use crate::layout::{Family, PRIVATE_ABIS};
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Why we cannot work with the libibverbs of this process.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// Nobody loaded libibverbs, so nobody wants a provider.
    Absent,
    /// Its private ABI is not known.
    UnknownAbi,
    /// A private function is missing.
    Missing(&'static CStr),
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => write!(f, "libibverbs.so.1 is not loaded"),
            Self::UnknownAbi => write!(
                f,
                "this libibverbs has a private ABI that this version of tbrdma does not know \
                 (known: {PRIVATE_ABIS:?}); install a newer ibverbs-provider-tbrdma"
            ),
            Self::Missing(name) => write!(
                f,
                "this libibverbs lacks {}; install a newer ibverbs-provider-tbrdma",
                name.to_string_lossy()
            ),
        }
    }
}

type Ptr = *mut c_void;

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Private functions whose signatures have not changed since rdma-core 34, or only by
        /// arguments at the end.
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Functions {
            fn resolve(look_up: impl Fn(&CStr) -> Option<NonNull<c_void>>) -> Result<Self, Unusable> {
                Ok(Self {
                    $($field: {
                        let found = look_up($name).ok_or(Unusable::Missing($name))?;
                        // SAFETY: the symbol is a function of this signature in every release
                        // with a private ABI that is known to us.
                        unsafe {
                            std::mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    init_context = c"_verbs_init_and_alloc_context": fn(Ptr, c_int, usize, Ptr, u32) -> Ptr;
    uninit_context = c"verbs_uninit_context": fn(Ptr);
    set_ops = c"verbs_set_ops": fn(Ptr, *const usize);
    query_device = c"ibv_cmd_query_device_any": fn(Ptr, Ptr, Ptr, usize, Ptr, Ptr) -> c_int;
    query_port = c"ibv_cmd_query_port": fn(Ptr, u8, Ptr, Ptr, usize) -> c_int;
    alloc_pd = c"ibv_cmd_alloc_pd": fn(Ptr, Ptr, Ptr, usize, Ptr, usize) -> c_int;
    dealloc_pd = c"ibv_cmd_dealloc_pd": fn(Ptr) -> c_int;
    reg_mr = c"ibv_cmd_reg_mr":
        fn(Ptr, Ptr, usize, u64, c_int, Ptr, Ptr, usize, Ptr, usize) -> c_int;
    rereg_mr = c"ibv_cmd_rereg_mr":
        fn(Ptr, u32, Ptr, usize, u64, c_int, Ptr, Ptr, usize, Ptr, usize) -> c_int;
    reg_dmabuf_mr = c"ibv_cmd_reg_dmabuf_mr":
        fn(Ptr, u64, usize, u64, c_int, c_int, Ptr, Ptr) -> c_int;
    dereg_mr = c"ibv_cmd_dereg_mr": fn(Ptr) -> c_int;
    create_cq = c"ibv_cmd_create_cq":
        fn(Ptr, c_int, Ptr, c_int, Ptr, Ptr, usize, Ptr, usize) -> c_int;
    resize_cq = c"ibv_cmd_resize_cq": fn(Ptr, c_int, Ptr, usize, Ptr, usize) -> c_int;
    destroy_cq = c"ibv_cmd_destroy_cq": fn(Ptr) -> c_int;
    create_srq = c"ibv_cmd_create_srq": fn(Ptr, Ptr, Ptr, Ptr, usize, Ptr, usize) -> c_int;
    modify_srq = c"ibv_cmd_modify_srq": fn(Ptr, Ptr, c_int, Ptr, usize) -> c_int;
    query_srq = c"ibv_cmd_query_srq": fn(Ptr, Ptr, Ptr, usize) -> c_int;
    destroy_srq = c"ibv_cmd_destroy_srq": fn(Ptr) -> c_int;
    create_ah = c"ibv_cmd_create_ah": fn(Ptr, Ptr, Ptr, Ptr, usize) -> c_int;
    destroy_ah = c"ibv_cmd_destroy_ah": fn(Ptr) -> c_int;
    create_qp = c"ibv_cmd_create_qp": fn(Ptr, Ptr, Ptr, Ptr, usize, Ptr, usize) -> c_int;
    modify_qp = c"ibv_cmd_modify_qp": fn(Ptr, Ptr, c_int, Ptr, usize) -> c_int;
    query_qp = c"ibv_cmd_query_qp": fn(Ptr, Ptr, c_int, Ptr, Ptr, usize) -> c_int;
    destroy_qp = c"ibv_cmd_destroy_qp": fn(Ptr) -> c_int;
}

/// What we know of the libibverbs of this process.
pub(crate) struct Library {
    pub(crate) private_abi: u32,
    pub(crate) family: Family,
    pub(crate) functions: Functions,
    /// Where `struct verbs_qp` has its own mask, bytes; `None`: not where it has been in any
    /// release known, so that extended QPs are not to be had.
    pub(crate) qp_mask_at: Option<usize>,
    get_context: NonNull<c_void>,
    register: NonNull<c_void>,
}

// SAFETY: function addresses of a library that stays loaded; they may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The one of this process; looked up once.
    pub(crate) fn get() -> Result<&'static Self, &'static Unusable> {
        static LIBRARY: OnceLock<Result<Library, Unusable>> = OnceLock::new();
        LIBRARY.get_or_init(Self::find).as_ref()
    }

    fn find() -> Result<Self, Unusable> {
        // Not through RTLD_DEFAULT: RCCL and UCX load libibverbs with RTLD_LOCAL.
        // SAFETY: a constant name; with RTLD_NOLOAD nothing is loaded.
        let handle = unsafe {
            libc::dlopen(
                c"libibverbs.so.1".as_ptr(),
                libc::RTLD_NOW | libc::RTLD_NOLOAD,
            )
        };
        if handle.is_null() {
            return Err(Unusable::Absent);
        }
        for private_abi in PRIVATE_ABIS {
            let node = CString::new(format!("IBVERBS_PRIVATE_{private_abi}"));
            let name = CString::new(format!("verbs_register_driver_{private_abi}"));
            let (Ok(node), Ok(name)) = (node, name) else {
                continue;
            };
            let look_up = |name: &CStr| {
                // SAFETY: an open handle and C strings.
                NonNull::new(unsafe { libc::dlvsym(handle, name.as_ptr(), node.as_ptr()) })
            };
            let Some(register) = look_up(&name) else {
                continue;
            };
            let has = |name: &CStr| {
                // SAFETY: as above.
                !unsafe { libc::dlsym(handle, name.as_ptr()) }.is_null()
            };
            let family = Family::choose(private_abi, has).ok_or(Unusable::UnknownAbi)?;
            return Ok(Self {
                private_abi,
                family: forced_family().unwrap_or(family),
                functions: Functions::resolve(look_up)?,
                // SAFETY: an open handle and a C string.
                qp_mask_at: NonNull::new(unsafe {
                    libc::dlsym(handle, c"ibv_qp_to_qp_ex".as_ptr())
                })
                .and_then(find_qp_mask),
                get_context: look_up(c"ibv_cmd_get_context")
                    .ok_or(Unusable::Missing(c"ibv_cmd_get_context"))?,
                register,
            });
        }
        Err(Unusable::UnknownAbi)
    }

    /// Registers the driver.
    ///
    /// # Safety
    ///
    /// `ops` is a `struct verbs_device_ops` that stays for ever.
    pub(crate) unsafe fn register(&self, ops: *const c_void) {
        type Register = unsafe extern "C" fn(*const c_void);
        // SAFETY: `verbs_register_driver_NN` has this signature.
        let register = unsafe { std::mem::transmute::<NonNull<c_void>, Register>(self.register) };
        // SAFETY: as required of the caller.
        unsafe { register(ops) }
    }

    /// `ibv_cmd_get_context`, whose arguments changed in rdma-core 57.
    ///
    /// # Safety
    ///
    /// As for that function.
    pub(crate) unsafe fn get_context(
        &self,
        context: Ptr,
        command: Ptr,
        command_size: usize,
        response: Ptr,
        response_size: usize,
    ) -> c_int {
        type Old = unsafe extern "C" fn(Ptr, Ptr, usize, Ptr, usize) -> c_int;
        type New = unsafe extern "C" fn(Ptr, Ptr, usize, Ptr, Ptr, usize) -> c_int;
        let function = self.get_context;
        if Family::get_context_takes_fds(self.private_abi) {
            // SAFETY: the signature since private ABI 57.
            let function = unsafe { std::mem::transmute::<NonNull<c_void>, New>(function) };
            let none = std::ptr::null_mut();
            // SAFETY: as required of the caller; no descriptors are passed.
            unsafe {
                function(
                    context,
                    command,
                    command_size,
                    none,
                    response,
                    response_size,
                )
            }
        } else {
            // SAFETY: the signature up to private ABI 34.
            let function = unsafe { std::mem::transmute::<NonNull<c_void>, Old>(function) };
            // SAFETY: as required of the caller.
            unsafe { function(context, command, command_size, response, response_size) }
        }
    }
}

/// Asks `ibv_qp_to_qp_ex`, which looks at libibverbs' mask in a QP, where it looks. The place
/// changes with every function that `struct ibv_qp_ex` gets, not with the private ABI.
fn find_qp_mask(to_extended: NonNull<c_void>) -> Option<usize> {
    type ToExtended = unsafe extern "C" fn(Ptr) -> Ptr;
    // SAFETY: this public function has this signature.
    let to_extended = unsafe { std::mem::transmute::<NonNull<c_void>, ToExtended>(to_extended) };
    [QP_MASK_34, QP_MASK_44, QP_MASK_45].into_iter().find(|at| {
        let mut qp = [0u64; QP_SIZE / 8];
        qp[at / 8] = u64::from(QP_MASK_EXTENDED.to_le());
        // SAFETY: it reads one word of a QP, which is there.
        !unsafe { to_extended(qp.as_mut_ptr().cast()) }.is_null()
    })
}

/// A family that a test wants instead of the right one, to see the self-check refuse it.
fn forced_family() -> Option<Family> {
    let wanted = test_setting(c"TBRDMA_TEST_FAMILY")?;
    crate::layout::FAMILIES
        .into_iter()
        .find(|family| format!("{family:?}") == wanted)
}

extern "C" {
    /// glibc 2.17: like `getenv`, but finds nothing in a set-user-ID program.
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// A setting for tests; never in a program that runs with more rights than its user.
pub(crate) fn test_setting(name: &CStr) -> Option<String> {
    // SAFETY: a C string; the value is copied before anything else can change the environment.
    let value = NonNull::new(unsafe { secure_getenv(name.as_ptr()) })?;
    // SAFETY: values of the environment are C strings.
    let value = unsafe { CStr::from_ptr(value.as_ptr()) };
    Some(value.to_string_lossy().into_owned())
}
