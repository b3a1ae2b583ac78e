// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffer objects: allocated, mapped to agents and to the CPU, and back.
//!
//! INVARIANT: on success and on failure alike the entry says what the driver has, and the addresses of an entry that
//! is not CPU-mapped hold the reservation.
#![allow(unsafe_code)]

use kfd::ioctl::AllocMemory;
use kfd::{MemoryHandle, ProtFlags};
use queues::words::size;

use crate::context::device::{Device, ioctl};
use crate::context::error::DeviceError;
use crate::context::memory::guard;
use crate::context::memory::window::{self, READ_WRITE};
use crate::context::registry::state::{AgentIndex, BoKind, BoRole, BoState};
use crate::context::registry::{Bo, KernelBo};

/// `KFD_IOC_ALLOC_MEM_FLAGS_*` for each use of memory.
pub mod flags {
    use kfd::sys::*;

    /// Device memory that the CPU sees (large BAR).
    pub const VRAM_VISIBLE: u32 = VRAM_HIDDEN | KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC;
    /// Device memory that it does not.
    pub const VRAM_HIDDEN: u32 = KFD_IOC_ALLOC_MEM_FLAGS_VRAM
        | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
        | KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE;
    /// Device memory that the CPU sees and whose writes other agents see while a kernel runs (ROCr's fine-grained pool:
    /// `fmm_allocate_device` asks for COHERENT where the coarse one does not).
    pub const VRAM_FINE: u32 = VRAM_VISIBLE | KFD_IOC_ALLOC_MEM_FLAGS_COHERENT;
    /// The same where the CPU does not see it.
    pub const VRAM_FINE_HIDDEN: u32 = VRAM_HIDDEN | KFD_IOC_ALLOC_MEM_FLAGS_COHERENT;
    /// Memory that the process had before, as ROCr locks it: coherent.
    pub const USERPTR: u32 = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR
        | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
        | KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE
        | KFD_IOC_ALLOC_MEM_FLAGS_COHERENT;
    /// System memory, coherent and uncached on the GPU, as signals, kernel arguments and rings need it.
    pub const GTT: u32 = KFD_IOC_ALLOC_MEM_FLAGS_GTT
        | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
        | KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE
        | KFD_IOC_ALLOC_MEM_FLAGS_COHERENT
        | KFD_IOC_ALLOC_MEM_FLAGS_UNCACHED;
    /// What the firmware itself works in, with the execute permission that ROCr gives it.
    pub const QUEUE: u32 = GTT | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;
    /// The doorbells of the process, as libhsakmt asks for them (`fmm.c`, `hsakmt_fmm_allocate_doorbell`).
    pub const DOORBELLS: u32 = KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL
        | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE
        | KFD_IOC_ALLOC_MEM_FLAGS_COHERENT;
    /// Code objects: globals are written, code is fetched.
    pub const EXECUTABLE: u32 = KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE;
}

impl Device {
    /// Makes the object of an entry: allocates it, maps it to the agents it names and, if it is to be, for the CPU.
    /// A doorbell slice is mapped for the CPU by [`Device::create_queue`] instead.
    ///
    /// # Errors
    /// [`DeviceError`]; nothing is left of it then.
    pub fn create_bo(&self, bo: &mut Bo) -> Result<(), DeviceError> {
        let state = &bo.state;
        let owner = self.node(state.agent)?;
        let (user_address, flags) = match state.kind {
            BoKind::Userptr { address } => (address, state.flags),
            BoKind::Reserved => return Ok(()),
            BoKind::Imported => return Err(DeviceError::Absent { what: "the DMABuf of imported memory" }),
            // Entries of older images have other flags, since the driver was not asked for this memory.
            BoKind::Doorbell => (0, flags::DOORBELLS),
            BoKind::Vram | BoKind::Gtt => (0, state.flags),
        };
        let gpus = self.mapped_gpus(bo)?;
        let allocation = self
            .kfd
            .alloc_memory(&AllocMemory {
                gpu: owner.gpu,
                va: state.va,
                bytes: state.bytes,
                flags,
                user_address,
            })
            .map_err(ioctl("memory"))?;
        bo.kernel = Some(KernelBo { handle: allocation.handle.0, mmap_offset: allocation.mmap_offset });
        let made = (|| {
            if !gpus.is_empty() {
                self.kfd
                    .map_memory(allocation.handle, &gpus)
                    .map_err(|error| ioctl("a mapping of memory to its agents")(error.into()))?;
            }
            self.map_cpu(bo)
        })();
        if made.is_err() {
            self.abandon(bo, &gpus);
        }
        made
    }

