//! Requests put together as a program does: through the functions in `struct ibv_qp_ex`.

use super::*;
use crate::public::Qp;
use crate::queue::Queue;
use std::mem::size_of;
use tbrdma_uapi::send_flags;

const PLACES: u32 = 4;
const STRIDE: usize = size_of::<SendEntry>() + 64;

/// A QP without a device, and the kernel's view of its send queue.
struct Bench {
    qp: Box<OurQp>,
    kernel: std::mem::ManuallyDrop<Queue>,
}

impl Bench {
    fn new(qp_type: u32) -> Self {
        let queue = Queue::anonymous(PLACES, STRIDE);
        let kernel = Queue::at_for_tests(queue.base_for_tests(), PLACES, STRIDE);
        let sends = Requests::of_sends(queue, 2, 64, qp_type == QPT_UD);
        let mut bench = Self {
            qp: OurQp::for_tests(sends),
            kernel: std::mem::ManuallyDrop::new(kernel),
        };
        let qp = bench.qp();
        // SAFETY: a QP of ours.
        unsafe {
            (*qp).qp.state = state::RTS;
            (*qp).qp.qp_type = qp_type;
            fill(qp, QP_MASK_45);
        }
        bench
    }

    fn qp(&mut self) -> *mut QpEx {
        ptr::from_mut::<OurQp>(&mut self.qp).cast()
    }

    /// The functions as the header has them.
    fn wr(&mut self) -> WrFunctions {
        // SAFETY: filled in `new`.
        unsafe { (&raw const (*self.qp()).wr).read() }
    }

    fn flags(&mut self, wr_id: u64, flags: u32) {
        // SAFETY: a QP of ours.
        unsafe {
            (*self.qp()).wr_id = wr_id;
            (*self.qp()).wr_flags = flags;
        }
    }

    fn entry(&self, index: u32) -> SendEntry {
        self.kernel.read(index, 0)
    }

    fn sge(&self, index: u32, number: usize) -> Sge {
        let at = size_of::<SendEntry>() + number * size_of::<Sge>();
        self.kernel.read(index, at)
    }
}

fn sge(addr: u64) -> Sge {
    Sge {
        addr,
        length: 8,
        lkey: 5,
    }
}

#[test]
fn functions_are_where_the_header_has_them() {
    let mut bench = Bench::new(QPT_RC);
    let words = bench.qp().cast::<usize>();
    // SAFETY: within the QP.
    let word = |at: usize| unsafe { words.add(at / 8).read() };
    for (at, function) in [
        (184, atomic_cmp_swp as *const () as usize),
        (216, rdma_read as *const () as usize),
        (240, send as *const () as usize),
        (272, set_ud_addr as *const () as usize),
        (304, set_sge as *const () as usize),
        (320, start as *const () as usize),
        (328, complete as *const () as usize),
        (336, abort as *const () as usize),
        (352, no_remote as *const () as usize),
    ] {
        assert_eq!(word(at), function, "at {at}");
    }
    assert_eq!(word(360), QP_MASK_EXTENDED as usize);
    // An older libibverbs has its mask where a newer one has functions.
    let mut older = Bench::new(QPT_RC);
    let words = older.qp().cast::<usize>();
    // SAFETY: a QP of ours.
    unsafe {
        words.add(43).write_bytes(0, 3);
        fill(older.qp(), crate::abi::QP_MASK_34);
        assert_eq!(words.add(43).read(), QP_MASK_EXTENDED as usize);
        assert_eq!(words.add(44).read(), 0);
    }
}

#[test]
fn requests_are_shown_all_at_once() {
    let mut bench = Bench::new(QPT_RC);
    let (qp, wr) = (bench.qp(), bench.wr());
    // SAFETY: a QP of ours, used as a program does, here and below.
    unsafe {
        (wr.start)(qp);
        bench.flags(1, 2);
        (wr.rdma_write_imm)(qp, 77, 0x1000, 0x0a0b_0c0d);
        (wr.set_sge)(qp, 5, 0x10, 8);
        bench.flags(2, 1);
        (wr.atomic_cmp_swp)(qp, 78, 0x2000, 3, 4);
        (wr.set_sge_list)(qp, 2, [sge(0x20), sge(0x28)].as_ptr());
        bench.flags(3, 0);
        (wr.send_inv)(qp, 79);
        let bytes = *b"abcd";
        (wr.set_inline_data)(qp, bytes.as_ptr().cast_mut().cast(), 4);
        assert_eq!(bench.kernel.producer(), 0);
        assert_eq!((wr.complete)(qp), 0);
    }
    assert_eq!(bench.kernel.producer(), 3);
    let first = bench.entry(0);
    assert_eq!((first.wr_id, first.flags, first.num_sge), (1, 2, 1));
    assert_eq!(u32::from(first.opcode), wr::RDMA_WRITE_WITH_IMM);
    assert_eq!(
        (first.rkey, first.raddr, first.imm),
        (77, 0x1000, 0x0a0b_0c0d)
    );
    assert_eq!(bench.sge(0, 0), sge(0x10));
    let second = bench.entry(1);
    assert_eq!((second.compare_add, second.swap, second.num_sge), (3, 4, 2));
    assert_eq!(bench.sge(1, 1), sge(0x28));
    let third = bench.entry(2);
    assert_eq!((third.imm, third.inline_len, third.num_sge), (79, 4, 0));
    assert_eq!(third.flags, send_flags::INLINE);
}

