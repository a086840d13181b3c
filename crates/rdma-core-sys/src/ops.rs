//! The table of a provider's operations, `verbs_context_ops`: pointers in the order of their names, of which each release
//! has more than the one before, in the midst of the others.

use core::ffi::c_void;
use core::ptr;

use crate::Layout;

macro_rules! operations {
    ($($op:ident $name:ident $since:ident;)*) => {
        /// An operation a provider may have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are rdma-core's")]
        pub enum Op {
            $($op,)*
        }

        impl Op {
            /// All of them, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$op,)*];

            /// Its name in C.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$op => stringify!($name),)*
                }
            }

            /// The first layout that has it.
            pub const fn since(self) -> Layout {
                match self {
                    $(Self::$op => Layout::$since,)*
                }
            }
        }
    };
}

operations! {
    AdviseMr advise_mr Abi34;
    AllocBuf alloc_buf Abi64;
    AllocDm alloc_dm Abi34;
    AllocDmah alloc_dmah Abi59;
    AllocMw alloc_mw Abi34;
    AllocNullMr alloc_null_mr Abi34;
    AllocParentDomain alloc_parent_domain Abi34;
    AllocPd alloc_pd Abi34;
    AllocTd alloc_td Abi34;
    AsyncEvent async_event Abi34;
    AttachCountersPointFlow attach_counters_point_flow Abi34;
    AttachMcast attach_mcast Abi34;
    BindMw bind_mw Abi34;
    CloseXrcd close_xrcd Abi34;
    CqEvent cq_event Abi34;
    CreateAh create_ah Abi34;
    CreateCompCntr create_comp_cntr Abi65;
    CreateCounters create_counters Abi34;
    CreateCq create_cq Abi34;
    CreateCqEx create_cq_ex Abi34;
    CreateFlow create_flow Abi34;
    CreateFlowActionEsp create_flow_action_esp Abi34;
    CreateQp create_qp Abi34;
    CreateQpEx create_qp_ex Abi34;
    CreateRwqIndTable create_rwq_ind_table Abi34;
    CreateSrq create_srq Abi34;
    CreateSrqEx create_srq_ex Abi34;
    CreateWq create_wq Abi34;
    DeallocDmah dealloc_dmah Abi59;
    DeallocMw dealloc_mw Abi34;
    DeallocPd dealloc_pd Abi34;
    DeallocTd dealloc_td Abi34;
    DeregMr dereg_mr Abi34;
    DestroyAh destroy_ah Abi34;
    DestroyCompCntr destroy_comp_cntr Abi65;
    DestroyCounters destroy_counters Abi34;
    DestroyCq destroy_cq Abi34;
    DestroyFlow destroy_flow Abi34;
    DestroyFlowAction destroy_flow_action Abi34;
    DestroyQp destroy_qp Abi34;
    DestroyRwqIndTable destroy_rwq_ind_table Abi34;
    DestroySrq destroy_srq Abi34;
    DestroyWq destroy_wq Abi34;
    DetachMcast detach_mcast Abi34;
    DmExportDmabufFd dm_export_dmabuf_fd Abi59Dmabuf;
    FreeBuf free_buf Abi64;
    FreeContext free_context Abi34;
    FreeDm free_dm Abi34;
    GetSrqNum get_srq_num Abi34;
    ImportDm import_dm Abi34;
    ImportMr import_mr Abi34;
    ImportPd import_pd Abi34;
    IncCompCntr inc_comp_cntr Abi65;
    IncErrCompCntr inc_err_comp_cntr Abi65;
    ModifyCq modify_cq Abi34;
    ModifyFlowActionEsp modify_flow_action_esp Abi34;
    ModifyQp modify_qp Abi34;
    ModifyQpRateLimit modify_qp_rate_limit Abi34;
    ModifySrq modify_srq Abi34;
    ModifyWq modify_wq Abi34;
    OpenQp open_qp Abi34;
    OpenXrcd open_xrcd Abi34;
    PollCq poll_cq Abi34;
    PostRecv post_recv Abi34;
    PostSend post_send Abi34;
    PostSrqOps post_srq_ops Abi34;
    PostSrqRecv post_srq_recv Abi34;
    QpAttachCompCntr qp_attach_comp_cntr Abi65;
    QueryCompCntrCaps query_comp_cntr_caps Abi65;
    QueryDeviceEx query_device_ex Abi34;
    QueryEce query_ece Abi34;
    QueryPort query_port Abi34;
    QueryPortSpeed query_port_speed Abi59Dmabuf;
    QueryQp query_qp Abi34;
    QueryQpDataInOrder query_qp_data_in_order Abi34;
    QueryRtValues query_rt_values Abi34;
    QuerySrq query_srq Abi34;
    ReadCompCntr read_comp_cntr Abi65;
    ReadCounters read_counters Abi34;
    ReadErrCompCntr read_err_comp_cntr Abi65;
    RegDmMr reg_dm_mr Abi34;
    RegDmabufMr reg_dmabuf_mr Abi34;
    RegMr reg_mr Abi34;
    RegMrEx reg_mr_ex Abi59;
    ReqNotifyCq req_notify_cq Abi34;
    ReregMr rereg_mr Abi34;
    ResizeCq resize_cq Abi34;
    SetCompCntr set_comp_cntr Abi65;
    SetEce set_ece Abi34;
    SetErrCompCntr set_err_comp_cntr Abi65;
    UnimportDm unimport_dm Abi34;
    UnimportMr unimport_mr Abi34;
    UnimportPd unimport_pd Abi34;
}

