// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wrappers of the render node's ioctls, which make GEM handles of DMABufs and map parts of them for the GPU.
//!
//! INVARIANT: a handle is valid only on the open file that gave it. The driver does not count imports: importing the
//! same memory twice gives the same handle, and one [`Render::close`] ends it. Owners that share an open file must
//! count imports themselves.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use super::call::{Issue, Slice};
use super::error::IoctlError;
use crate::ids::GemHandle;
use crate::sys::{self, drm_ioctl};
use crate::transport::{File, OpenError, Transport, render_node_path};

/// Longest driver name that is read; `amdgpu` has six letters.
const NAME_BYTES: usize = 64;

/// An open render node. A clone is the same open file.
#[derive(Clone, Debug)]
pub struct Render {
    file: Arc<dyn File>,
}

/// Which driver answers on a render node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrmVersion {
    /// Its name, `amdgpu`.
    pub name: String,
    /// Major version; amdgpu's is 3.
    pub major: i32,
    /// Minor version.
    pub minor: i32,
    /// Patch level.
    pub patch: i32,
}

/// What a GPU may do with the pages of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct VaAccess {
    /// Read.
    pub read: bool,
    /// Write.
    pub write: bool,
    /// Fetch instructions.
    pub execute: bool,
}

/// A range of GPU addresses and the part of an object behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaRange {
    /// First GPU address, whole pages.
    pub va: u64,
    /// Bytes, whole pages.
    pub bytes: u64,
    /// The object.
    pub handle: GemHandle,
    /// Byte offset of the part in the object, whole pages.
    pub offset: u64,
}

impl VaAccess {
    /// Reading and writing.
    pub const READ_WRITE: Self = Self { read: true, write: true, execute: false };

    fn flags(self) -> u32 {
        let bit = |on: bool, flag: u32| if on { flag } else { 0 };
        bit(self.read, sys::AMDGPU_VM_PAGE_READABLE)
            | bit(self.write, sys::AMDGPU_VM_PAGE_WRITEABLE)
            | bit(self.execute, sys::AMDGPU_VM_PAGE_EXECUTABLE)
    }
}

impl Render {
    /// Wraps an open file, which should be a render node.
    pub fn new(file: Arc<dyn File>) -> Self {
        Self { file }
    }

    /// Opens the render node with this minor number on `transport`.
    ///
    /// # Errors
    /// As for [`Transport::open`].
    pub fn open(transport: &dyn Transport, minor: u32) -> Result<Self, OpenError> {
        transport.open(&render_node_path(minor)).map(Self::new)
    }