#[test]
fn an_error_leaves_nothing_behind_and_is_told_at_the_end() {
    let mut bench = Bench::new(QPT_RC);
    let (qp, wr) = (bench.qp(), bench.wr());
    let long = [0u8; 65];
    let bytes = long.as_ptr().cast_mut().cast();
    for (case, error) in [
        ("nothing to change", libc::EINVAL),
        ("too many elements", libc::EINVAL),
        ("too long", libc::EINVAL),
        ("inline READ", libc::EINVAL),
        ("no such operation", libc::EOPNOTSUPP),
        ("too many", libc::ENOMEM),
    ] {
        // SAFETY: as above.
        unsafe {
            (wr.start)(qp);
            (wr.send)(qp);
            (wr.abort)(qp);
            (wr.start)(qp);
            match case {
                "too many elements" => {
                    (wr.send)(qp);
                    (wr.set_sge_list)(qp, 3, [sge(1), sge(2), sge(3)].as_ptr());
                }
                "too long" => {
                    (wr.send)(qp);
                    (wr.set_inline_data)(qp, bytes, long.len());
                }
                "inline READ" => {
                    (wr.rdma_read)(qp, 1, 2);
                    (wr.set_inline_data)(qp, bytes, 4);
                }
                "no such operation" => {
                    (wr.local_inv)(qp, 1);
                    (wr.set_sge)(qp, 5, 0x10, 8);
                }
                "too many" => (0..=PLACES).for_each(|_| (wr.send)(qp)),
                _ => (wr.set_sge)(qp, 5, 0x10, 8),
            }
            assert_eq!((wr.complete)(qp), error, "{case}");
        }
        assert_eq!(bench.kernel.producer(), 0, "{case}");
    }
    // SAFETY: as above.
    unsafe {
        (wr.start)(qp);
        for _ in 0..PLACES {
            (wr.send)(qp);
        }
        assert_eq!((wr.complete)(qp), 0);
        assert_eq!(bench.kernel.producer(), PLACES);
        assert_eq!((wr.complete)(qp), libc::EINVAL, "nothing was started");
        (*qp).qp.state = state::RTS - 1;
        (wr.start)(qp);
        (wr.send)(qp);
        assert_eq!((wr.complete)(qp), libc::EINVAL, "not ready to send");
    }
}

#[test]
fn datagrams_need_an_address() {
    let mut bench = Bench::new(QPT_UD);
    let (qp, wr) = (bench.qp(), bench.wr());
    let mut ah = [0u64; 16];
    ah[crate::abi::AH_SIZE / 8] = 42;
    // SAFETY: as above.
    unsafe {
        for addressed in [false, true] {
            (wr.start)(qp);
            (wr.send_imm)(qp, 9);
            (wr.set_sge)(qp, 5, 0x10, 8);
            if addressed {
                (wr.set_ud_addr)(qp, ah.as_mut_ptr().cast(), 11, 12);
            }
            let wanted = if addressed { 0 } else { libc::EINVAL };
            assert_eq!((wr.complete)(qp), wanted);
        }
        (wr.start)(qp);
        (wr.rdma_write)(qp, 1, 2);
        assert_eq!((wr.complete)(qp), libc::EOPNOTSUPP);
    }
    let entry = bench.entry(0);
    assert_eq!((entry.ah, entry.dqpn, entry.qkey), (42, 11, 12));
    assert_eq!(bench.kernel.producer(), 1);
}

#[test]
fn what_is_not_there_is_not_promised() {
    // SAFETY: zeros are null pointers and numbers.
    let mut attr: QpInitAttrEx = unsafe { std::mem::zeroed() };
    let mut pd = 0u64;
    attr.pd = ptr::from_mut(&mut pd).cast();
    attr.basic.qp_type = QPT_UC;
    attr.basic.comp_mask = qp_init::PD | qp_init::SEND_OPS_FLAGS;
    attr.send_ops_flags = send_ops::RDMA_WRITE;
    assert_eq!(check(&attr, Some(QP_MASK_45)), Ok(()));
    assert_eq!(check(&attr, None), Err(libc::EOPNOTSUPP));
    attr.send_ops_flags |= send_ops::RDMA_READ;
    assert_eq!(check(&attr, Some(QP_MASK_45)), Err(libc::EOPNOTSUPP));
    attr.basic.qp_type = QPT_RC;
    assert_eq!(check(&attr, Some(QP_MASK_45)), Ok(()));
    attr.basic.comp_mask |= qp_init::CREATE_FLAGS;
    assert_eq!(check(&attr, Some(QP_MASK_45)), Ok(()));
    attr.create_flags = 2;
    assert_eq!(check(&attr, Some(QP_MASK_45)), Err(libc::EOPNOTSUPP));
    attr.basic.comp_mask = qp_init::SEND_OPS_FLAGS;
    assert_eq!(check(&attr, Some(QP_MASK_45)), Err(libc::EINVAL));
    attr.basic.comp_mask |= 1 << 4;
    assert_eq!(check(&attr, Some(QP_MASK_45)), Err(libc::EOPNOTSUPP));
}

#[test]
fn a_qp_of_the_test_is_laid_out_as_libibverbs_has_it() {
    let mut bench = Bench::new(QPT_RC);
    let qp = bench.qp();
    // SAFETY: a QP of ours begins with libibverbs' structure.
    unsafe { assert_eq!((*qp.cast::<Qp>()).qp_type, QPT_RC) };
}
