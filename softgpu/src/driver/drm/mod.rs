// SPDX-License-Identifier: MIT OR Apache-2.0
//! The render node's ioctls that a compute process uses (`drm_ioctl.c`, `amdgpu_drv.c`): handles of buffers, and
//! mappings of parts of buffers in the address space that KFD acquired.
//!
//! INVARIANT: a handler gets a zero-extended struct of the driver's size. For commands with an out direction the struct
//! is copied back even when the handler fails. Mappings of KFD and of GEM_VA lie in one address space and never
//! overlap; neither interface can change the other's mappings.

mod contexts;
mod gems;
mod handles;
mod info;
mod metadata;
mod query;
mod va;

use kfd::sys::*;
use nix::errno::Errno;

pub(super) use self::contexts::{Context, Contexts};
pub(super) use self::gems::{Gem, GemTable};
pub(super) use self::metadata::Metadata;
pub(super) use self::va::Part as GemMapping;
use super::Call;
use super::files::OpenFile;
use super::process::KfdProcess;
use super::typed::typed;

type Handler = fn(&KfdProcess, &OpenFile, &mut [u8], &Call<'_>) -> Result<u32, Errno>;

/// Names the handler of each ioctl. The ioctl table says which struct each takes; an ioctl of the table that is missing here
/// does not compile.
macro_rules! handlers {
    ($ioctl:expr; $( $key:ident => $handler:expr, )*) => {
        match $ioctl {
            $(
                DrmIoctl::$key => |process, file, bytes, call| {
                    typed::<drm_ioctl::$key>(bytes, |args| $handler(process, file, args, call))
                },
            )*
        }
    };
}

/// The handler of an ioctl. Ioctls that a compute process does not need (sync objects, submissions, allocations) are not in the
/// table, and are answered like unknown numbers.
fn handler(ioctl: DrmIoctl) -> Handler {
    type P = KfdProcess;
    handlers! { ioctl;
        Version => P::drm_version,
        GemClose => P::gem_close,
        GetCap => P::drm_capability,
        PrimeHandleToFd => P::prime_handle_to_fd,
        PrimeFdToHandle => P::prime_fd_to_handle,
        GemMmap => P::gem_mmap,
        Ctx => P::amdgpu_ctx,
        Info => P::amdgpu_info,
        GemMetadata => P::gem_metadata,
        GemVa => P::gem_va,
        GemOp => P::gem_op,
        GemListHandles => P::gem_list_handles,
    }
}

/// Whether the command exists on a card's primary node only (it lacks `DRM_RENDER_ALLOW`): identification,
/// authentication, global names, vertical blanks, scheduling of other clients, and all of mode setting and its leases.
fn is_for_the_primary_node(nr: u32) -> bool {
    matches!(nr, 0x01 | 0x02 | 0x05..=0x07 | 0x0a | 0x0b | 0x0d | 0x10..=0x13 | 0x1e | 0x1f)
        || matches!(nr, 0x3a..=0x3c | 0x55 | 0xa0..=0xbe | 0xc6..=0xc9 | 0xce | 0xd0)
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
        return Err(Errno::ENOTTY);
    }
    let nr = ioc_nr(cmd);
    if is_for_the_primary_node(nr) {
        return Err(Errno::EACCES);
    }
    let ioctl = DrmIoctl::from_number(nr).ok_or(Errno::EINVAL)?;
    if ioctl == DrmIoctl::GemListHandles && !process.kernel.lists_handles() {
        return Err(Errno::EINVAL);
    }
    let handler = handler(ioctl);
    let row = ioctl.row();
    // KFD copies by its own table. DRM copies in a direction only if the user's command and its own command both have
    // that direction.
    let directions = ioc_dir(cmd) & ioc_dir(row.command);
    let user_bytes = ioc_size(cmd);
    let mut buffer = vec![0u8; row.argument_bytes().max(user_bytes)];
    if directions & 1 != 0 {
        buffer[..user_bytes].copy_from_slice(arg.get(..user_bytes).ok_or(Errno::EFAULT)?);
    }
    let result = handler(process, file, &mut buffer, call);
    if directions & 2 != 0 {
        arg.get_mut(..user_bytes).ok_or(Errno::EFAULT)?.copy_from_slice(&buffer[..user_bytes]);
    }
    result
}