    /// Takes back what a failed creation left. The first failure is what is reported, so these are not.
    pub(super) fn abandon(&self, bo: &mut Bo, gpus: &[kfd::GpuId]) {
        if let Some(kernel) = bo.kernel.take() {
            let handle = MemoryHandle(kernel.handle);
            for gpu in gpus {
                let _ = self.kfd.unmap_memory(handle, std::slice::from_ref(gpu));
            }
            let _ = self.kfd.free_memory(handle);
        }
    }

    /// Maps an object's memory for the CPU at its address, if its entry says so. The rest of the object is left
    /// alone.
    ///
    /// # Errors
    /// [`DeviceError::Mmap`].
    pub fn map_cpu(&self, bo: &Bo) -> Result<(), DeviceError> {
        self.map_cpu_for(bo, READ_WRITE)
    }

    /// Maps an object's memory for the CPU once more, to be read, at `at`; an object that is mapped for the CPU.
    ///
    /// # Errors
    /// [`DeviceError::Mmap`], [`DeviceError::Absent`].
    ///
    /// # Safety
    /// What is mapped in as many bytes at `at` is replaced; nothing may rely on it.
    pub unsafe fn map_beside(&self, bo: &Bo, at: *mut u8) -> Result<(), DeviceError> {
        if !is_cpu_mapped(&bo.state) {
            return Err(DeviceError::Absent { what: "a mapping of the buffer object" });
        }
        // SAFETY: the caller gives up what is mapped there.
        unsafe { self.map_at(bo, at, ProtFlags::PROT_READ) }
    }

    /// As [`Device::map_cpu`], with these rights.
    ///
    /// # Errors
    /// [`DeviceError::Mmap`].
    fn map_cpu_for(&self, bo: &Bo, rights: ProtFlags) -> Result<(), DeviceError> {
        if !is_cpu_mapped(&bo.state) {
            return Ok(());
        }
        let at = std::ptr::with_exposed_provenance_mut::<u8>(size(bo.cpu_va()));
        // SAFETY: the range belongs to this entry alone (arena), and holds the reservation until this call.
        unsafe { self.map_at(bo, at, rights) }
    }

    /// Maps an object's memory at `at`.
    ///
    /// # Safety
    /// What is mapped in as many bytes at `at` is replaced; nothing may rely on it.
    unsafe fn map_at(&self, bo: &Bo, at: *mut u8, rights: ProtFlags) -> Result<(), DeviceError> {
        let state = &bo.state;
        let kernel = bo.kernel.ok_or(DeviceError::Absent { what: "the buffer object" })?;
        let render = &self.node(state.agent)?.render;
        // SAFETY: the caller gives up what is mapped there.
        unsafe { render.mmap_fixed(at, size(state.bytes), rights, kernel.mmap_offset) }.map_err(|errno| {
            DeviceError::Mmap {
                path: render.path().to_owned(),
                va: at.expose_provenance() as u64,
                bytes: state.bytes,
                offset: kernel.mmap_offset,
                errno,
            }
        })
    }

    /// Maps an object that is mapped aside at its own address, whole at once, for reading.
    ///
    /// # Errors
    /// [`DeviceError`]; it is aside still.
    pub fn show(&self, bo: &mut Bo) -> Result<(), DeviceError> {
        let Some(aside) = bo.aside.take() else { return Ok(()) };
        self.map_cpu_for(bo, guard::SHOWN).inspect_err(|_| bo.aside = Some(aside))
    }

    /// Takes an object's CPU mapping away and puts the reservation in its place. In the driver the object stays, so that
    /// [`Device::map_cpu`] can map it again.
    ///
    /// # Errors
    /// [`DeviceError::PutBack`].
    pub fn unmap_cpu(&self, bo: &Bo) -> Result<(), DeviceError> {
        if bo.state.kind == BoKind::Doorbell {
            self.release_doorbells(bo.state.agent);
        }
        put_back(bo)
    }

    /// The agents that an object is mapped to in the driver, once it is made.
    fn mapped_gpus(&self, bo: &Bo) -> Result<Vec<kfd::GpuId>, DeviceError> {
        if bo.is_awaited { Ok(Vec::new()) } else { self.gpus(&bo.state.mapped) }
    }

