// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's ABI under its C names: ioctl numbers, argument structs, flags and mmap cookies.
//!
//! Source: `uapi/linux/kfd_ioctl.h` of Linux 7.3 (interface 1.23). Older kernels accept the same layouts, since KFD
//! zero-extends and truncates argument structs. INVARIANT: the size and the offset of every field are asserted at
//! compile time, and no struct has implicit padding (all are `Pod`).
#![allow(non_camel_case_types, non_snake_case)]

#[macro_use]
mod layout;
pub mod criu;
pub mod debug;
pub mod drm;
pub mod drm_info;
pub mod event;
pub mod flags;
pub mod memory;
pub mod mmap;
pub mod number;
pub mod process;
pub mod queue;
pub mod svm;
pub mod table;

pub use criu::*;
pub use debug::*;
pub use drm::*;
pub use drm_info::*;
pub use event::*;
pub use flags::*;
pub use memory::*;
pub use mmap::*;
pub use number::*;
pub use process::*;
pub use queue::*;
pub use svm::*;
pub use table::{Ioctl, command_name, svm_command};
pub use table::{drm::*, kfd::*};
