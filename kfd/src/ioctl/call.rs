// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one place where an argument struct is handed to a transport.
#![allow(unsafe_code)]

use std::path::Path;

use bytemuck::Pod;
use rustix::io::Errno;

use super::{IoctlError, Kfd};
use crate::sys;

impl Kfd {
    /// Issues `cmd` once.
    ///
    /// # Safety
    /// Pointers embedded in `args` must be what the ioctl expects, for as long as it runs.
    pub(super) unsafe fn call_once<T: Pod>(&self, cmd: u32, args: &mut T) -> Result<u32, Errno> {
        // INVARIANT: the driver accesses as many bytes as the command encodes.
        if sys::ioc_size(cmd) != size_of::<T>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `args` is exactly the bytes that `cmd` encodes; the caller vouches for pointers in them.
        unsafe { self.file().ioctl(cmd, std::ptr::from_mut(args).cast()) }
    }

    /// Issues `cmd` until it is not interrupted.
    ///
    /// # Safety
    /// As for [`Kfd::call_once`].
    pub(super) unsafe fn call<T: Pod>(&self, cmd: u32, args: &mut T) -> Result<u32, IoctlError> {
        loop {
            // SAFETY: the caller's contract.
            match unsafe { self.call_once(cmd, args) } {
                Err(Errno::INTR) => {}
                outcome => return outcome.map_err(|errno| self.error(cmd, errno)),
            }
        }
    }

    /// Issues a command whose argument has no pointers to this process' memory.
    pub(super) fn call_plain<T: Pod + PlainArgs>(&self, cmd: u32, args: &mut T) -> Result<u32, IoctlError> {
        // SAFETY: `PlainArgs` says that there are no pointers.
        unsafe { self.call(cmd, args) }
    }

    pub(super) fn error(&self, cmd: u32, errno: Errno) -> IoctlError {
        let path: &Path = self.file().path();
        IoctlError { ioctl: sys::command_name(cmd), path: path.to_owned(), errno }
    }
}

/// Argument structs without pointers through which the driver accesses memory during the call.
pub(super) trait PlainArgs {}

macro_rules! plain {
    ($( $name:ident ),* $(,)?) => { $( impl PlainArgs for sys::$name {} )* };
}

plain! {
    kfd_ioctl_get_version_args, kfd_ioctl_create_queue_args, kfd_ioctl_destroy_queue_args,
    kfd_ioctl_update_queue_args, kfd_ioctl_set_memory_policy_args, kfd_ioctl_get_clock_counters_args,
    kfd_ioctl_create_event_args, kfd_ioctl_destroy_event_args, kfd_ioctl_set_event_args,
    kfd_ioctl_reset_event_args, kfd_ioctl_set_scratch_backing_va_args, kfd_ioctl_set_trap_handler_args,
    kfd_ioctl_acquire_vm_args, kfd_ioctl_alloc_memory_of_gpu_args, kfd_ioctl_free_memory_of_gpu_args,
    kfd_ioctl_import_dmabuf_args, kfd_ioctl_export_dmabuf_args, kfd_ioctl_set_xnack_mode_args,
    kfd_ioctl_get_available_memory_args, kfd_ioctl_runtime_enable_args,
}
