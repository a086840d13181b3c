//! The provider's side of libibverbs: the structures, tables and functions that cross the border between rdma-core's
//! library, an application and a provider, for every private ABI from 34 to 65.
//!
//! It is not a binding for applications: nothing here links to libibverbs, and what `verbs.h` does inline are jumps
//! through the tables below; [`client`] has what this workspace's own programs need. Names are rdma-core's own, so that its
//! manual pages apply.
//!
//! # What differs, and where that is known from
//!
//! The number of the private ABI is in the names of `verbs_register_driver_NN` and of a provider's file, and in the symbol
//! version `IBVERBS_PRIVATE_NN`. It does not tell everything: structures have grown under one number, too. [`Layout`] is
//! what tells two libraries apart. All of it is from the tags of rdma-core's repository, v36.0 to v64.0, and its commit
//! 691953d8, whose `driver.h` is that of 65.0 in Debian; the test `tests/layout.rs` compares it with headers, and
//! `cargo xtask rdma-core` gets these from Debian's packages.
//!
//! | rdma-core | private ABI | since then, in what a provider sees |
//! | --- | --- | --- |
//! | 36 to 43 | 34 | the least that is served here; `verbs_sysfs_dev` was another before |
//! | 44 | 34 | `ibv_qp_ex` has `wr_atomic_write`, which moves `verbs_qp.comp_mask` |
//! | 45 to 56 | 34 | `ibv_qp_ex` has `wr_flush`, which moves it again; from 54 on `ibv_cmd_reg_dmabuf_mr` has one argument more |
//! | 57, 58 | 57 | `ibv_cmd_get_context` takes an array of descriptors |
//! | 59 to 61 | 59 | three operations, three pointers in `verbs_context`; `ibv_cmd_create_cq_ex` takes the buffer's place |
//! | 62, 63 | 59 | two more operations, one more pointer |
//! | 64 | 64 | two more operations, two more pointers; `ibv_cmd_create_qp_ex2` takes the driver's attributes |
//! | 65 | 65 | ten more operations |
//!
//! Debian has 44 in bookworm, 56 in trixie and 65 in forky.
//!
//! Where to start: [`Library::find`].

#![allow(non_camel_case_types)]

pub mod client;
mod cmd;
mod driver;
mod layout;
mod library;
mod numbers;
mod ops;
mod verbs;
mod work;

pub use cmd::*;
pub use driver::*;
pub use layout::{Layout, QP_COMP_MASK};
pub use library::{GetContext, Library, NotFound, get_context_34_fn, get_context_57_fn, verbs_log_fn};
pub use numbers::*;
pub use ops::{Op, OpsTable};
pub use verbs::*;
pub use work::*;
