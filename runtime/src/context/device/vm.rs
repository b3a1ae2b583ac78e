// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings of physical memory at addresses of their own: DMABuf out of KFD, into an agent's render file, GEM_VA.
//!
//! INVARIANT: on success and on failure alike an entry says on which agents the driver has it (`granted`) and whether
//! the CPU does (`on_cpu`), a memory counts the mappings that use its handle on each render file, and where the CPU has
//! nothing the reservation is. The handle is closed with its last mapping: GEM_CLOSE would end the others too.
//!
//! Parts of a driver's mapping are split off by REPLACE, which cuts what it covers; UNMAP ends whole ones only.
#![allow(unsafe_code)]

use std::os::fd::AsFd;

use kfd::{GemHandle, Render, VaAccess, VaRange};
use queues::words::size;

use crate::context::device::{Device, ioctl};
use crate::context::error::DeviceError;
use crate::context::memory::window::{self, READ_WRITE};
use crate::context::registry::maps::MapEntry;
use crate::context::registry::state::{Access, AgentIndex, MapState};
use crate::context::registry::{Bo, Gem};

/// First KFD interface whose address spaces take GEM_VA.
const MIN_KFD_MINOR_GEM_VA: u32 = 15;

fn bits(access: Access) -> VaAccess {
    let (write, execute) = match access {
        Access::None => return VaAccess::default(),
        Access::Read => (false, false),
        Access::ReadWrite => (true, false),
        Access::ReadExecute => (false, true),
        Access::ReadWriteExecute => (true, true),
    };
    VaAccess { read: true, write, execute }
}

fn place(state: &MapState, handle: GemHandle) -> VaRange {
    VaRange { va: state.va, bytes: state.bytes, handle, offset: state.offset }
}

impl Device {
    /// Makes of an entry what is missing: for the CPU where it sees the memory, and on the agents with access.
    ///
    /// # Errors
    /// [`DeviceError`]; what was made stays.
    pub fn make_mapping(&self, entry: &mut MapEntry, memory: &mut Bo) -> Result<(), DeviceError> {
        if !entry.on_cpu && memory.state.cpu_mapped {
            self.show_to_cpu(&entry.state, memory)?;
            entry.on_cpu = true;
        }
        for (agent, access) in entry.state.access.clone() {
            if !entry.granted.contains(&agent) {
                self.map_on(agent, &entry.state, memory, access)?;
                entry.granted.push(agent);
            }
        }
        Ok(())
    }

    /// Takes an entry's mappings away, on agents and for the CPU. What agents may do is kept for
    /// [`Device::make_mapping`].
    ///
    /// # Errors
    /// [`DeviceError`]; what was not taken stays.
    pub fn end_mapping(&self, entry: &mut MapEntry, memory: &mut Bo) -> Result<(), DeviceError> {
        while let Some(&agent) = entry.granted.last() {
            self.unmap_on(agent, &entry.state, memory)?;
            entry.granted.pop();
        }
        self.hide_from_cpu(entry)
    }

    /// Says what an agent may do with all of an entry.
    ///
    /// # Errors
    /// [`DeviceError`]; the agent may do what it could.
    pub fn grant(
        &self,
        entry: &mut MapEntry,
        memory: &mut Bo,
        agent: AgentIndex,
        access: Access,
    ) -> Result<(), DeviceError> {
        let is_granted = entry.granted.contains(&agent);
        match (is_granted, access) {
            _ if is_granted && entry.state.access_of(agent) == access => {}
            (false, Access::None) => {}
            (false, _) => {
                self.map_on(agent, &entry.state, memory, access)?;
                entry.granted.push(agent);
            }
            (true, Access::None) => {
                self.unmap_on(agent, &entry.state, memory)?;
                entry.granted.retain(|granted| *granted != agent);
            }
            (true, _) => self.replace_on(agent, &entry.state, memory, access)?,
        }
        entry.state.set_access(agent, access);
        Ok(())
    }

    /// Cuts the driver's mappings of an entry at `va`, inside it, and counts the handles for both parts. The entry is
    /// cut by the caller.
    ///
    /// # Errors
    /// [`DeviceError`]; it is whole then.
    pub fn cut_mapping(&self, entry: &MapEntry, memory: &mut Bo, va: u64) -> Result<(), DeviceError> {
        let skipped = va - entry.state.va;
        let part = MapState {
            va,
            bytes: entry.state.bytes - skipped,
            offset: entry.state.offset + skipped,
            ..entry.state.clone()
        };
        for (done, &agent) in entry.granted.iter().enumerate() {
            let cut = self.replace_on(agent, &part, memory, entry.state.access_of(agent));
            if cut.is_err() {
                for &agent in &entry.granted[..done] {
                    let whole = self.replace_on(agent, &entry.state, memory, entry.state.access_of(agent));
                    if let Err(error) = whole {
                        tracing::error!(target: "device", %error, va, "a mapping stays cut on an agent");
                    }
                }
                return cut;
            }
        }
        for gem in memory.gems.iter_mut().filter(|gem| entry.granted.contains(&gem.agent)) {
            gem.users += 1;
        }
        Ok(())
    }