    /// The open file.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// VERSION.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn version(&self) -> Result<DrmVersion, IoctlError> {
        let mut name = vec![0_u8; NAME_BYTES];
        let mut args = sys::drm_version::default();
        // Date and description are not asked for.
        self.call_with::<drm_ioctl::Version>(&mut args, &mut [Slice::Write(&mut name)])?;
        name.truncate(usize::try_from(args.name_len).unwrap_or(NAME_BYTES));
        Ok(DrmVersion {
            name: String::from_utf8_lossy(&name).into_owned(),
            major: args.version_major,
            minor: args.version_minor,
            patch: args.version_patchlevel,
        })
    }

    /// AMDGPU_INFO with DEV_INFO: ticks of the GPU clock counter in a second; none if the driver does not say.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn counter_frequency(&self) -> Result<Option<u64>, IoctlError> {
        let mut info = sys::drm_amdgpu_info_device::default();
        let mut args = sys::drm_amdgpu_info { query: sys::AMDGPU_INFO_DEV_INFO, ..Default::default() };
        let answer = Slice::Write(bytemuck::bytes_of_mut(&mut info));
        self.call_with::<drm_ioctl::Info>(&mut args, &mut [answer])?;
        Ok((info.gpu_counter_freq != 0).then(|| u64::from(info.gpu_counter_freq) * 1000))
    }

    /// GET_CAP: the value of a capability, such as [`sys::DRM_CAP_PRIME`].
    ///
    /// # Errors
    /// [`IoctlError`]; EINVAL if the driver does not know it.
    pub fn capability(&self, capability: u64) -> Result<u64, IoctlError> {
        let mut args = sys::drm_get_cap { capability, value: 0 };
        self.call_plain::<drm_ioctl::GetCap>(&mut args)?;
        Ok(args.value)
    }

    /// PRIME_FD_TO_HANDLE: the handle of a DMABuf's memory on this file. Repeated imports give the same handle.
    ///
    /// # Errors
    /// [`IoctlError`]; EBADF or EINVAL if the descriptor is no DMABuf.
    pub fn import(&self, dmabuf: BorrowedFd<'_>) -> Result<GemHandle, IoctlError> {
        let mut args = sys::drm_prime_handle { handle: 0, flags: 0, fd: dmabuf.as_raw_fd() };
        self.call_plain::<drm_ioctl::PrimeFdToHandle>(&mut args)?;
        Ok(GemHandle(args.handle))
    }

    /// PRIME_HANDLE_TO_FD: a new close-on-exec descriptor of the object's DMABuf, mappable for writing.
    ///
    /// # Errors
    /// [`IoctlError`]; ENOENT if there is no such handle.
    pub fn export(&self, handle: GemHandle) -> Result<OwnedFd, IoctlError> {
        let flags = (nix::libc::O_CLOEXEC | nix::libc::O_RDWR).cast_unsigned();
        let mut args = sys::drm_prime_handle { handle: handle.0, flags, fd: -1 };
        self.call_for_descriptor::<drm_ioctl::PrimeHandleToFd>(&mut args)
    }

    /// GEM_CLOSE: ends the handle and every mapping made with it.
    ///
    /// # Errors
    /// [`IoctlError`]; EINVAL if there is no such handle.
    pub fn close(&self, handle: GemHandle) -> Result<(), IoctlError> {
        let mut args = sys::drm_gem_close { handle: handle.0, pad: 0 };
        self.call_plain::<drm_ioctl::GemClose>(&mut args).map(drop)
    }

    /// AMDGPU_GEM_MMAP: the offset to map the object at with [`File::mmap_fixed`] of this file.
    ///
    /// # Errors
    /// [`IoctlError`]; ENOENT if there is no such handle, EPERM if the CPU cannot map it.
    pub fn mmap_offset(&self, handle: GemHandle) -> Result<u64, IoctlError> {
        let mut args = sys::drm_amdgpu_gem_mmap { addr_ptr: u64::from(handle.0) };
        self.call_plain::<drm_ioctl::GemMmap>(&mut args)?;
        Ok(args.addr_ptr)
    }

    /// AMDGPU_GEM_VA MAP: maps a part of the object where nothing is mapped, in this file's address space. That is the
    /// compute address space once ACQUIRE_VM took this file (KFD 1.15).
    ///
    /// # Errors
    /// [`IoctlError`]; ENOENT if there is no such handle, EINVAL if the range is taken or not possible.
    pub fn map(&self, range: &VaRange, access: VaAccess) -> Result<(), IoctlError> {
        self.change(sys::AMDGPU_VA_OP_MAP, range, access.flags())
    }

    /// AMDGPU_GEM_VA REPLACE: does what [`Render::clear`] and [`Render::map`] do in one step. It changes the access of
    /// mapped pages in place.
    ///
    /// # Errors
    /// [`IoctlError`], as for [`Render::map`], but the range may be taken.
    pub fn replace(&self, range: &VaRange, access: VaAccess) -> Result<(), IoctlError> {
        self.change(sys::AMDGPU_VA_OP_REPLACE, range, access.flags())
    }

    /// AMDGPU_GEM_VA UNMAP: ends the whole mapping of the object that starts at the range's address.
    ///
    /// # Errors
    /// [`IoctlError`]; ENOENT if no mapping of the object starts there.
    pub fn unmap(&self, range: &VaRange) -> Result<(), IoctlError> {
        self.change(sys::AMDGPU_VA_OP_UNMAP, range, 0)
    }

    /// AMDGPU_GEM_VA CLEAR: ends all mappings in the range that were made with handles of this file. A mapping that is
    /// partly in the range loses that part.
    ///
    /// # Errors
    /// [`IoctlError`].
    pub fn clear(&self, va: u64, bytes: u64) -> Result<(), IoctlError> {
        self.change(sys::AMDGPU_VA_OP_CLEAR, &VaRange { va, bytes, handle: GemHandle(0), offset: 0 }, 0)
    }

    fn change(&self, operation: u32, range: &VaRange, flags: u32) -> Result<(), IoctlError> {
        let mut args = sys::drm_amdgpu_gem_va {
            handle: range.handle.0,
            operation,
            flags,
            va_address: range.va,
            offset_in_bo: range.offset,
            map_size: range.bytes,
            ..Default::default()
        };
        // There are no sync objects to wait for.
        self.call_with::<drm_ioctl::GemVa>(&mut args, &mut []).map(drop)
    }
}
