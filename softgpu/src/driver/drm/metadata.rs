// SPDX-License-Identifier: MIT OR Apache-2.0
//! What clients and the driver keep with a memory: AMDGPU_GEM_METADATA, and what AMDGPU_GEM_OP and
//! GEM_LIST_HANDLES say of how it was made
//! (`amdgpu_gem.c`, `amdgpu_object.c`).
//!
//! INVARIANT: the metadata belong to the memory and not to a handle, so that whoever imports its DMABuf finds them, in any
//! process: they are an extended attribute of the memfd. The driver does not interpret them.

use std::os::fd::{AsFd, BorrowedFd};

use kfd::linux;
use kfd::sys::*;
use nix::errno::Errno;
use queues::words::count;

use super::super::bo::{Backing, Domain};
use super::super::files::{Node, OpenFile};
use super::super::process::KfdProcess;
use super::super::{Call, PAGE};

const ATTRIBUTE: &str = "user.softgpu.metadata";
/// Most bytes of data.
const MOST: usize = 256;
/// Bytes of tiling and flags, which come first.
const HEAD: usize = 16;

/// The metadata of a memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Metadata {
    tiling: u64,
    flags: u64,
    pub(in super::super) data: Vec<u8>,
}

impl Metadata {
    /// Those of the memory behind a descriptor; empty if nobody set any.
    ///
    /// # Errors
    /// The errno of fgetxattr(2).
    pub(in super::super) fn of(memory: BorrowedFd<'_>) -> Result<Self, Errno> {
        let bytes = Self::bytes_of(memory)?;
        let word = |at| {
            bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
        };
        let data = bytes.get(HEAD..).unwrap_or_default().to_vec();
        Ok(Self { tiling: word(0), flags: word(8), data })
    }

    /// The attribute of a memory as it is; empty if nobody set any.
    ///
    /// # Errors
    /// The errno of fgetxattr(2).
    pub(in super::super) fn bytes_of(memory: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
        Ok(linux::attribute(memory, ATTRIBUTE, HEAD + MOST)?.unwrap_or_default())
    }

    /// Sets what [`Metadata::bytes_of`] answered.
    ///
    /// # Errors
    /// `EINVAL` for more than there can be; as [`Metadata::keep`].
    pub(in super::super) fn set_bytes(memory: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.len() > HEAD + MOST {
            return Err(Errno::EINVAL);
        }
        linux::set_attribute(memory, ATTRIBUTE, bytes).map_err(|_| Errno::ENOMEM)
    }

    /// Keeps them with the memory.
    ///
    /// # Errors
    /// `ENOMEM` where the kernel keeps no attributes of memfds (before Linux 6.6).
    fn keep(&self, memory: BorrowedFd<'_>) -> Result<(), Errno> {
        let bytes = [&self.tiling.to_le_bytes()[..], &self.flags.to_le_bytes(), &self.data].concat();
        Self::set_bytes(memory, &bytes)
    }
}

impl KfdProcess {
    /// AMDGPU_GEM_METADATA. The kernel does nothing for operations that it does not know.
    pub(super) fn gem_metadata(
        &self,
        file: &OpenFile,
        args: &mut drm_amdgpu_gem_metadata,
        _call: &Call<'_>,
    ) -> Result<(), Errno> {
        let state = self.state.lock();
        let memory = state.gem(file, args.handle)?.backing.fd.as_fd();
        let mut kept = Metadata::of(memory)?;
        match args.op {
            AMDGPU_GEM_METADATA_OP_GET_METADATA => {
                args.tiling_info = kept.tiling;
                args.flags = kept.flags;
                args.data_size_bytes = count(kept.data.len());
                bytemuck::cast_slice_mut(&mut args.data)[..kept.data.len()].copy_from_slice(&kept.data);
                Ok(())
            }
            AMDGPU_GEM_METADATA_OP_SET_METADATA => {
                let data = bytemuck::cast_slice(&args.data).get(..args.data_size_bytes as usize);
                kept.data = data.ok_or(Errno::EINVAL)?.to_vec();
                kept.tiling = args.tiling_info;
                // Without data the kernel leaves the flags as they were.
                if !kept.data.is_empty() {
                    kept.flags = args.flags;
                }
                kept.keep(memory)
            }
            _ => Ok(()),
        }
    }

    /// AMDGPU_GEM_OP: what the object was made with. Where it shall be placed is not asked here, since nothing is moved, and
    /// where it is mapped is a question that kernels before 6.18 do not know.
    pub(super) fn gem_op(
        &self,
        file: &OpenFile,
        args: &mut drm_amdgpu_gem_op,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let state = self.state.lock();
        let backing = &state.gem(file, args.handle)?.backing;
        if args.op != AMDGPU_GEM_OP_GET_GEM_CREATE_INFO {
            return Err(Errno::EINVAL);
        }
        let (domains, domain_flags) = made_with(backing.domain);
        let info =
            drm_amdgpu_gem_create_in { bo_size: backing.bytes, alignment: PAGE, domains, domain_flags };
        call.memory.write(args.value, bytemuck::bytes_of(&info)).map_err(|_| Errno::EFAULT)
    }

    /// AMDGPU_GEM_LIST_HANDLES: every handle of the file, if there is room for all; else only how many there are.
    pub(super) fn gem_list_handles(
        &self,
        file: &OpenFile,
        args: &mut drm_amdgpu_gem_list_handles,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let Node::Render { gpu } = file.node() else { return Err(Errno::EINVAL) };
        let state = self.state.lock();
        let described = |(handle, backing): (u32, &Backing)| {
            let (preferred_domains, alloc_flags) = made_with(backing.domain);
            drm_amdgpu_gem_list_handles_entry {
                gem_handle: handle,
                // The memory of the GPU itself is no import, whoever exported it.
                flags: u32::from(backing.gpu != gpu),
                size: backing.bytes,
                preferred_domains,
                alloc_flags,
                // In pages, whatever the header says.
                alignment: 1,
            }
        };
        let entries: Vec<_> = state.handles(file).map(described).collect();
        let room = std::mem::replace(&mut args.num_entries, count(entries.len()));
        if room < args.num_entries || entries.is_empty() {
            return Ok(());
        }
        call.memory.write(args.entries, bytemuck::cast_slice(&entries)).map_err(|_| Errno::EFAULT)
    }
}

/// The domains that an object prefers and the flags that KFD gave it. Flags of coherence are not kept with the memory.
fn made_with(domain: Domain) -> (u64, u64) {
    match domain {
        Domain::Vram { public: false } => (AMDGPU_GEM_DOMAIN_VRAM, AMDGPU_GEM_CREATE_VRAM_WIPE_ON_RELEASE),
        Domain::Vram { public: true } => (
            AMDGPU_GEM_DOMAIN_VRAM,
            AMDGPU_GEM_CREATE_VRAM_WIPE_ON_RELEASE | AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED,
        ),
        Domain::Gtt | Domain::Userptr | Domain::Doorbell | Domain::Mmio => (AMDGPU_GEM_DOMAIN_GTT, 0),
    }
}
