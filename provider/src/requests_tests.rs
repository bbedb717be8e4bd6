//! Requests as they come to lie in the shared queue.

use super::*;

fn requests(entries: u32) -> Requests {
    let queue = Queue::anonymous(entries, size_of::<SendEntry>() + 64);
    Requests::of_sends(queue, 4, 64, false)
}

fn send_wr(opcode: u32, list: &[Sge]) -> SendWr {
    // SAFETY: zeros are null pointers and numbers.
    let zero: SendWr = unsafe { std::mem::zeroed() };
    SendWr {
        wr_id: 77,
        opcode,
        sg_list: list.as_ptr(),
        num_sge: list.len() as c_int,
        send_flags: 2,
        imm: 0x0102_0304,
        ..zero
    }
}

fn sge(bytes: &[u8]) -> Sge {
    Sge {
        addr: bytes.as_ptr() as u64,
        length: bytes.len() as u32,
        lkey: 9,
    }
}

fn post(send: &mut Requests, wr: &SendWr) -> Result<(), c_int> {
    // SAFETY: the lists of the tests and what they point at are alive.
    unsafe { send.send(wr) }
}

#[test]
fn elements_follow_the_request() {
    let mut send = requests(2);
    let list = [sge(b"one"), sge(b"three")];
    let mut wr = send_wr(wr::RDMA_WRITE_WITH_IMM, &list);
    wr.remote = 0x1234;
    wr.rest[0] = 55;
    post(&mut send, &wr).unwrap();
    assert_eq!(send.queue.producer(), 0, "not shown before it is published");
    assert!(!send.publish());
    assert_eq!(send.queue.producer(), 1);
    let entry: SendEntry = send.queue.read(0, 0);
    assert_eq!(
        (entry.wr_id, entry.num_sge, entry.imm),
        (77, 2, 0x0102_0304)
    );
    assert_eq!((entry.raddr, entry.rkey, entry.flags), (0x1234, 55, 2));
    let second: Sge = send
        .queue
        .read(0, size_of::<SendEntry>() + size_of::<Sge>());
    assert_eq!(second, list[1]);
}

#[test]
fn inline_data_are_copied_at_once() {
    let mut send = requests(2);
    let mut bytes = *b"hello, world";
    let list = [sge(&bytes[..5]), sge(&bytes[5..])];
    let mut wr = send_wr(wr::SEND, &list);
    wr.send_flags |= u32::from(send_flags::INLINE);
    post(&mut send, &wr).unwrap();
    bytes.fill(0);
    let entry: SendEntry = send.queue.read(0, 0);
    assert_eq!((entry.inline_len, entry.num_sge), (12, 0));
    let copied: [u8; 12] =
        std::array::from_fn(|at| send.queue.read(0, size_of::<SendEntry>() + at));
    assert_eq!(&copied, b"hello, world");
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut send = requests(2);
    let list = [sge(b"x"); 5];
    assert_eq!(
        post(&mut send, &send_wr(wr::SEND, &list)),
        Err(libc::EINVAL)
    );
    let long = [0; 65];
    let too_long = [sge(&long)];
    let mut inline = send_wr(wr::SEND, &too_long);
    inline.send_flags |= u32::from(send_flags::INLINE);
    assert_eq!(post(&mut send, &inline), Err(libc::EINVAL));
    let overflow = [
        Sge {
            length: u32::MAX,
            ..too_long[0]
        },
        too_long[0],
    ];
    inline.sg_list = overflow.as_ptr();
    inline.num_sge = 2;
    assert_eq!(post(&mut send, &inline), Err(libc::EINVAL));
    assert!(!send.publish(), "what was refused takes no place");
    assert_eq!(post(&mut send, &send_wr(99, &[])), Err(libc::EOPNOTSUPP));
    for _ in 0..2 {
        post(&mut send, &send_wr(wr::SEND, &list[..1])).unwrap();
    }
    assert_eq!(post(&mut send, &send_wr(wr::SEND, &[])), Err(libc::ENOMEM));
    send.queue.set_consumer(1);
    post(&mut send, &send_wr(wr::SEND, &[])).unwrap();
}

#[test]
fn the_kernel_is_called_only_if_it_asks() {
    let mut send = requests(4);
    assert!(!send.publish(), "nothing was posted");
    post(&mut send, &send_wr(wr::SEND, &[])).unwrap();
    assert!(!send.publish());
    send.queue
        .flag()
        .store(1, std::sync::atomic::Ordering::Relaxed);
    post(&mut send, &send_wr(wr::SEND, &[])).unwrap();
    assert!(send.publish());
}
