// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared beyond one buffer: DMABufs given out and taken in, and what becomes of them through a checkpoint.
//!
//! INVARIANT: memory that others may hold is known by the inode of its DMABuf, and every buffer object of it says so in
//! the registry ([`crate::context::registry::state::Sharing`]). Descriptors belong to the caller; the runtime keeps
//! none but the files of other exporters, which it needs to make their memory again.
//!
//! ```text
//!  checkpoint   collect ── barrier: who holds what ── outsiders? ── write ── commit ── release ── placeholders for descriptors
//!  restore      rendezvous: the first participant makes, the others find ── fill ── descriptors restored
//! ```

mod barrier;
mod descriptors;
mod error;
mod graph;
mod holders;
mod in_flight;
mod ipc;
mod names;
mod participant;
mod rendezvous;
mod restore;
mod state;
mod table;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use self::barrier::{Member, SessionError, SessionOrder};
pub(crate) use self::descriptors::{is_dmabuf, replace_with_placeholders};
pub use self::error::ShareError;
pub(crate) use self::error::SharedMemoryError;
pub use self::holders::Outsider;
pub(crate) use self::in_flight::{InFlight, in_flight};
pub use self::ipc::{Item, Received};
pub(crate) use self::names::export_named;
pub use self::names::{NAME_BYTES, SharedName};
pub(crate) use self::participant::{Participant, end_rendezvous, keep_coordinator};
pub use self::rendezvous::RendezvousError;
pub(crate) use self::restore::{RestoreParticipant, Source, restore};
pub use self::state::SharedState;
pub use self::table::Object;
use crate::agent::Agent;
use crate::context::Context;
use crate::context::device::{Device, Dmabuf, identify};
use crate::context::error::DeviceError;
use crate::context::memory::free::free_deferred;
use crate::context::memory::make::bo_view;
use crate::context::registry::state::{AgentIndex, BoKey, BoKind, BoRole, BoState, Origin, Sharing};
use crate::context::registry::{Bo, Registry, arena};
use crate::context::signal::live::{SLOT_BYTES, SignalLive};
use crate::context::signal::make::add_shared_signal;
use crate::pool::Buffer;
use crate::runtime::Runtime;
use crate::signal::Signal;
use crate::vmem::Memory;
use queues::words::count;

impl Buffer {
    /// A DMABuf of its memory, close-on-exec: for another process, another agent, or another driver. The memory lives
    /// for as long as anybody holds it, in whatever way.
    ///
    /// # Errors
    /// [`ShareError::Freed`], [`ShareError::Device`], [`ShareError::Lost`].
    pub fn export(&self) -> Result<OwnedFd, ShareError> {
        let context = &self.0.context;
        let pass = context.gate.enter()?;
        self.give_out(&pass)?;
        let mut registry = context.registry.lock();
        let device = context.device_or_lost(&pass)?;
        if !self.is_alive() {
            return Err(ShareError::Freed { key: self.key() });
        }
        let exported = export(&mut registry, device, self.key());
        context.host_writes.share(&pass);
        exported
    }
}

/// Makes a DMABuf of a registered object and notes that others may hold its memory from now on.
pub(crate) fn export(registry: &mut Registry, device: &Device, key: BoKey) -> Result<OwnedFd, ShareError> {
    let bo = registry.bos.get_mut(key).ok_or(ShareError::Freed { key })?;
    let fd = device.export_bo(bo)?;
    if bo.state.sharing.is_none() {
        let dmabuf = identify(&fd).map_err(|errno| ShareError::Descriptor { errno })?;
        let home = Some(bo.state.agent);
        bo.state.sharing = Some(Sharing { dmabuf, origin: Origin::Exported, home });
    }
    Ok(fd)
}

impl Runtime {
    /// A buffer of the memory behind a DMABuf, which `agent` may access ([`Buffer::allow`] lets others). The descriptor
    /// stays the caller's. Memory of another driver, or a memfd sealed against shrinking on the software device, is
    /// taken as system memory.
    ///
    /// # Errors
    /// [`ShareError`]; nothing is imported then.
    pub fn import(&self, dmabuf: impl AsFd, agent: &Agent) -> Result<Buffer, ShareError> {
        let to = Import { role: BoRole::User, agent: agent.info.index(), mapped: vec![agent.info.index()] };
        self.import_as(dmabuf.as_fd(), agent, to)
    }

    /// As [`Runtime::import`], but as physical memory to be mapped into ranges ([`Runtime::reserve`]).
    ///
    /// # Errors
    /// As for [`Runtime::import`].
    pub fn import_memory(&self, dmabuf: impl AsFd, agent: &Agent) -> Result<Memory, ShareError> {
        let to = Import { role: BoRole::Physical, agent: agent.info.index(), mapped: Vec::new() };
        self.import_as(dmabuf.as_fd(), agent, to).map(Memory::from_buffer)
    }