    /// Takes an entry's CPU mapping away and puts the reservation in its place; on the agents it stays.
    ///
    /// # Errors
    /// [`DeviceError::PutBack`].
    pub fn hide_from_cpu(&self, entry: &mut MapEntry) -> Result<(), DeviceError> {
        let MapState { va, bytes, .. } = entry.state;
        if !entry.on_cpu {
            return Ok(());
        }
        // SAFETY: the addresses are a reserved range's, whose users are gone or held at the gate.
        unsafe { window::put_back(va, bytes) }.map_err(|errno| DeviceError::PutBack { va, bytes, errno })?;
        entry.on_cpu = false;
        Ok(())
    }

    fn show_to_cpu(&self, state: &MapState, memory: &Bo) -> Result<(), DeviceError> {
        let MapState { va, bytes, offset, .. } = *state;
        let dmabuf = self.export_bo(memory)?;
        let at = std::ptr::with_exposed_provenance_mut::<u8>(size(va));
        // SAFETY: the addresses belong to this entry alone, and hold the reservation until this call.
        unsafe { kfd::map_dmabuf(dmabuf.as_fd(), at, size(bytes), READ_WRITE, offset) }.map_err(|errno| {
            let path = self.kfd.file().path().to_owned();
            DeviceError::Mmap { path, va, bytes, offset, errno }
        })
    }

    fn render_of(&self, agent: AgentIndex) -> Result<Render, DeviceError> {
        Ok(Render::new(std::sync::Arc::clone(&self.node(agent)?.render)))
    }

    /// The memory's handle on an agent's render file, and one more user of it.
    fn acquire(&self, agent: AgentIndex, render: &Render, memory: &mut Bo) -> Result<GemHandle, DeviceError> {
        if let Some(gem) = memory.gems.iter_mut().find(|gem| gem.agent == agent) {
            gem.users += 1;
            return Ok(gem.handle);
        }
        let dmabuf = self.export_bo(memory)?;
        let handle = render.import(dmabuf.as_fd()).map_err(ioctl("memory on the agent that is to map it"))?;
        memory.gems.push(Gem { agent, handle, users: 1 });
        Ok(handle)
    }

    /// One user less; the handle goes with the last. One that cannot be closed is used again, or closed before the
    /// memory goes.
    fn release(&self, agent: AgentIndex, memory: &mut Bo) {
        if let Some(gem) = memory.gems.iter_mut().find(|gem| gem.agent == agent) {
            gem.users -= 1;
        }
        if let Err(error) = self.close_unused(memory) {
            tracing::debug!(target: "device", %error, "a handle of memory that is mapped nowhere stays open");
        }
    }

    /// Closes the handles of a memory that no mapping uses.
    ///
    /// # Errors
    /// [`DeviceError::Ioctl`]; those not closed are known still.
    pub fn close_unused(&self, memory: &mut Bo) -> Result<(), DeviceError> {
        while let Some(at) = memory.gems.iter().position(|gem| gem.users == 0) {
            let gem = memory.gems[at];
            self.render_of(gem.agent)?.close(gem.handle).map_err(ioctl("the end of a handle of memory"))?;
            memory.gems.swap_remove(at);
        }
        Ok(())
    }

    fn gem_of(agent: AgentIndex, memory: &Bo) -> Result<GemHandle, DeviceError> {
        let gem = memory.gems.iter().find(|gem| gem.agent == agent);
        gem.map(|gem| gem.handle).ok_or(DeviceError::Absent { what: "the mapping" })
    }

    fn map_on(
        &self,
        agent: AgentIndex,
        state: &MapState,
        memory: &mut Bo,
        access: Access,
    ) -> Result<(), DeviceError> {
        if self.interface_minor() < MIN_KFD_MINOR_GEM_VA {
            let (minor, wanted) = (self.interface_minor(), MIN_KFD_MINOR_GEM_VA);
            return Err(DeviceError::Interface { what: "mappings by parts", minor, wanted });
        }
        let render = self.render_of(agent)?;
        let handle = self.acquire(agent, &render, memory)?;
        render.map(&place(state, handle), bits(access)).map_err(|error| {
            self.release(agent, memory);
            ioctl("a mapping of memory into a range")(error)
        })
    }

    fn replace_on(
        &self,
        agent: AgentIndex,
        state: &MapState,
        memory: &Bo,
        access: Access,
    ) -> Result<(), DeviceError> {
        let (render, handle) = (self.render_of(agent)?, Self::gem_of(agent, memory)?);
        render
            .replace(&place(state, handle), bits(access))
            .map_err(ioctl("other access to a part of a range"))
    }

    fn unmap_on(&self, agent: AgentIndex, state: &MapState, memory: &mut Bo) -> Result<(), DeviceError> {
        let (render, handle) = (self.render_of(agent)?, Self::gem_of(agent, memory)?);
        render.unmap(&place(state, handle)).map_err(ioctl("the end of a mapping into a range"))?;
        self.release(agent, memory);
        Ok(())
    }
}
