// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fake driver's render nodes: memory exported, imported once a file, and mapped by parts.
//!
//! A DMABuf here is a memfd of the buffer's length: it shares no bytes with the buffer, which no test of the fake driver
//! looks for.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use kfd::Errno;
use kfd::sys::*;

use super::kernel::{State, memory, with};

/// Exported memory, and what render files have of it.
#[derive(Debug, Default)]
pub(super) struct Drm {
    /// Buffer handle -> its DMABuf.
    exported: BTreeMap<u64, OwnedFd>,
    /// By file and handle: the DMABuf's inode.
    handles: BTreeMap<(u64, u32), u64>,
    /// By file and address: bytes and handle.
    mappings: BTreeMap<(u64, u64), (u64, u32)>,
}

fn inode(fd: i32) -> Result<u64, Errno> {
    std::fs::metadata(format!("/proc/self/fd/{fd}")).map(|file| file.ino()).map_err(|_| Errno::BADF)
}

impl Drm {
    /// Handles and mappings of all files.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.handles.len(), self.mappings.len())
    }

    fn import(&mut self, file: u64, dmabuf: i32) -> Result<u32, Errno> {
        let memory = inode(dmabuf)?;
        let known = self.handles.iter().find(|((of, _), inode)| (*of, **inode) == (file, memory));
        if let Some((&(_, handle), _)) = known {
            return Ok(handle);
        }
        let handle = (1..).find(|handle| !self.handles.contains_key(&(file, *handle))).ok_or(Errno::NOSPC)?;
        self.handles.insert((file, handle), memory);
        Ok(handle)
    }

    fn change(&mut self, file: u64, a: &drm_amdgpu_gem_va) -> Result<u32, Errno> {
        let (va, bytes, handle) = (a.va_address, a.map_size, a.handle);
        if !self.handles.contains_key(&(file, handle)) {
            return Err(Errno::NOENT);
        }
        let ours = self.mappings.range((file, 0)..(file, u64::MAX));
        let hit: Vec<_> = ours
            .filter(|((_, start), (len, _))| *start < va + bytes && va < start + len)
            .map(|((_, start), (len, handle))| (*start, *len, *handle))
            .collect();
        match a.operation {
            AMDGPU_VA_OP_MAP if !hit.is_empty() => return Err(Errno::INVAL),
            AMDGPU_VA_OP_MAP => {}
            AMDGPU_VA_OP_REPLACE => {
                for (start, len, of) in hit {
                    self.mappings.remove(&(file, start));
                    if start < va {
                        self.mappings.insert((file, start), (va - start, of));
                    }
                    if start + len > va + bytes {
                        self.mappings.insert((file, va + bytes), (start + len - va - bytes, of));
                    }
                }
            }
            AMDGPU_VA_OP_UNMAP => {
                // The driver ends what starts there, however long; here a wrong length is a wrong entry.
                let found = self.mappings.get(&(file, va)).filter(|found| **found == (bytes, handle));
                found.ok_or(Errno::NOENT)?;
                self.mappings.remove(&(file, va));
                return Ok(0);
            }
            _ => return Err(Errno::INVAL),
        }
        self.mappings.insert((file, va), (bytes, handle));
        Ok(0)
    }
}

/// An ioctl of a render node; `None` for others.
pub(super) fn ioctl(state: &mut State, file: u64, cmd: u32, arg: &mut [u8]) -> Option<Result<u32, Errno>> {
    let drm = &mut state.drm;
    Some(match cmd {
        DRM_IOCTL_PRIME_FD_TO_HANDLE => with(arg, |a: &mut drm_prime_handle| {
            a.handle = drm.import(file, a.fd)?;
            Ok(0)
        }),
        DRM_IOCTL_GEM_CLOSE => with(arg, |a: &mut drm_gem_close| {
            drm.handles.remove(&(file, a.handle)).ok_or(Errno::INVAL)?;
            drm.mappings.retain(|(of, _), (_, handle)| (*of, *handle) != (file, a.handle));
            Ok(0)
        }),
        DRM_IOCTL_AMDGPU_GEM_VA => with(arg, |a: &mut drm_amdgpu_gem_va| drm.change(file, a)),
        AMDKFD_IOC_EXPORT_DMABUF => with(arg, |a: &mut kfd_ioctl_export_dmabuf_args| {
            let bytes = state.bos.get(&a.handle).ok_or(Errno::INVAL)?.bytes;
            let made = drm.exported.entry(a.handle).or_insert_with(|| memory("fake-dmabuf", bytes));
            // SAFETY: the descriptor lives for as long as it is in the table.
            let made = unsafe { BorrowedFd::borrow_raw(made.as_raw_fd()) };
            let given = rustix::io::fcntl_dupfd_cloexec(made, 0).map_err(|_| Errno::MFILE)?;
            a.dmabuf_fd = given.into_raw_fd().cast_unsigned();
            Ok(0)
        }),
        _ => return None,
    })
}

/// A buffer object is gone.
pub(super) fn forget(state: &mut State, handle: u64) {
    state.drm.exported.remove(&handle);
}
