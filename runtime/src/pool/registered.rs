// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that the process has already, registered for agents to use (userptr).
//!
//! INVARIANT: the pages stay the process's own: their bytes are never saved or filled by a checkpoint, only the agents'
//! mappings of them are ended and made again.
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::context::device::flags;
use crate::context::error::{AllocError, FreeError};
use crate::context::memory::request::Request;
use crate::context::registry::arena;
use crate::context::registry::arena::PAGE;
use crate::context::registry::state::{AgentIndex, BoKey, BoKind, BoRole};
use crate::pool::{Buffer, make_buffer};
use crate::runtime::Runtime;
use queues::words::size;

/// Registered memory. Clones name the same registration, which ends with [`Registered::unregister`] or the last handle.
#[derive(Clone, Debug)]
pub struct Registered {
    buffer: Buffer,
    address: u64,
}

impl Runtime {
    /// Registers whole pages of the process's own memory, so that `agents` (or all, if there are none) can use them, at
    /// addresses of the window: [`Registered::va`] is not `ptr`.
    ///
    /// # Errors
    /// [`AllocError::Pages`], [`AllocError::Empty`], [`AllocError::Device`] (EFAULT: no memory there; EPERM: it is not
    /// writable), [`AllocError::Lost`].
    ///
    /// # Safety
    /// `ptr` must name `bytes` bytes of private writable memory that stay mapped until the registration has ended. Agents
    /// write them at any time, so there must be no references into them. No thread may write them during this call, nor
    /// while the process is restored after a checkpoint, nor while the registration ends: the software device exchanges
    /// the pages.
    pub unsafe fn register(
        &self,
        ptr: *mut u8,
        bytes: u64,
        agents: &[&Agent],
    ) -> Result<Registered, AllocError> {
        let context = self.context();
        let address = ptr.expose_provenance() as u64;
        if !address.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
            return Err(AllocError::Pages { address, bytes, page: PAGE });
        }
        if agents.iter().any(|agent| !agent.is_of(context)) {
            return Err(AllocError::Foreign);
        }
        let mapped: Vec<AgentIndex> = match agents {
            [] => context.agents.iter().map(|info| info.index()).collect(),
            agents => {
                let mut indices: Vec<_> = agents.iter().map(|agent| agent.info.index()).collect();
                indices.sort_unstable();
                indices.dedup();
                indices
            }
        };
        let request = Request {
            kind: BoKind::Userptr { address },
            role: BoRole::User,
            bytes,
            flags: flags::USERPTR,
            agent: mapped[0],
            mapped,
            cpu_mapped: false,
            align: arena::PAGE,
            at: None,
        };
        let buffer = make_buffer(context, request, bytes)?;
        buffer.give_out(&context.gate.enter()?)?;
        Ok(Registered { buffer, address })
    }
}

impl Registered {
    /// Its key in the registry.
    pub fn key(&self) -> BoKey {
        self.buffer.key()
    }

    /// Its address for agents.
    pub fn va(&self) -> u64 {
        self.buffer.va()
    }

    /// Its address for the CPU, as registered.
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(size(self.address))
    }

    /// Its length in bytes, whole pages.
    pub fn len(&self) -> u64 {
        self.buffer.len()
    }

    /// Never: a registration has at least one page.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// It as a buffer, for [`crate::Arg::Buffer`] and copies. As one it is not visible to the CPU, whose address is another.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Ends the registration; waits up to 100 ms for packets that were given it.
    ///
    /// # Errors
    /// As for [`Buffer::free`].
    pub fn unregister(&self) -> Result<(), FreeError> {
        self.buffer.free()
    }
}
