// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one place where an argument struct is handed to a transport.
#![allow(unsafe_code)]

use bytemuck::Pod;
use rustix::io::Errno;

use super::{IoctlError, Kfd, Render};
use crate::sys;
use crate::transport::File;

/// Issues `cmd` once.
///
/// # Safety
/// Pointers embedded in `args` must be what the ioctl expects, for as long as it runs.
unsafe fn once<T: Pod>(file: &dyn File, cmd: u32, args: &mut T) -> Result<u32, Errno> {
    // INVARIANT: the driver accesses as many bytes as the command encodes.
    if sys::ioc_size(cmd) != size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: `args` is exactly the bytes that `cmd` encodes; the caller vouches for pointers in them.
    unsafe { file.ioctl(cmd, std::ptr::from_mut(args).cast()) }
}

/// Issues `cmd` until it is not interrupted; the render node's driver may also ask for a repetition (EAGAIN), as
/// libdrm knows.
///
/// # Safety
/// As for [`once`].
unsafe fn until_done<T: Pod>(file: &dyn File, cmd: u32, args: &mut T) -> Result<u32, IoctlError> {
    let again = sys::ioc_type(cmd) == sys::DRM_IOCTL_BASE;
    loop {
        // SAFETY: the caller's contract.
        match unsafe { once(file, cmd, args) } {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if again => {}
            outcome => return outcome.map_err(|errno| failed(file, cmd, errno)),
        }
    }
}

/// The error of `cmd` on `file`.
pub(super) fn failed(file: &dyn File, cmd: u32, errno: Errno) -> IoctlError {
    IoctlError { ioctl: sys::command_name(cmd), path: file.path().to_owned(), errno }
}

impl Kfd {
    /// Issues `cmd` once.
    ///
    /// # Safety
    /// As for [`once`].
    pub(super) unsafe fn call_once<T: Pod>(&self, cmd: u32, args: &mut T) -> Result<u32, Errno> {
        // SAFETY: the caller's contract.
        unsafe { once(self.file().as_ref(), cmd, args) }
    }

    /// Issues `cmd` until it is not interrupted.
    ///
    /// # Safety
    /// As for [`once`].
    pub(super) unsafe fn call<T: Pod>(&self, cmd: u32, args: &mut T) -> Result<u32, IoctlError> {
        // SAFETY: the caller's contract.
        unsafe { until_done(self.file().as_ref(), cmd, args) }
    }

    /// Issues a command whose argument has no pointers to this process' memory.
    pub(super) fn call_plain<T: Pod + PlainArgs>(&self, cmd: u32, args: &mut T) -> Result<u32, IoctlError> {
        // SAFETY: `PlainArgs` says that there are no pointers.
        unsafe { self.call(cmd, args) }
    }

    pub(super) fn error(&self, cmd: u32, errno: Errno) -> IoctlError {
        failed(self.file().as_ref(), cmd, errno)
    }
}

impl Render {
    /// Issues `cmd` until it is not interrupted.
    ///
    /// # Safety
    /// As for [`once`].
    pub(super) unsafe fn call<T: Pod>(&self, cmd: u32, args: &mut T) -> Result<u32, IoctlError> {
        // SAFETY: the caller's contract.
        unsafe { until_done(self.file().as_ref(), cmd, args) }
    }

    /// Issues a command whose argument has no pointers to this process' memory.
    pub(super) fn call_plain<T: Pod + PlainArgs>(&self, cmd: u32, args: &mut T) -> Result<u32, IoctlError> {
        // SAFETY: `PlainArgs` says that there are no pointers.
        unsafe { self.call(cmd, args) }
    }
}

/// Argument structs without pointers through which the driver accesses memory during the call.
///
/// # Safety
/// The driver reads and writes nothing of this process for a command with such an argument but the argument itself.
pub(super) unsafe trait PlainArgs {}

macro_rules! plain {
    ($( $name:ident ),* $(,)?) => {
        $(
            // SAFETY: no field is an address of this process that the driver follows during the call (`kfd_ioctl.h`,
            // `amdgpu_drm.h`, `drm.h`); addresses that it keeps are the GPU's.
            unsafe impl PlainArgs for sys::$name {}
        )*
    };
}

plain! {
    kfd_ioctl_get_version_args, kfd_ioctl_create_queue_args, kfd_ioctl_destroy_queue_args,
    kfd_ioctl_update_queue_args, kfd_ioctl_set_memory_policy_args, kfd_ioctl_get_clock_counters_args,
    kfd_ioctl_create_event_args, kfd_ioctl_destroy_event_args, kfd_ioctl_set_event_args,
    kfd_ioctl_reset_event_args, kfd_ioctl_set_scratch_backing_va_args, kfd_ioctl_set_trap_handler_args,
    kfd_ioctl_acquire_vm_args, kfd_ioctl_alloc_memory_of_gpu_args, kfd_ioctl_free_memory_of_gpu_args,
    kfd_ioctl_import_dmabuf_args, kfd_ioctl_export_dmabuf_args, kfd_ioctl_set_xnack_mode_args,
    kfd_ioctl_get_available_memory_args, kfd_ioctl_runtime_enable_args,
    drm_gem_close, drm_get_cap, drm_prime_handle, drm_amdgpu_gem_mmap,
}