    /// Maps an object whose contents have come to its agents.
    ///
    /// # Errors
    /// [`DeviceError`]; it is mapped to none of them then.
    pub fn map_awaited(&self, bo: &mut Bo) -> Result<(), DeviceError> {
        if !bo.is_awaited {
            return Ok(());
        }
        let kernel = bo.kernel.ok_or(DeviceError::Absent { what: "the buffer object" })?;
        let gpus = self.gpus(&bo.state.mapped)?;
        let handle = MemoryHandle(kernel.handle);
        if !gpus.is_empty()
            && let Err(error) = self.kfd.map_memory(handle, &gpus)
        {
            // The driver knows how far it came.
            let _ = self.kfd.unmap_memory(handle, &gpus);
            return Err(ioctl("a mapping of memory to its agents")(error.into()));
        }
        bo.is_awaited = false;
        Ok(())
    }

    /// Maps an object to one more agent.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`]; the entry is as before.
    pub fn map_bo(&self, bo: &mut Bo, agent: AgentIndex) -> Result<(), DeviceError> {
        // What is mapped into a range is given to agents there.
        if bo.state.kind == BoKind::Reserved || bo.state.mapped.contains(&agent) {
            return Ok(());
        }
        let kernel = bo.kernel.ok_or(DeviceError::Absent { what: "the buffer object" })?;
        let gpu = self.node(agent)?.gpu;
        if bo.is_awaited {
            // With the others, when it is whole.
            bo.state.mapped.push(agent);
            return Ok(());
        }
        self.kfd
            .map_memory(MemoryHandle(kernel.handle), &[gpu])
            .map_err(|error| ioctl("a mapping of memory to an agent")(error.into()))?;
        bo.state.mapped.push(agent);
        Ok(())
    }

    /// Takes an object away from an agent.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`]; the entry is as before.
    pub fn unmap_bo(&self, bo: &mut Bo, agent: AgentIndex) -> Result<(), DeviceError> {
        let Some(at) = bo.state.mapped.iter().position(|&mapped| mapped == agent) else { return Ok(()) };
        let kernel = bo.kernel.ok_or(DeviceError::Absent { what: "the buffer object" })?;
        let gpu = self.node(agent)?.gpu;
        self.kfd
            .unmap_memory(MemoryHandle(kernel.handle), &[gpu])
            .map_err(|error| ioctl("the end of a mapping")(error.into()))?;
        bo.state.mapped.remove(at);
        bo.state.for_copies.retain(|&copying| copying != agent);
        Ok(())
    }

    /// Unmaps and frees an object. The entry keeps its state, so that [`Device::create_bo`] makes it again.
    ///
    /// The event page is only unmapped for the CPU and keeps its handle: the driver never frees it while the process
    /// lives.
    ///
    /// # Errors
    /// [`DeviceError`]. If the driver refuses (EBUSY: a queue lives in it) the object is as before.
    pub fn destroy_bo(&self, bo: &mut Bo) -> Result<(), DeviceError> {
        if bo.state.role == BoRole::EventPage {
            return put_back(bo);
        }
        let Some(kernel) = bo.kernel else { return Ok(()) };
        // They would hold the memory beyond its end.
        self.close_unused(bo)?;
        let handle = MemoryHandle(kernel.handle);
        let gpus = self.mapped_gpus(bo)?;
        if !gpus.is_empty()
            && let Err(error) = self.kfd.unmap_memory(handle, &gpus)
        {
            // Those done are mapped again, those not done are still: MAP takes both.
            let _ = self.kfd.map_memory(handle, &gpus);
            return Err(ioctl("the end of a mapping")(error.into()));
        }
        if let Err(error) = self.kfd.free_memory(handle) {
            let _ = self.kfd.map_memory(handle, &gpus);
            return Err(ioctl("the end of an allocation")(error));
        }
        bo.kernel = None;
        if bo.state.kind == BoKind::Doorbell {
            self.release_doorbells(bo.state.agent);
        }
        put_back(bo)
    }
}

/// Whether a buffer object is mapped for the CPU through its agent's render file.
fn is_cpu_mapped(state: &BoState) -> bool {
    state.cpu_mapped && matches!(state.kind, BoKind::Vram | BoKind::Gtt)
}

fn put_back(bo: &Bo) -> Result<(), DeviceError> {
    let state = &bo.state;
    if !state.cpu_mapped {
        return Ok(());
    }
    let in_window = !matches!(state.kind, BoKind::Userptr { .. });
    if !in_window {
        return Ok(());
    }
    // SAFETY: the range is inside the window and belongs to this entry, whose users are gone or held at the gate.
    unsafe { window::put_back(bo.cpu_va(), state.bytes) }.map_err(|errno| DeviceError::PutBack {
        va: bo.cpu_va(),
        bytes: state.bytes,
        errno,
    })
}
