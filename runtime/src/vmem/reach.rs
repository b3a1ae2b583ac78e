// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who reaches what: paths between agents before a grant, and access before a copy.

use super::VmemError;
use crate::agent::AgentInfo;
use crate::error::CopyError;
use crate::registry::state::{Access, AgentIndex, BoKey, BoKind, BoRole, MapKey};
use crate::registry::{Bo, Registry};
use crate::runtime::Inner;

fn name(info: &AgentInfo) -> String {
    format!("{} ({})", info.target().name, info.uuid())
}

impl Registry {
    /// What lies behind a buffer object and the agent to take for its owner: for a range those of what is mapped first,
    /// or an agent that has access where the owner has none.
    pub(crate) fn backing(&self, key: BoKey, bo: &Bo) -> (BoKind, AgentIndex) {
        let plain = (bo.state.kind, bo.state.agent);
        if bo.state.role != BoRole::Range {
            return plain;
        }
        let first = self.maps.at(bo.state.va).or_else(|| self.maps.of_range(key).next());
        let Some((_, entry)) = first else { return plain };
        let Some(memory) = self.bos.get(entry.state.memory) else { return plain };
        let home = (memory.state.kind, memory.state.agent);
        match entry.state.access.first() {
            Some(&(agent, _)) if entry.state.access_of(home.1) == Access::None => (BoKind::Vram, agent),
            _ => home,
        }
    }
}

impl Inner {
    /// That every agent which is to have access has a path to the memory of each of these mappings.
    pub(super) fn check_paths(
        &self,
        registry: &Registry,
        keys: &[MapKey],
        rights: &[(AgentIndex, Access)],
    ) -> Result<(), VmemError> {
        for entry in keys.iter().filter_map(|&key| registry.maps.get(key)) {
            let memory = entry.state.memory;
            let Some(bo) = registry.bos.get(memory).filter(|bo| bo.state.kind == BoKind::Vram) else {
                continue;
            };
            let owner = &self.agents[bo.state.agent.at()];
            for &(agent, _) in rights.iter().filter(|(_, access)| *access != Access::None) {
                if self.reach(agent, owner.index()).is_err() {
                    let agent = &self.agents[agent.at()];
                    return Err(VmemError::NoPath { agent: name(agent), owner: name(owner), memory });
                }
            }
        }
        Ok(())
    }

    /// That an agent may read, or write, all of `[va, va + bytes)` if that is in a range.
    ///
    /// # Errors
    /// [`CopyError::NotMapped`], [`CopyError::NoAccess`].
    pub(crate) fn check_reach(
        &self,
        agent: AgentIndex,
        key: BoKey,
        va: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(), CopyError> {
        let registry = self.registry.lock();
        let Some(bo) = registry.bos.get(key).filter(|bo| bo.state.role == BoRole::Range) else {
            return Ok(());
        };
        let (mut at, end) = (va, va + bytes);
        while at < end {
            let offset = at - bo.state.va;
            let (_, entry) = registry.maps.at(at).ok_or(CopyError::NotMapped { key, offset })?;
            if !entry.state.access_of(agent).allows(write) {
                let agent = name(&self.agents[agent.at()]);
                let act = if write { "write" } else { "read" };
                return Err(CopyError::NoAccess { agent, act, key, offset });
            }
            at = entry.end();
        }
        Ok(())
    }
}
