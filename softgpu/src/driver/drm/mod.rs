// SPDX-License-Identifier: MIT OR Apache-2.0
//! The render node's ioctls that a compute process meets (`drm_ioctl.c`, `amdgpu_drv.c`): its own handles of buffers,
//! and mappings of parts of them in the address space that KFD acquired.
//!
//! INVARIANT: a handler sees a zero-extended struct of the driver's size, and what it leaves there is copied back for
//! commands with an out direction, also when it fails. KFD's mappings and those of GEM_VA lie in one address space
//! and never overlap; neither interface can change the other's.

mod handles;
mod query;
mod va;

use kfd::sys::*;
use rustix::io::Errno;

pub(super) use self::handles::GemTable;
use super::Call;
use super::files::OpenFile;
use super::ioctl_table::typed;
use super::process::KfdProcess;

type Handler = fn(&KfdProcess, &OpenFile, &mut [u8], &Call<'_>) -> Result<u32, Errno>;

/// A row of the driver's table: the command as the driver knows it and who answers.
struct Entry {
    command: u32,
    handler: Handler,
}

/// An entry for a command whose handler takes the struct `$args`.
macro_rules! entry {
    ($command:ident, $args:ty, $handler:expr) => {{
        const { assert!(ioc_size($command) == size_of::<$args>()) };
        Entry {
            command: $command,
            handler: |process, file, bytes, call| {
                typed::<$args>(bytes, |args| $handler(process, file, args, call))
            },
        }
    }};
}

/// The command table. What a compute process does not need (sync objects, contexts, submissions, metadata) is not in
/// it and answered like a number that no driver knows.
#[rustfmt::skip]
fn lookup(nr: u32) -> Option<Entry> {
    type P = KfdProcess;
    Some(match nr {
        0x00 => entry!(DRM_IOCTL_VERSION, drm_version, P::drm_version),
        0x09 => entry!(DRM_IOCTL_GEM_CLOSE, drm_gem_close, P::gem_close),
        0x0c => entry!(DRM_IOCTL_GET_CAP, drm_get_cap, P::drm_capability),
        0x2d => entry!(DRM_IOCTL_PRIME_HANDLE_TO_FD, drm_prime_handle, P::prime_handle_to_fd),
        0x2e => entry!(DRM_IOCTL_PRIME_FD_TO_HANDLE, drm_prime_handle, P::prime_fd_to_handle),
        0x41 => entry!(DRM_IOCTL_AMDGPU_GEM_MMAP, drm_amdgpu_gem_mmap, P::gem_mmap),
        0x45 => entry!(DRM_IOCTL_AMDGPU_INFO, drm_amdgpu_info, P::amdgpu_info),
        0x48 => entry!(DRM_IOCTL_AMDGPU_GEM_VA, drm_amdgpu_gem_va, P::gem_va),
        _ => return None,
    })
}

/// Whether the command exists on a card's primary node only (it lacks `DRM_RENDER_ALLOW`): identification,
/// authentication, global names, vertical blanks, scheduling of other clients, and all of mode setting.
fn is_for_the_primary_node(nr: u32) -> bool {
    matches!(nr, 0x01 | 0x02 | 0x05..=0x07 | 0x0a | 0x0b | 0x0d | 0x10..=0x13 | 0x1e | 0x1f)
        || matches!(nr, 0x3a..=0x3c | 0x55 | 0xa0..=0xbe)
}

/// Answers an ioctl on an open render node.
///
/// # Errors
/// `ENOTTY` for another device's command, `EINVAL` for an unknown one, `EACCES` for one of the primary node, `EFAULT`
/// when the argument is shorter than it says, else the command's own.
pub(super) fn ioctl(
    process: &KfdProcess,
    file: &OpenFile,
    cmd: u32,
    arg: &mut [u8],
    call: &Call<'_>,
) -> Result<u32, Errno> {
    if ioc_type(cmd) != DRM_IOCTL_BASE {
        return Err(Errno::NOTTY);
    }
    let nr = ioc_nr(cmd);
    if is_for_the_primary_node(nr) {
        return Err(Errno::ACCESS);
    }
    let entry = lookup(nr).ok_or(Errno::INVAL)?;
    // Unlike KFD's, this dispatcher copies in a direction only if the user's command and its own both have it.
    let directions = ioc_dir(cmd) & ioc_dir(entry.command);
    let user_bytes = ioc_size(cmd);
    let mut buffer = vec![0u8; ioc_size(entry.command).max(user_bytes)];
    if directions & 1 != 0 {
        buffer[..user_bytes].copy_from_slice(arg.get(..user_bytes).ok_or(Errno::FAULT)?);
    }
    let result = (entry.handler)(process, file, &mut buffer, call);
    if directions & 2 != 0 {
        arg.get_mut(..user_bytes).ok_or(Errno::FAULT)?.copy_from_slice(&buffer[..user_bytes]);
    }
    result
}
