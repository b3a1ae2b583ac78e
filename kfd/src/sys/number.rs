// SPDX-License-Identifier: MIT OR Apache-2.0
//! How an ioctl number is put together from direction, type, number and size (`asm-generic/ioctl.h`).

use queues::words::count;

pub(super) const NONE: u32 = 0;
pub(super) const WRITE: u32 = 1;
pub(super) const READ: u32 = 2;

/// The type byte of `/dev/kfd`'s ioctls.
pub const AMDKFD_IOCTL_BASE: u32 = b'K' as u32;
/// The type byte of the render node's ioctls.
pub const DRM_IOCTL_BASE: u32 = b'd' as u32;
/// The first number of amdgpu's own render node ioctls.
pub const DRM_COMMAND_BASE: u32 = 0x40;
/// First number that is no KFD ioctl on Linux 7.3.
pub const AMDKFD_COMMAND_END: u32 = 0x29;

pub(super) const fn ioc(direction: u32, base: u32, nr: u32, bytes: usize) -> u32 {
    assert!(bytes < 1 << 14 && nr < 1 << 8 && base < 1 << 8);
    direction << 30 | count(bytes) << 16 | base << 8 | nr
}

/// The number of a command (`_IOC_NR`).
pub const fn ioc_nr(cmd: u32) -> u32 {
    cmd & 0xff
}

/// The type byte of a command (`_IOC_TYPE`).
pub const fn ioc_type(cmd: u32) -> u32 {
    cmd >> 8 & 0xff
}

/// The argument bytes of a command (`_IOC_SIZE`).
pub const fn ioc_size(cmd: u32) -> usize {
    (cmd >> 16 & 0x3fff) as usize
}

/// The direction bits of a command: 1 written by the user, 2 read by the user.
pub const fn ioc_dir(cmd: u32) -> u32 {
    cmd >> 30
}
