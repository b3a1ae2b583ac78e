// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared virtual memory: memory of the process's own that agents use at its own addresses (`AMDKFD_IOC_SVM`).
//!
//! INVARIANT: what was set is noted, so that a restore sets it again. The memory's contents are the process's: CRIU has them. For a
//! checkpoint the agents' access ends and the memory comes to the host.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::agent::Agent;
use crate::context::error::{DeviceError, Lost};
use crate::context::registry::arena::{PAGE, Window};
pub use crate::context::registry::svm::{SvmAnswer, SvmAttribute, SvmPlace, SvmUse};
use crate::runtime::Runtime;

/// Flags of a range (`KFD_IOCTL_SVM_FLAG_*`).
pub mod flags {
    pub use kfd::sys::{
        KFD_IOCTL_SVM_FLAG_COHERENT as COHERENT, KFD_IOCTL_SVM_FLAG_GPU_EXEC as EXECUTABLE,
        KFD_IOCTL_SVM_FLAG_GPU_READ_MOSTLY as READ_MOSTLY, KFD_IOCTL_SVM_FLAG_GPU_RO as READ_ONLY,
        KFD_IOCTL_SVM_FLAG_HIVE_LOCAL as HIVE_LOCAL, KFD_IOCTL_SVM_FLAG_HOST_ACCESS as HOST_ACCESS,
    };
}

/// Bit of a node's capability that says that its kernel has it (`HSA_CAP_SVMAPI_SUPPORTED`).
const CAPABILITY: u32 = 1 << 27;

/// Attributes of shared memory could not be set or told. Everything is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SvmError {
    /// The kernel has none.
    #[error(
        "The driver of agent {agent} has no shared virtual memory: its kernel was built without HSA_AMD_SVM; allocate from a \
         pool, or register the memory"
    )]
    Unsupported {
        /// The first agent without.
        agent: usize,
    },
    /// Not whole pages, or none.
    #[error("Shared memory is whole pages of {page} bytes, found {bytes:#x} bytes at {address:#x}")]
    Pages {
        /// First address.
        address: u64,
        /// Length.
        bytes: u64,
        /// Bytes of a page.
        page: u64,
    },
    /// In the addresses of buffers.
    #[error("Bytes {address:#x}+{bytes:#x} are addresses of buffers; shared memory is the process's own")]
    Window {
        /// First address.
        address: u64,
        /// Length.
        bytes: u64,
    },
    /// The driver refused: EFAULT where nothing is mapped.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// See [`Lost`].
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl Agent {
    /// Whether memory of the process's own can be shared with it ([`Runtime::set_svm`]).
    pub fn has_svm(&self) -> bool {
        self.node().properties.capability & CAPABILITY != 0
    }

    /// As attributes of shared memory name it.
    pub fn svm_place(&self) -> SvmPlace {
        SvmPlace::Gpu(self.info.index())
    }

    /// What lets it use shared memory.
    pub fn svm_access(&self, how: SvmUse) -> SvmAttribute {
        SvmAttribute::Access(self.info.index(), how)
    }
}

impl Runtime {
    /// Whether memory of the process's own can be shared with all agents.
    pub fn has_svm(&self) -> bool {
        self.agents().iter().all(Agent::has_svm)
    }

    /// The addresses of whole pages that are not the window's.
    fn pages(&self, address: u64, bytes: u64) -> Result<Range<u64>, SvmError> {
        if let Some(agent) = self.agents().iter().position(|agent| !agent.has_svm()) {
            return Err(SvmError::Unsupported { agent });
        }
        let is_whole =
            address.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && address != 0 && bytes != 0;
        let Some(end) = address.checked_add(bytes).filter(|_| is_whole) else {
            return Err(SvmError::Pages { address, bytes, page: PAGE });
        };
        let Window { base, bytes: length } = self.context().registry.lock().arena.window();
        if address < base + length && base < end {
            return Err(SvmError::Window { address, bytes });
        }
        Ok(address..end)
    }

    /// Sets attributes of whole pages of the process's own memory, in their order: how agents may use them, and where their memory
    /// is to be. Lasts until the pages are unmapped, and through checkpoints.
    ///
    /// # Errors
    /// [`SvmError`].
    ///
    /// # Safety
    /// Agents with access write the memory at any time, so there must be no references into it. No thread may write it during this
    /// call, nor while the process is restored after a checkpoint: the software device exchanges the pages.
    pub unsafe fn set_svm(
        &self,
        address: u64,
        bytes: u64,
        attributes: &[SvmAttribute],
    ) -> Result<(), SvmError> {
        let pages = self.pages(address, bytes)?;
        let context = self.context();
        let pass = context.gate.enter()?;
        // What is there may name any buffer.
        context.arriving.all(context, &pass)?;
        let mut registry = context.registry.lock();
        context.device_or_lost(&pass)?.set_svm(&pages, attributes)?;
        registry.svm.set(&pages, attributes);
        Ok(())
    }

    /// How an agent may use each part of some pages, by what was set for them.
    pub fn svm_uses(&self, agent: &Agent, address: u64, bytes: u64) -> Vec<(Range<u64>, SvmUse)> {
        let pages = address..address.saturating_add(bytes);
        self.context().registry.lock().svm.uses(agent.info.index(), &pages)
    }

    /// Whether an agent may use all of some pages, by what was set for them.
    pub fn svm_lets(&self, agent: &Agent, address: u64, bytes: u64) -> bool {
        let pages = address..address.saturating_add(bytes);
        self.context().registry.lock().svm.lets(agent.info.index(), &pages)
    }

    /// What is set for all of some pages for which something is; [`SvmAnswer::uses`] is by agent.
    ///
    /// # Errors
    /// [`SvmError`].
    pub fn svm(&self, address: u64, bytes: u64) -> Result<SvmAnswer, SvmError> {
        let pages = self.pages(address, bytes)?;
        let context = self.context();
        let pass = context.gate.enter()?;
        Ok(context.device_or_lost(&pass)?.svm(&pages)?)
    }
}