    fn import_as(&self, fd: BorrowedFd<'_>, agent: &Agent, to: Import) -> Result<Buffer, ShareError> {
        let context = self.context();
        if !agent.is_of(context) {
            return Err(ShareError::OtherRuntime);
        }
        let pass = context.gate.enter()?;
        free_deferred(context, &pass);
        let mut registry = context.registry.lock();
        let device = context.device_or_lost(&pass)?;
        let found = device.describe_dmabuf(fd)?;
        let key = import_bo(context, &mut registry, device, fd, &found, to)?;
        context.host_writes.share(&pass);
        let buffer = Buffer::new(context, &registry, key, found.bytes);
        drop(registry);
        buffer.give_out(&pass)?;
        Ok(buffer)
    }
}

/// What imported memory is to be.
struct Import {
    role: BoRole,
    /// Whose handle on it it is.
    agent: AgentIndex,
    mapped: Vec<AgentIndex>,
}

impl Memory {
    /// A DMABuf of it; see [`Buffer::export`].
    ///
    /// # Errors
    /// As for [`Buffer::export`].
    pub fn export(&self) -> Result<OwnedFd, ShareError> {
        self.buffer().export()
    }
}

impl Signal {
    /// A DMABuf of a shared signal ([`Signal::shared`]), close-on-exec, for [`Runtime::import_signal`].
    ///
    /// # Errors
    /// [`ShareError::NotShared`] for any other signal, [`ShareError::Device`], [`ShareError::Lost`].
    pub fn export(&self) -> Result<OwnedFd, ShareError> {
        let context = self.context();
        let pass = context.gate.enter()?;
        let mut registry = context.registry.lock();
        let device = context.device_or_lost(&pass)?;
        let page = names::shared_page(&registry, self)?;
        export(&mut registry, device, page)
    }
}

impl Runtime {
    /// The signal behind a DMABuf that [`Signal::export`] gave, here or in another process. All agents may complete it.
    ///
    /// # Errors
    /// [`ShareError::NoSignal`] for other memory, else as for [`Runtime::import`].
    pub fn import_signal(&self, dmabuf: impl AsFd) -> Result<Signal, ShareError> {
        let context = self.context();
        let pass = context.gate.enter()?;
        free_deferred(context, &pass);
        let mut registry = context.registry.lock();
        let device = context.device_or_lost(&pass)?;
        let fd = dmabuf.as_fd();
        let found = device.describe_dmabuf(fd)?;
        // CAST: there are at most 64 agents.
        let agents = (0..count(context.agents.len())).map(AgentIndex).collect();
        let to = Import { role: BoRole::SharedSignal, agent: AgentIndex(0), mapped: agents };
        let page = import_bo(context, &mut registry, device, fd, &found, to)?;
        let slot = bo_view(&registry, page).filter(|page| page.holds(0, SLOT_BYTES));
        let made = match slot.filter(|page| SignalLive::is_signal(page.part(0, SLOT_BYTES))) {
            Some(_) => add_shared_signal(context, &mut registry, page, |slot| SignalLive::adopt(slot, None)),
            None => None,
        };
        let Some((key, live)) = made else {
            if let Some(bo) = registry.bos.get_mut(page) {
                device.destroy_bo(bo)?;
            }
            registry.remove_bo(page);
            return Err(ShareError::NoSignal { bytes: found.bytes });
        };
        Ok(Signal::from_parts(context, key, live))
    }
}

fn import_bo(
    _context: &Context,
    registry: &mut Registry,
    device: &Device,
    fd: BorrowedFd<'_>,
    found: &Dmabuf,
    to: Import,
) -> Result<BoKey, ShareError> {
    let Import { role, agent, mapped } = to;
    if found.bytes == 0 || !found.bytes.is_multiple_of(arena::PAGE) {
        return Err(ShareError::Length { bytes: found.bytes });
    }
    let origin = if found.own.is_some() { Origin::Imported } else { Origin::Foreign };
    let file = match origin {
        Origin::Foreign => Some(Arc::new(fd.try_clone_to_owned().map_err(ShareError::Duplicate)?)),
        _ => None,
    };
    let key = registry.add_bo(BoState {
        kind: BoKind::Imported,
        role,
        bytes: found.bytes,
        va: 0,
        flags: found.own.map_or(kfd::sys::KFD_IOC_ALLOC_MEM_FLAGS_GTT, |own| own.flags),
        agent,
        mapped,
        for_copies: Vec::new(),
        cpu_mapped: found.is_visible(),
        label: None,
        sharing: Some(Sharing {
            dmabuf: found.id,
            origin,
            home: found.own.and_then(|own| device.agent_of(own.gpu)),
        }),
    })?;
    let made = match registry.bos.get_mut(key) {
        Some(bo) => {
            bo.file = file;
            device.import_bo(bo, fd)
        }
        None => Err(DeviceError::Absent { what: "the entry" }),
    };
    if let Err(error) = made {
        registry.remove_bo(key);
        return Err(error.into());
    }
    Ok(key)
}

/// Makes an object again out of the file of its exporter, which CRIU may have made anew.
pub(crate) fn make_foreign(bo: &mut Bo, on: &Device, file: &OwnedFd) -> Result<(), DeviceError> {
    let dmabuf = identify(file).map_err(|errno| DeviceError::Descriptor { errno })?;
    bo.state.sharing = bo.state.sharing.map(|sharing| Sharing { dmabuf, ..sharing });
    on.import_bo(bo, file.as_fd())
}
