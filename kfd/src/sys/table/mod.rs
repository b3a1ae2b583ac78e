// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ioctl table: one row per ioctl, from which all other code takes what it needs to know of that ioctl.
//!
//! A row yields the number, the argument struct (and so the size in the number), the fields of the struct that name
//! memory or descriptors, the name that errors print, and two keys. One key is a value ([`KfdIoctl`], [`DrmIoctl`]):
//! softgpu's driver matches on it exhaustively, so that a row without a handler does not compile. The other is a type
//! that implements [`Command`]: a wrapper that names it can only pass the right struct.
//!
//! INVARIANT: offsets and sizes in a row come from its structs, never from literals.
#![allow(unsafe_code)] // Declares the unsafe traits; the table's macro implements them.

#[macro_use]
mod macros;
pub mod drm;
pub mod kfd;
mod row;

#[cfg(test)]
mod tests;

use bytemuck::Pod;

pub use self::drm::{DrmIoctl, drm_ioctl};
pub use self::kfd::{AMDKFD_IOC_SVM, KfdIoctl, kfd_ioctl};
pub use self::row::{Array, CloseOnExec, Length, Part, Place, Row};
use super::number::{AMDKFD_IOCTL_BASE, DRM_IOCTL_BASE, READ, WRITE, ioc, ioc_nr, ioc_type};
use super::svm::kfd_ioctl_svm_args;

/// An ioctl as a type.
///
/// # Safety
/// The size in `ROW.command` is that of `Args`. `ROW.parts` lists every field of `Args` through which the driver
/// accesses memory of the calling process while the ioctl runs, but for the pages that [`PlainArgs`] excepts, and every
/// field in which the driver returns a new descriptor. The driver uses no more bytes of an array than its
/// [`Length`] says ([`Length::Fixed`] excepted), and writes only those that are `writable`.
pub unsafe trait Command {
    /// The argument struct.
    type Args: Pod;
    /// The row.
    const ROW: &'static Row;
}

/// A command whose argument names no memory of the calling process.
///
/// # Safety
/// While the ioctl runs, the driver accesses no memory of the calling process but the argument itself, whatever the
/// argument's bytes are. An address that the driver only keeps, for the GPU or for a debugger, is allowed. So is
/// ALLOC_MEMORY_OF_GPU of a USERPTR object, which may exchange the named pages for others with the same bytes.
pub unsafe trait PlainArgs: Command {}

/// Any ioctl of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ioctl {
    /// One of `/dev/kfd`.
    Kfd(KfdIoctl),
    /// One of a render node.
    Drm(DrmIoctl),
}

impl Ioctl {
    /// The ioctl with this command, whatever size and direction the command's caller gave it.
    pub fn of(cmd: u32) -> Option<Self> {
        match ioc_type(cmd) {
            AMDKFD_IOCTL_BASE => KfdIoctl::from_number(ioc_nr(cmd)).map(Self::Kfd),
            DRM_IOCTL_BASE => DrmIoctl::from_number(ioc_nr(cmd)).map(Self::Drm),
            _ => None,
        }
    }

    /// The ioctl that errors print under this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|ioctl| ioctl.row().name == name)
    }

    /// Every ioctl of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        let kfd = KfdIoctl::ALL.iter().copied().map(Self::Kfd);
        kfd.chain(DrmIoctl::ALL.iter().copied().map(Self::Drm))
    }

    /// Its row.
    pub const fn row(self) -> &'static Row {
        match self {
            Self::Kfd(ioctl) => ioctl.row(),
            Self::Drm(ioctl) => ioctl.row(),
        }
    }
}

/// The name of a command, whatever size its caller's struct had; `"unknown ioctl"` if there is none.
pub fn command_name(cmd: u32) -> &'static str {
    Ioctl::of(cmd).map_or("unknown ioctl", |ioctl| ioctl.row().name)
}

/// The SVM command for `nattr` attributes, whose bytes the size field must count.
pub const fn svm_command(nattr: usize) -> u32 {
    ioc(READ | WRITE, AMDKFD_IOCTL_BASE, ioc_nr(AMDKFD_IOC_SVM), size_of::<kfd_ioctl_svm_args>() + 8 * nattr)
}
