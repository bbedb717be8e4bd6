//! The layouts of libibverbs' private structures, by family.
//!
//! `struct verbs_context_ops` is a table of function pointers that grows with rdma-core's releases,
//! and not only when the private ABI number does: releases 34, 35 and 36 share number 34, and 61
//! and 62 share 59. So tables are kept by family, chosen by number and by public functions that
//! came at the same time, and the choice is checked before use (`selfcheck`).

/// A family of releases with the same layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// rdma-core 34.
    L34,
    /// rdma-core 35.
    L35,
    /// rdma-core 36 to 58.
    L36,
    /// rdma-core 59 to 61.
    L59,
    /// rdma-core 62 and 63.
    L62,
    /// rdma-core 64.
    L64,
    /// rdma-core 65.
    L65,
}

/// All families, oldest first.
pub const FAMILIES: [Family; 7] = [
    Family::L34,
    Family::L35,
    Family::L36,
    Family::L59,
    Family::L62,
    Family::L64,
    Family::L65,
];

/// Private ABI numbers that are known, newest first.
pub const PRIVATE_ABIS: [u32; 5] = [65, 64, 59, 57, 34];

impl Family {
    /// The family of a library with this private ABI that has (or has not) these public functions.
    pub fn choose(private_abi: u32, has: impl Fn(&std::ffi::CStr) -> bool) -> Option<Self> {
        Some(match private_abi {
            34 if has(c"ibv_query_qp_data_in_order") => Self::L36,
            34 if has(c"ibv_import_dm") => Self::L35,
            34 => Self::L34,
            57 => Self::L36,
            59 if has(c"ibv_query_port_speed") => Self::L62,
            59 => Self::L59,
            64 => Self::L64,
            65 => Self::L65,
            _ => return None,
        })
    }

    /// Offset of the public `ibv_context` in `struct verbs_context`, bytes.
    pub const fn context_offset(self) -> usize {
        match self {
            Self::L34 | Self::L35 | Self::L36 => 320,
            Self::L59 => 344,
            Self::L62 => 352,
            Self::L64 | Self::L65 => 368,
        }
    }

    /// `ibv_cmd_get_context` has the argument for several descriptors (rdma-core 57).
    pub const fn get_context_takes_fds(private_abi: u32) -> bool {
        private_abi >= 57
    }

    /// The names of the operations, in order.
    pub fn operations(self) -> impl Iterator<Item = &'static str> {
        OPERATIONS
            .iter()
            .filter(move |(_, since)| *since <= self)
            .map(|(name, _)| *name)
    }

    /// The place of an operation in the table.
    pub fn slot(self, operation: &str) -> Option<usize> {
        self.operations().position(|name| name == operation)
    }
}

use Family::{L34, L35, L36, L59, L62, L64, L65};

/// The operations of the newest family, in order, each with the family that brought it.
const OPERATIONS: [(&str, Family); 93] = [
    ("advise_mr", L34),
    ("alloc_buf", L64),
    ("alloc_dm", L34),
    ("alloc_dmah", L59),
    ("alloc_mw", L34),
    ("alloc_null_mr", L34),
    ("alloc_parent_domain", L34),
    ("alloc_pd", L34),
    ("alloc_td", L34),
    ("async_event", L34),
    ("attach_counters_point_flow", L34),
    ("attach_mcast", L34),
    ("bind_mw", L34),
    ("close_xrcd", L34),
    ("cq_event", L34),
    ("create_ah", L34),
    ("create_comp_cntr", L65),
    ("create_counters", L34),
    ("create_cq", L34),
    ("create_cq_ex", L34),
    ("create_flow", L34),
    ("create_flow_action_esp", L34),
    ("create_qp", L34),
    ("create_qp_ex", L34),
    ("create_rwq_ind_table", L34),
    ("create_srq", L34),
    ("create_srq_ex", L34),
    ("create_wq", L34),
    ("dealloc_dmah", L59),
    ("dealloc_mw", L34),
    ("dealloc_pd", L34),
    ("dealloc_td", L34),
    ("dereg_mr", L34),
    ("destroy_ah", L34),
    ("destroy_comp_cntr", L65),
    ("destroy_counters", L34),
    ("destroy_cq", L34),
    ("destroy_flow", L34),
    ("destroy_flow_action", L34),
    ("destroy_qp", L34),
    ("destroy_rwq_ind_table", L34),
    ("destroy_srq", L34),
    ("destroy_wq", L34),
    ("detach_mcast", L34),
    ("dm_export_dmabuf_fd", L62),
    ("free_buf", L64),
    ("free_context", L34),
    ("free_dm", L34),
    ("get_srq_num", L34),
    ("import_dm", L35),
    ("import_mr", L34),
    ("import_pd", L34),
    ("inc_comp_cntr", L65),
    ("inc_err_comp_cntr", L65),
    ("modify_cq", L34),
    ("modify_flow_action_esp", L34),
    ("modify_qp", L34),
    ("modify_qp_rate_limit", L34),
    ("modify_srq", L34),
    ("modify_wq", L34),
    ("open_qp", L34),
    ("open_xrcd", L34),
    ("poll_cq", L34),
    ("post_recv", L34),
    ("post_send", L34),
    ("post_srq_ops", L34),
    ("post_srq_recv", L34),
    ("qp_attach_comp_cntr", L65),
    ("query_comp_cntr_caps", L65),
    ("query_device_ex", L34),
    ("query_ece", L34),
    ("query_port", L34),
    ("query_port_speed", L62),
    ("query_qp", L34),
    ("query_qp_data_in_order", L36),
    ("query_rt_values", L34),
    ("query_srq", L34),
    ("read_comp_cntr", L65),
    ("read_counters", L34),
    ("read_err_comp_cntr", L65),
    ("reg_dm_mr", L34),
    ("reg_dmabuf_mr", L34),
    ("reg_mr", L34),
    ("reg_mr_ex", L59),
    ("req_notify_cq", L34),
    ("rereg_mr", L34),
    ("resize_cq", L34),
    ("set_comp_cntr", L65),
    ("set_ece", L34),
    ("set_err_comp_cntr", L65),
    ("unimport_dm", L35),
    ("unimport_mr", L34),
    ("unimport_pd", L34),
];
