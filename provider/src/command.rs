//! Commands that make the kernel look at the queues that it shares with us, as
//! `rdma/ib_user_verbs.h` lays them out. They ask for nothing: no work request, no completion.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr;

/// `IB_USER_VERBS_CMD_POLL_CQ`.
const POLL_CQ: u32 = 21;
/// `IB_USER_VERBS_CMD_POST_SEND`.
const POST_SEND: u32 = 28;
/// `IB_USER_VERBS_CMD_POST_RECV`.
const POST_RECV: u32 = 29;

/// `struct ib_uverbs_cmd_hdr`.
#[repr(C)]
struct Header {
    command: u32,
    in_words: u16,
    out_words: u16,
}

/// `struct ib_uverbs_post_send` and `struct ib_uverbs_post_recv`, with the header.
#[repr(C)]
struct Post {
    header: Header,
    response: u64,
    handle: u32,
    wr_count: u32,
    sge_count: u32,
    wqe_size: u32,
}

/// `struct ib_uverbs_poll_cq`, with the header.
#[repr(C)]
struct Poll {
    header: Header,
    response: u64,
    handle: u32,
    entries: u32,
}

const _: () = {
    assert!(size_of::<Post>() == 32);
    assert!(size_of::<Poll>() == 24);
};

/// Bytes of `struct ib_uverbs_send_wr` and `struct ib_uverbs_recv_wr`: the least that the kernel
/// takes for an entry, even if there is none.
const SEND_WR: u32 = 56;
const RECV_WR: u32 = 16;

/// Makes the kernel look at the send queue of a QP. Returns an errno.
pub(crate) fn post_send(fd: c_int, handle: u32) -> c_int {
    post(fd, handle, POST_SEND, SEND_WR)
}

/// Makes the kernel look at the receive queue of a QP. Returns an errno.
pub(crate) fn post_recv(fd: c_int, handle: u32) -> c_int {
    post(fd, handle, POST_RECV, RECV_WR)
}

fn post(fd: c_int, handle: u32, command: u32, wqe_size: u32) -> c_int {
    let mut bad_wr = 0u32;
    let request = Post {
        header: header::<Post>(command, size_of::<u32>()),
        response: ptr::from_mut(&mut bad_wr) as u64,
        handle,
        wr_count: 0,
        sge_count: 0,
        wqe_size,
    };
    // SAFETY: the response is writable for as long as told.
    unsafe { write(fd, &request) }
}

/// Makes the kernel look for frames. That it cannot is no failure of who looks for a completion.
pub(crate) fn poll_cq(fd: c_int, handle: u32) {
    // `struct ib_uverbs_poll_cq_resp`, and room for the one completion that is never there.
    let mut response = [0u64; 1 + 6];
    let request = Poll {
        header: header::<Poll>(POLL_CQ, size_of_val(&response)),
        response: response.as_mut_ptr() as u64,
        handle,
        entries: 1,
    };
    // SAFETY: as above.
    unsafe { write(fd, &request) };
}

fn header<T>(command: u32, response: usize) -> Header {
    Header {
        command,
        in_words: (size_of::<T>() / 4) as u16,
        out_words: (response / 4) as u16,
    }
}

/// Gives a command to the device. Returns an errno.
///
/// # Safety
///
/// `T` is a command without padding, whose response is writable.
unsafe fn write<T>(fd: c_int, request: &T) -> c_int {
    let len = size_of::<T>();
    // SAFETY: as required.
    let written = unsafe { libc::write(fd, ptr::from_ref(request).cast(), len) };
    if usize::try_from(written) == Ok(len) {
        return 0;
    }
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}
