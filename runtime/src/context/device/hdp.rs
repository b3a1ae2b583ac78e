// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of registers by which the host flushes an agent's host data path (HDP).
//!
//! What the host stores into an agent's memory through the PCI aperture is posted in the HDP, and an agent may read its
//! memory before it is there. The driver lets processes flush it by a page with two registers
//! (`kfd_ioctl.h`: `KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP`, `KFD_MMIO_REMAP_HDP_MEM_FLUSH_CNTL` at 0). libhsakmt keeps a buffer
//! object for it (`fmm.c:map_mmio`), which matters to agents that map the page; for the host the mapping is enough, since
//! `kfd_chardev.c:kfd_mmio_mmap` looks at the GPU alone.
//!
//! INVARIANT: the page is mapped for as long as the value lives, and lies outside the window, so that nothing of it is saved.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use kfd::ioctl::AllocMemory;
use kfd::sys::*;
use kfd::{Errno, IoctlError, ProtFlags};
use nix::sys::mman::{MapFlags, mmap_anonymous, munmap};

use crate::context::agent::info::AgentInfo;
use crate::context::device::{Device, DeviceNode, ioctl};
use crate::context::error::DeviceError;
use crate::context::memory::host_writes::drain_stores;

/// What libhsakmt asks for.
const FLAGS: u32 =
    KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE | KFD_IOC_ALLOC_MEM_FLAGS_COHERENT;
const XGMI: u32 = 11;

/// An agent's registers for the host data path.
#[derive(Debug)]
pub struct HdpPage {
    at: NonNull<u8>,
}

// SAFETY: it is the address of registers that any thread may access.
unsafe impl Send for HdpPage {}
// SAFETY: as above; a flush by one thread is a flush for all.
unsafe impl Sync for HdpPage {}

/// Whether host stores into an agent's memory are posted in an HDP: the CPU sees the memory, and through the PCI aperture.
pub fn is_needed(info: &AgentInfo) -> bool {
    info.is_visible() && !is_coherent(info)
}

/// Whether the CPU reaches an agent's memory as its own, over XGMI or because it is its own
/// (`amdgpu_device.c:amdgpu_device_flush_hdp` leaves out the same two).
pub fn is_coherent(info: &AgentInfo) -> bool {
    let node = info.node();
    node.properties.cpu_cores_count > 0
        || node.io_links.iter().any(|link| link.kind == XGMI && link.node_to == 0)
}

impl HdpPage {
    /// Flushes: what any thread has stored and drained before is in the agent's memory when this returns.
    pub fn flush(&self) {
        drain_stores();
        let register = self.at.as_ptr().cast::<u32>();
        // SAFETY: the page is mapped, by the type's invariant, and a register is only accessed as a whole.
        unsafe { register.write_volatile(1) };
        // The store is posted too; a read of the device comes back behind it.
        // SAFETY: as above.
        unsafe { register.read_volatile() };
    }

    /// Reserves an address for it.
    fn reserve() -> Result<Self, Errno> {
        let length = NonZeroUsize::new(MMIO_REMAP_BYTES).ok_or(Errno::EINVAL)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping where the kernel chooses replaces nothing.
        let at = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_NONE, flags) }?;
        Ok(HdpPage { at: at.cast() })
    }

    /// What the register holds, which is set to 0: of the software device, whose page is memory, 1 behind a flush.
    #[cfg(test)]
    pub fn take(&self) -> u32 {
        let register = self.at.as_ptr().cast::<u32>();
        // SAFETY: as in `flush`.
        let found = unsafe { register.read_volatile() };
        // SAFETY: as above.
        unsafe { register.write_volatile(0) };
        found
    }
}

impl Drop for HdpPage {
    fn drop(&mut self) {
        // SAFETY: the value's own mapping, which nobody else knows; failing leaves an unused page.
        let _ = unsafe { munmap(self.at.cast(), MMIO_REMAP_BYTES) };
    }
}

impl Device {
    /// The registers of every agent, in the agents' order; none of those that need no flush, or whose driver has none.
    ///
    /// # Errors
    /// [`DeviceError`]; nothing is mapped then.
    pub fn hdp_pages(&self) -> Result<Vec<Option<HdpPage>>, DeviceError> {
        self.nodes()
            .iter()
            .map(|node| if is_needed(&node.info) { self.hdp_page(node) } else { Ok(None) })
            .collect()
    }

    fn hdp_page(&self, node: &DeviceNode) -> Result<Option<HdpPage>, DeviceError> {
        let (va, offset) = (0, KFD_MMAP_TYPE_MMIO | kfd_mmap_gpu_id(node.gpu.0));
        let mmap = |va| {
            let path = self.kfd().file().path().to_owned();
            move |errno| DeviceError::Mmap { path, va, bytes: MMIO_REMAP_BYTES as u64, offset, errno }
        };
        let page = HdpPage::reserve().map_err(mmap(va))?;
        let va = page.at.as_ptr().addr() as u64;
        if !self.has_hdp_page(node, va)? {
            let agent = node.info.uuid();
            tracing::warn!(
                target: "device",
                agent, "the driver has no HDP registers for processes: packets may see memory before the host's writes to it"
            );
            return Ok(None);
        }
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the reservation of `page`, which nothing relies on.
        unsafe { self.kfd().file().mmap_fixed(page.at.as_ptr(), MMIO_REMAP_BYTES, access, offset) }
            .map_err(mmap(va))?;
        Ok(Some(page))
    }

    /// Whether the driver has the page: ALLOC says so (ENOMEM where the bus address is not known), mmap does not look.
    fn has_hdp_page(&self, node: &DeviceNode, va: u64) -> Result<bool, DeviceError> {
        let wanted =
            AllocMemory { gpu: node.gpu, va, bytes: MMIO_REMAP_BYTES as u64, flags: FLAGS, user_address: 0 };
        let is_absent = |error: &IoctlError| error.errno == Errno::ENOMEM;
        // ENOMEM is also what a driver says that is short of memory for a moment.
        let made = match self.kfd().alloc_memory(&wanted) {
            Err(error) if is_absent(&error) => self.kfd().alloc_memory(&wanted),
            made => made,
        };
        let allocation = match made {
            Err(error) if is_absent(&error) => return Ok(false),
            made => made.map_err(ioctl("the HDP registers"))?,
        };
        let free = || self.kfd().free_memory(allocation.handle);
        free().or_else(|_| free()).map_err(ioctl("the end of the HDP registers' object"))?;
        Ok(true)
    }
}
