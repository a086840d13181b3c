//! What opens and what is made, and what is not.

use std::ptr;

use rdma_core_sys::*;

use super::{PollCq, World, attr};
use crate::fake::{Open, Quirks, RING_ABI, library, odd_library};
use crate::{context, cq, mr, qp};

#[test]
fn a_context_opens_with_every_layout_and_closes() {
    for layout in Layout::ALL {
        let open = Open::new(library(layout));
        let poll: PollCq = cq::poll_cq;
        assert_eq!(open.ops().poll_cq.cast_const(), poll as *const _);
    }
}

#[test]
fn a_library_of_another_layout_than_it_says_is_refused_before_it_does_harm() {
    for (layout, real) in [
        // Another size of `verbs_context`.
        (Layout::Abi57, Layout::Abi59),
        (Layout::Abi65, Layout::Abi59Dmabuf),
        // The same, but another table.
        (Layout::Abi64, Layout::Abi65),
        (Layout::Abi65, Layout::Abi64),
    ] {
        let library = odd_library(Quirks { layout, real });
        // SAFETY: the fake does not look at the device.
        let refused = unsafe { context::open(library, ptr::null_mut(), -1) };
        assert_eq!(refused, Err(libc::ENOSYS), "{layout:?}, really {real:?}");
    }
}

#[test]
fn a_module_of_another_release_is_refused() {
    RING_ABI.set(99);
    // SAFETY: the fake does not look at the device.
    let refused = unsafe { context::open(library(Layout::Abi34), ptr::null_mut(), -1) };
    assert_eq!(refused, Err(libc::EPROTONOSUPPORT));
}

#[test]
fn what_cannot_be_made_is_refused() {
    let world = World::new(IBV_QPT_RC);
    let refused = |change: &dyn Fn(&mut ibv_qp_init_attr)| {
        let mut attr = attr(world.cq, IBV_QPT_RC);
        change(&mut attr);
        let asked = attr.cap;
        // SAFETY: a protection domain of ours.
        assert!(unsafe { qp::create_qp(world.pd, &mut attr) }.is_null());
        assert_eq!(attr.cap, asked);
        crate::errno::last()
    };
    assert_eq!(refused(&|attr| attr.qp_type = 8), libc::EOPNOTSUPP);
    assert_eq!(refused(&|attr| attr.cap.max_send_sge = 17), libc::EINVAL);
    assert_eq!(refused(&|attr| attr.cap.max_recv_sge = 17), libc::EINVAL);
    assert_eq!(refused(&|attr| attr.cap.max_inline_data = 257), libc::EINVAL);
    assert_eq!(refused(&|attr| attr.recv_cq = ptr::null_mut()), libc::EINVAL);
    // SAFETY: as above.
    unsafe {
        assert!(mr::reg_dmabuf_mr(world.pd, 0, 1, 0, 0, 0).is_null());
        assert_eq!(crate::errno::last(), libc::EOPNOTSUPP);
        assert!(mr::reg_mr(world.pd, ptr::null_mut(), 1, 0, 0).is_null());
        assert_eq!(crate::errno::last(), libc::EFAULT);
    }
}
