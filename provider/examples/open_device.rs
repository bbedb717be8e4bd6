//! Opens tbrdma0 as a program does that loads libibverbs itself (RCCL, UCX), and calls the provider
//! through libibverbs: one line for each thing that works.
//!
//! The tests run it with a device that answers every command with zeroes (see `tests/common`), so
//! it shows that calls arrive where they should, and nothing about a kernel.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::process::ExitCode;

type Ptr = *mut c_void;

/// Where `struct ibv_context` has the four operations of the data path, in words.
const DATA_PATH: [(&str, usize); 4] = [
    ("poll_cq", 12),
    ("req_notify_cq", 13),
    ("post_send", 26),
    ("post_recv", 27),
];

/// `struct ibv_qp_init_attr`.
#[repr(C)]
struct QpInitAttr {
    qp_context: Ptr,
    send_cq: Ptr,
    recv_cq: Ptr,
    srq: Ptr,
    capacity: [u32; 5],
    qp_type: u32,
    sq_sig_all: c_int,
    /// Of the extended form, as is what follows.
    comp_mask: u32,
    pd: Ptr,
    unused: [u64; 7],
    send_ops_flags: u64,
}

/// `IBV_QP_INIT_ATTR_PD` and `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
const EXTENDED_SENDS: u32 = 1 | 1 << 6;

/// Where `struct verbs_context` has `create_qp_ex`, in words before its public part. That has not
/// changed since the function came.
const CREATE_QP_EX: usize = 7;

