// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an address is.

use crate::context::registry::Registry;
use crate::context::registry::state::{
    Access, AgentIndex, BoKey, BoKind, BoRole, BoState, BoUse, ExecutableKey, MapKey, QueueKey,
};
use crate::runtime::Runtime;

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PointerKind {
    /// A [`crate::Buffer`].
    Buffer,
    /// Memory of the process that was registered: its address for agents or for the CPU.
    Registered,
    /// The home of a [`crate::Memory`].
    Physical,
    /// A part of a [`crate::Range`] that has memory.
    Mapping {
        /// The mapping.
        map: MapKey,
        /// Its memory.
        memory: BoKey,
        /// Where in the memory the mapping begins, in bytes.
        memory_offset: u64,
    },
    /// A part of a [`crate::Range`] that has none.
    Reserved,
    /// Memory a queue lives in.
    Queue {
        /// Which, if it still exists.
        queue: Option<QueueKey>,
        /// What of it.
        role: BoRole,
    },
    /// A page of signals.
    Signals,
    /// The event page.
    EventPage,
    /// Doorbells.
    Doorbells,
    /// The code of a trap handler.
    TrapHandler,
    /// A loaded code object.
    CodeObject(Option<ExecutableKey>),
}

/// What is known of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// What it belongs to.
    pub kind: PointerKind,
    /// Key of that; of the range, for a part of one.
    pub key: BoKey,
    /// Its first address, of the mapping for a mapped part of a range, in the same address space as the one asked for.
    pub base: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// How far from its first address the address is.
    pub offset: u64,
    /// Index of the agent whose memory it is; `None` for system memory and for addresses without memory.
    pub owner: Option<usize>,
    /// What agents, by their indices, may do; those that may do nothing are absent.
    pub access: Vec<(usize, Access)>,
    /// Whether the CPU may use this very address.
    pub is_visible: bool,
}

impl Runtime {
    /// What an address is: of anything that lives in the window, or of registered memory by the CPU's address; `None` for
    /// all others. True at the moment of the call.
    pub fn pointer_info(&self, address: u64) -> Option<PointerInfo> {
        let registry = self.context().registry.lock();
        match registry.bo_at(address) {
            Some((key, bo)) if bo.state.role == BoRole::Range => {
                Some(in_range(&registry, key, &bo.state, address))
            }
            Some((key, bo)) => Some(of_object(&registry, key, &bo.state, bo.state.va, address)),
            None => registry.bos.iter().find_map(|(key, bo)| match bo.state.kind {
                BoKind::Userptr { address: base } if address >= base && address - base < bo.state.bytes => {
                    Some(of_object(&registry, key, &bo.state, base, address))
                }
                _ => None,
            }),
        }
    }
}

fn owner(state: &BoState) -> Option<usize> {
    match (state.kind, state.sharing) {
        (BoKind::Vram, _) => Some(state.agent.at()),
        (BoKind::Imported, Some(sharing)) => sharing.home.map(AgentIndex::at),
        _ => None,
    }
}

/// What the allocation's flags let agents do.
fn access_by_flags(flags: u32) -> Access {
    use kfd::sys::{
        KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE as EXECUTABLE, KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE as WRITABLE,
    };
    match (flags & WRITABLE != 0, flags & EXECUTABLE != 0) {
        (true, true) => Access::ReadWriteExecute,
        (true, false) => Access::ReadWrite,
        (false, true) => Access::ReadExecute,
        (false, false) => Access::Read,
    }
}

fn of_object(registry: &Registry, key: BoKey, state: &BoState, base: u64, address: u64) -> PointerInfo {
    let kind = match (state.role, state.kind, registry.bo_use(key)) {
        (BoRole::User, BoKind::Userptr { .. }, _) => PointerKind::Registered,
        (BoRole::User, ..) => PointerKind::Buffer,
        (BoRole::Physical, ..) => PointerKind::Physical,
        (BoRole::Range, ..) => PointerKind::Reserved,
        (BoRole::Signals | BoRole::SharedSignal, ..) => PointerKind::Signals,
        (BoRole::EventPage, ..) => PointerKind::EventPage,
        (BoRole::Doorbell, ..) => PointerKind::Doorbells,
        (BoRole::TrapHandler, ..) => PointerKind::TrapHandler,
        (BoRole::Image, _, Some(BoUse::Executable(executable))) => PointerKind::CodeObject(Some(executable)),
        (BoRole::Image, ..) => PointerKind::CodeObject(None),
        (role, _, Some(BoUse::Queue(queue))) => PointerKind::Queue { queue: Some(queue), role },
        (role, ..) => PointerKind::Queue { queue: None, role },
    };
    // IMPORT_DMABUF gives all rights, whatever the exporter's flags.
    let access = match state.kind {
        BoKind::Imported => Access::ReadWriteExecute,
        _ => access_by_flags(state.flags),
    };
    PointerInfo {
        kind,
        key,
        base,
        bytes: state.bytes,
        offset: address - base,
        owner: owner(state),
        access: state.mapped.iter().map(|agent| (agent.at(), access)).collect(),
        // Registered memory is the CPU's at another address than the agents'.
        is_visible: state.cpu_mapped || base != state.va,
    }
}

fn in_range(registry: &Registry, key: BoKey, range: &BoState, address: u64) -> PointerInfo {
    let nothing = || of_object(registry, key, range, range.va, address);
    let Some((map, entry)) = registry.maps.at(address) else { return nothing() };
    let state = &entry.state;
    PointerInfo {
        kind: PointerKind::Mapping { map, memory: state.memory, memory_offset: state.offset },
        key,
        base: state.va,
        bytes: state.bytes,
        offset: address - state.va,
        owner: registry.bos.get(state.memory).and_then(|memory| owner(&memory.state)),
        access: state.access.iter().map(|(agent, access)| (agent.at(), *access)).collect(),
        is_visible: registry.bos.get(state.memory).is_some_and(|memory| memory.state.cpu_mapped),
    }
}
