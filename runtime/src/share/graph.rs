// SPDX-License-Identifier: MIT OR Apache-2.0
//! What of the sharing each process knows, and what follows from it for all: who saves which memory.
//!
//! INVARIANT: every member of a session computes the same from the same tables, in whatever order it gets them.

use std::collections::BTreeMap;
use std::sync::Arc;

use kfd::sys::{KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC, KFD_IOC_ALLOC_MEM_FLAGS_VRAM};

use super::descriptors::Descriptor;
use super::error::{SharedMemoryError, device};
use super::table::{Holding, Object, Table};
use crate::context::agent::info::AgentInfo;
use crate::context::device::{Device, flags};
use crate::context::registry::Registry;
use crate::context::registry::state::{BoKey, DmabufId, Origin};

/// What this process holds: buffer objects, and descriptors without one.
///
/// # Errors
/// [`SharedMemoryError::Device`] when the driver does not say what a descriptor is, [`SharedMemoryError::Hidden`] for
/// memory that the CPU cannot see.
pub(crate) fn holdings(
    registry: &Registry,
    on: &Device,
    agents: &[Arc<AgentInfo>],
    descriptors: &[Descriptor],
) -> Result<Vec<Holding>, SharedMemoryError> {
    let uuid = |index: usize| agents.get(index).map(|agent| agent.placed_uuid());
    let mut found = BTreeMap::<DmabufId, Holding>::new();
    for (key, bo) in registry.bos.iter() {
        let Some(sharing) = bo.state.sharing.filter(|_| !is_foreign(bo)) else { continue };
        if !bo.state.cpu_mapped {
            return Err(SharedMemoryError::Hidden { bo: key });
        }
        let is_maker = sharing.origin == Origin::Exported;
        let holding = Holding {
            dmabuf: sharing.dmabuf,
            bytes: bo.state.bytes,
            flags: if is_maker { bo.state.flags } else { allocation(bo.state.flags) },
            is_maker,
            home: sharing.home.and_then(|home| uuid(home.at())),
        };
        match found.get(&sharing.dmabuf) {
            Some(known) if known.is_maker => {}
            _ => drop(found.insert(sharing.dmabuf, holding)),
        }
    }
    for descriptor in descriptors {
        if found.get(&descriptor.dmabuf).is_some_and(|holding| holding.home.is_some()) {
            continue;
        }
        let described = on.describe_dmabuf(descriptor.borrow());
        let described = described.map_err(device("a DMABuf"))?;
        // Other drivers' are found by the audit.
        let Some(own) = described.own else { continue };
        let home = on.agent_of(own.gpu).and_then(|agent| uuid(agent.at()));
        let new = Holding {
            dmabuf: descriptor.dmabuf,
            bytes: described.bytes,
            flags: allocation(own.flags),
            is_maker: false,
            home: home.clone(),
        };
        found.entry(descriptor.dmabuf).or_insert(new).home = home;
    }
    Ok(found.into_values().collect())
}

/// The flags to allocate memory with of which only the domain is known: as this runtime allocates buffers.
fn allocation(domain: u32) -> u32 {
    match (domain & KFD_IOC_ALLOC_MEM_FLAGS_VRAM != 0, domain & KFD_IOC_ALLOC_MEM_FLAGS_PUBLIC != 0) {
        (false, _) => flags::GTT,
        (true, false) => flags::VRAM_HIDDEN,
        (true, true) => flags::VRAM_VISIBLE,
    }
}

/// All memory of the session, by identity: saved by whoever made it, else by the first by name of those who hold it.
pub(crate) fn objects(tables: &[Table]) -> BTreeMap<DmabufId, Object> {
    let mut found = BTreeMap::<DmabufId, (&str, &Holding)>::new();
    let mut homes = BTreeMap::<DmabufId, &str>::new();
    let mut tables: Vec<&Table> = tables.iter().collect();
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    for table in tables {
        for holding in &table.holdings {
            if let Some(home) = &holding.home {
                homes.entry(holding.dmabuf).or_insert(home);
            }
            match found.get(&holding.dmabuf) {
                Some((_, known)) if known.is_maker || !holding.is_maker => {}
                _ => drop(found.insert(holding.dmabuf, (&table.name, holding))),
            }
        }
    }
    let object = |(dmabuf, (saver, holding)): (DmabufId, (&str, &Holding))| {
        let home = homes.get(&dmabuf).map(|home| (*home).to_owned());
        let object =
            Object { dmabuf, bytes: holding.bytes, flags: holding.flags, home, saver: saver.to_owned() };
        (dmabuf, object)
    };
    found.into_iter().map(object).collect()
}

/// The buffer objects of some memory.
pub(crate) fn bos_of(registry: &Registry, dmabuf: DmabufId) -> Vec<BoKey> {
    let is_of =
        |bo: &crate::context::registry::Bo| bo.state.sharing.is_some_and(|sharing| sharing.dmabuf == dmabuf);
    registry.bos.iter().filter(|(_, bo)| is_of(bo) && !is_foreign(bo)).map(|(key, _)| key).collect()
}

/// Whether somebody else made the memory.
fn is_foreign(bo: &crate::context::registry::Bo) -> bool {
    bo.state.sharing.is_some_and(|sharing| sharing.origin == Origin::Foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(inode: u64, is_maker: bool, home: Option<&str>) -> Holding {
        let dmabuf = DmabufId { device: 1, inode };
        Holding { dmabuf, bytes: 4096, flags: u32::from(is_maker), is_maker, home: home.map(str::to_owned) }
    }

    fn table(name: &str, holdings: Vec<Holding>) -> Table {
        Table { name: name.to_owned(), pid: 1, holdings }
    }

    #[test]
    fn maker_saves_else_the_first_by_name() {
        let a = table("a", vec![holding(1, false, None), holding(2, false, None)]);
        let b = table("b", vec![holding(1, true, Some("GPU-1")), holding(2, false, Some("GPU-2"))]);
        let c = table("c", vec![holding(2, false, None)]);
        let found = objects(&[c.clone(), b.clone(), a.clone()]);
        let of = |inode| &found[&DmabufId { device: 1, inode }];
        assert_eq!((of(1).saver.as_str(), of(1).flags, of(1).home.as_deref()), ("b", 1, Some("GPU-1")));
        assert_eq!((of(2).saver.as_str(), of(2).home.as_deref()), ("a", Some("GPU-2")));
        assert_eq!(objects(&[a, b, c]), found);
    }
}