macro_rules! libibverbs {
    ($($name:ident: fn($($arg:ty),*) -> $ret:ty;)*) => {
        struct Libibverbs {
            $($name: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl Libibverbs {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the system's library; the signatures are those of its header.
                unsafe {
                    let library = Box::leak(Box::new(libloading::Library::new("libibverbs.so.1")?));
                    Ok(Self { $($name: *library.get(stringify!($name).as_bytes())?,)* })
                }
            }
        }
    };
}

libibverbs! {
    ibv_get_device_list: fn(*mut c_int) -> *mut Ptr;
    ibv_get_device_name: fn(Ptr) -> *const c_char;
    ibv_open_device: fn(Ptr) -> Ptr;
    ibv_close_device: fn(Ptr) -> c_int;
    ibv_query_device: fn(Ptr, Ptr) -> c_int;
    ibv_query_port: fn(Ptr, u8, Ptr) -> c_int;
    ibv_alloc_pd: fn(Ptr) -> Ptr;
    ibv_dealloc_pd: fn(Ptr) -> c_int;
    ibv_reg_mr: fn(Ptr, Ptr, usize, c_int) -> Ptr;
    ibv_dereg_mr: fn(Ptr) -> c_int;
    ibv_create_cq: fn(Ptr, c_int, Ptr, Ptr, c_int) -> Ptr;
    ibv_create_qp: fn(Ptr, *mut QpInitAttr) -> Ptr;
    ibv_query_qp: fn(Ptr, Ptr, c_int, Ptr) -> c_int;
    ibv_modify_qp: fn(Ptr, Ptr, c_int) -> c_int;
    ibv_create_srq: fn(Ptr, Ptr) -> Ptr;
    ibv_rereg_mr: fn(Ptr, c_int, Ptr, Ptr, usize, c_int) -> c_int;
    ibv_reg_dmabuf_mr: fn(Ptr, u64, usize, u64, c_int, c_int) -> Ptr;
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A line if it went well.
fn told(name: &str, good: bool) -> Result<(), String> {
    if !good {
        let error = std::io::Error::last_os_error();
        return Err(format!("{name} fails: {error}"));
    }
    println!("ok {name}");
    Ok(())
}

fn run() -> Result<(), String> {
    let library = Libibverbs::load().map_err(|error| error.to_string())?;
    // SAFETY: the library's own objects, used as its manual pages say; the structures that it
    // fills are smaller than the buffers.
    unsafe {
        let context = open(&library)?;
        println!("ok open");
        data_path(context)?;
        control(&library, context)?;
        told("close", (library.ibv_close_device)(context) == 0)
    }
}

/// # Safety
///
/// The functions are libibverbs'.
unsafe fn open(library: &Libibverbs) -> Result<Ptr, String> {
    let mut count = 0;
    // SAFETY: as required.
    let list = unsafe { (library.ibv_get_device_list)(&mut count) };
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has so many devices, with names that are C strings.
        let (device, name) = unsafe {
            let device = *list.add(index);
            (
                device,
                CStr::from_ptr((library.ibv_get_device_name)(device)),
            )
        };
        if name == c"tbrdma0" {
            println!("ok found");
            // SAFETY: a device of the list, which stays.
            let context = unsafe { (library.ibv_open_device)(device) };
            if context.is_null() {
                return Err("tbrdma0 cannot be opened".to_string());
            }
            return Ok(context);
        }
    }
    Err(format!("tbrdma0 is not among {count} devices"))
}

/// The operations of the data path are four functions of the provider.
///
/// # Safety
///
/// An open context.
unsafe fn data_path(context: Ptr) -> Result<(), String> {
    let mut seen = Vec::new();
    for (name, word) in DATA_PATH {
        // SAFETY: within `struct ibv_context`; all bytes zero are a value of `Dl_info`, whose name
        // is a C string if the call succeeds.
        let (address, file) = unsafe {
            let address = context.cast::<Ptr>().add(word).read();
            let mut info: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(address, &mut info) == 0 {
                return Err(format!("{name} is at {address:?}, in no library"));
            }
            let file = CStr::from_ptr(info.dli_fname)
                .to_string_lossy()
                .into_owned();
            (address, file)
        };
        if !file.contains("libtbrdma-rdmav") || seen.contains(&address) {
            return Err(format!("{name} is {address:?} in {file}"));
        }
        seen.push(address);
        println!("ok {name}");
    }
    Ok(())
}

/// An object was not made because the device's answer made no sense.
fn refused(object: Ptr) -> bool {
    let error = std::io::Error::last_os_error().raw_os_error();
    object.is_null() && error == Some(libc::EPROTO)
}

/// # Safety
///
/// An open context.
unsafe fn control(library: &Libibverbs, context: Ptr) -> Result<(), String> {
    let mut room = [0xffu8; 4096];
    let filled = room.as_mut_ptr().cast();
    let mut memory = vec![0u8; 8192];
    // SAFETY: see `run`.
    unsafe {
        told(
            "query_device",
            (library.ibv_query_device)(context, filled) == 0,
        )?;
        told(
            "query_port",
            (library.ibv_query_port)(context, 1, filled) == 0,
        )?;
        let pd = (library.ibv_alloc_pd)(context);
        told("alloc_pd", !pd.is_null())?;
        let mr = (library.ibv_reg_mr)(pd, memory.as_mut_ptr().cast(), memory.len(), 7);
        told("reg_mr", !mr.is_null())?;
        let none = std::ptr::null_mut();
        // Nothing tells where the queues are, and that has to be noticed.
        let cq = (library.ibv_create_cq)(context, 16, none, none, 0);
        told("create_cq is refused", refused(cq))?;
        // Objects of libibverbs begin with their context; for what follows that is enough.
        let mut objects = [[0usize; 128]; 2];
        for object in &mut objects {
            object[0] = context as usize;
        }
        let [cq, qp] = objects.each_mut().map(|object| object.as_mut_ptr().cast());
        let mut attr = QpInitAttr {
            qp_context: none,
            send_cq: cq,
            recv_cq: cq,
            srq: none,
            capacity: [16, 16, 1, 1, 0],
            qp_type: 2,
            sq_sig_all: 0,
            comp_mask: EXTENDED_SENDS,
            pd,
            unused: [0; 7],
            send_ops_flags: 1,
        };
        let created = (library.ibv_create_qp)(pd, &mut attr);
        told("create_qp is refused", refused(created))?;
        type CreateQpEx = unsafe extern "C" fn(Ptr, *mut QpInitAttr) -> Ptr;
        let create_qp_ex = context.cast::<CreateQpEx>().sub(CREATE_QP_EX).read();
        // Refused only when the device's answer came: libibverbs' mask in a QP was found.
        let created = create_qp_ex(context, &mut attr);
        told("create_qp_ex is refused", refused(created))?;
        attr.send_ops_flags = 1 << 10;
        let created = create_qp_ex(context, &mut attr);
        let error = std::io::Error::last_os_error().raw_os_error();
        let unsupported = created.is_null() && error == Some(libc::EOPNOTSUPP);
        told("create_qp_ex knows what it has not", unsupported)?;
        let init = room.as_mut_ptr().add(2048).cast();
        told("query_qp", (library.ibv_query_qp)(qp, filled, 1, init) == 0)?;
        room = [0; 4096];
        let nothing = room.as_mut_ptr().cast();
        told("modify_qp", (library.ibv_modify_qp)(qp, nothing, 1) == 0)?;
        let srq = (library.ibv_create_srq)(pd, nothing);
        told("create_srq is refused", refused(srq))?;
        let rereg = (library.ibv_rereg_mr)(mr, 4, none, none, 0, 7);
        told("rereg_mr", rereg == 0)?;
        // Not on a null device: it takes commands by ioctl only.
        let dmabuf = (library.ibv_reg_dmabuf_mr)(pd, 0, 4096, 0, 0, 7);
        let error = std::io::Error::last_os_error().raw_os_error();
        let asked = dmabuf.is_null() && error != Some(libc::EOPNOTSUPP);
        told("reg_dmabuf_mr asks the kernel", asked)?;
        told("dereg_mr", (library.ibv_dereg_mr)(mr) == 0)?;
        told("dealloc_pd", (library.ibv_dealloc_pd)(pd) == 0)
    }
}
