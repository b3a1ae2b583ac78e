// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of an ioctl's argument as its struct.

use kfd::sys::table::Command;
use nix::errno::Errno;

/// Runs a handler on the argument struct at the start of `bytes` and stores the struct again, also when the handler
/// fails.
pub(super) fn typed<C: Command>(
    bytes: &mut [u8],
    handler: impl FnOnce(&mut C::Args) -> Result<(), Errno>,
) -> Result<u32, Errno> {
    let bytes = bytes.get_mut(..size_of::<C::Args>()).ok_or(Errno::EFAULT)?;
    let mut args: C::Args = bytemuck::pod_read_unaligned(bytes);
    let result = handler(&mut args);
    bytes.copy_from_slice(bytemuck::bytes_of(&args));
    result.map(|()| 0)
}
