// SPDX-License-Identifier: MIT OR Apache-2.0
//! What agents may do with mapped memory, and what is saved of a mapping: names and numbers.
//!
//! INVARIANT: as of every saved state, it is enough to make the mapping again over the same range and memory.

use serde::{Deserialize, Serialize};

use super::state::{AgentIndex, BoKey};

/// What an agent may do with memory mapped into a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Nothing: it faults.
    #[default]
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
    /// Read and fetch instructions.
    ReadExecute,
    /// Read, write and fetch instructions.
    ReadWriteExecute,
}

impl Access {
    /// Whether the agent may read, or, with `write`, write.
    pub const fn allows(self, write: bool) -> bool {
        match self {
            Access::None => false,
            Access::Read | Access::ReadExecute => !write,
            Access::ReadWrite | Access::ReadWriteExecute => true,
        }
    }
}

/// A part of a physical memory that is mapped at a part of a reserved range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapState {
    /// Where: the range.
    pub range: BoKey,
    /// First address, inside the range, whole pages.
    pub va: u64,
    /// Length in bytes, whole pages.
    pub bytes: u64,
    /// What: the memory.
    pub memory: BoKey,
    /// Byte offset in the memory, whole pages.
    pub offset: u64,
    /// What agents may do there, in order; those that may do nothing are absent.
    pub access: Vec<(AgentIndex, Access)>,
}

impl MapState {
    /// What an agent may do there.
    pub fn access_of(&self, agent: AgentIndex) -> Access {
        self.access.iter().find(|(known, _)| *known == agent).map_or(Access::None, |(_, access)| *access)
    }

    /// Says what an agent may do there.
    pub fn set_access(&mut self, agent: AgentIndex, access: Access) {
        let place = self.access.binary_search_by_key(&agent, |(known, _)| *known);
        match (place, access) {
            (Ok(at), Access::None) => drop(self.access.remove(at)),
            (Ok(at), _) => self.access[at].1 = access,
            (Err(_), Access::None) => {}
            (Err(at), _) => self.access.insert(at, (agent, access)),
        }
    }
}