impl Op {
    /// Its place in the table of `layout`, if it is there.
    pub const fn index(self, layout: Layout) -> Option<usize> {
        if !self.is_in(layout) {
            return None;
        }
        let mut index = 0;
        let mut at = 0;
        while at < Self::ALL.len() {
            let op = Self::ALL[at];
            if op as usize == self as usize {
                break;
            }
            if op.is_in(layout) {
                index += 1;
            }
            at += 1;
        }
        Some(index)
    }

    const fn is_in(self, layout: Layout) -> bool {
        self.since() as usize <= layout as usize
    }

    /// Operations of `layout`.
    pub const fn count(layout: Layout) -> usize {
        let mut count = 0;
        let mut at = 0;
        while at < Self::ALL.len() {
            if Self::ALL[at].is_in(layout) {
                count += 1;
            }
            at += 1;
        }
        count
    }
}

/// `verbs_context_ops` of a layout, to be given to `verbs_set_ops`, which copies what is not null.
#[derive(Clone, Debug)]
pub struct OpsTable {
    layout: Layout,
    slots: [*const c_void; Op::ALL.len()],
}

// SAFETY: the pointers are to functions.
unsafe impl Send for OpsTable {}
// SAFETY: as above.
unsafe impl Sync for OpsTable {}

impl OpsTable {
    /// Without operations.
    pub const fn new(layout: Layout) -> Self {
        Self {
            layout,
            slots: [ptr::null(); Op::ALL.len()],
        }
    }

    /// Puts `function` where the layout has `op`; one that it has not is left out.
    ///
    /// # Safety
    /// `function` is null or a function of the type that `libibverbs/driver.h` has for `op`.
    pub unsafe fn set(&mut self, op: Op, function: *const c_void) {
        let slot = op.index(self.layout).and_then(|index| self.slots.get_mut(index));
        if let Some(slot) = slot {
            *slot = function;
        }
    }

    /// What stands at the place of `op`; null if the layout has none.
    pub fn get(&self, op: Op) -> *const c_void {
        let slot = op.index(self.layout).and_then(|index| self.slots.get(index));
        slot.copied().unwrap_or(ptr::null())
    }

    /// The table as C knows it. It has at least as many slots as the library looks at.
    pub fn as_ptr(&self) -> *const c_void {
        self.slots.as_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_stand_in_the_order_of_their_names() {
        let names: Vec<&str> = Op::ALL.iter().map(|op| op.name()).collect();
        assert!(names.is_sorted());
    }

    #[test]
    fn each_layout_has_as_many_as_its_header() {
        let counts: Vec<usize> = Layout::ALL.into_iter().map(Op::count).collect();
        assert_eq!(counts, [76, 76, 79, 81, 83, 93]);
    }

    #[test]
    fn an_operation_moves_by_what_came_in_front_of_it() {
        let places: Vec<_> = Layout::ALL.map(|layout| Op::PollCq.index(layout)).to_vec();
        // alloc_dmah and dealloc_dmah; dm_export_dmabuf_fd; alloc_buf and free_buf; four of completion counters.
        assert_eq!(places, [53, 53, 55, 56, 58, 62].map(Some));
        assert_eq!(Op::AllocBuf.index(Layout::Abi59Dmabuf), None);
    }

    #[test]
    fn a_table_leaves_out_what_its_layout_has_not() {
        let mut table = OpsTable::new(Layout::Abi34);
        let here = ptr::from_ref(&table).cast();
        // SAFETY: nobody calls it.
        unsafe {
            table.set(Op::AllocBuf, here);
            table.set(Op::PollCq, here);
        }
        assert!(table.get(Op::AllocBuf).is_null());
        assert_eq!(table.get(Op::PollCq), here);
        let filled = table.slots.iter().filter(|slot| !slot.is_null()).count();
        assert_eq!(filled, 1);
    }
}
