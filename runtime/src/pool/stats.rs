// SPDX-License-Identifier: MIT OR Apache-2.0
//! What memory the process holds: by place, by use, now and at most.
//!
//! INVARIANT: the registry's entries are what is counted; only the peaks are remembered apart.

use crate::context::registry::state::BoRole;
use crate::context::registry::tally::{Holdings, MemoryPlace};
use crate::runtime::Runtime;

/// What is held at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceStats {
    /// Where.
    pub place: MemoryPlace,
    /// Bytes now.
    pub bytes: u64,
    /// Buffer objects now.
    pub count: u64,
    /// The most bytes there were at once.
    pub peak: u64,
    /// What for.
    pub holdings: Holdings,
}

/// What the process holds of memory and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// By place: every agent, the host, what is registered.
    pub places: Vec<PlaceStats>,
    /// Bytes of addresses in reserved ranges.
    pub reserved: u64,
    /// Bytes of them that have memory.
    pub mapped: u64,
    /// Bytes of addresses of the process's window that nothing has.
    pub free_addresses: u64,
}

impl MemoryStats {
    /// What is held at a place.
    pub fn at(&self, place: MemoryPlace) -> Option<&PlaceStats> {
        self.places.iter().find(|stats| stats.place == place)
    }
}

impl Runtime {
    /// What the process holds now, and the most it held. The runtime's own memory, for queues and signals, is counted
    /// too.
    pub fn memory_stats(&self) -> MemoryStats {
        let mut registry = self.context().registry.lock();
        registry.tally.settle();
        let agents = (0..self.context().agents.len()).map(MemoryPlace::Agent);
        let stats = |place| {
            let holdings = Holdings::of(registry.bos.iter().map(|(_, bo)| &bo.state), place);
            let peak = registry.tally.peak(place);
            PlaceStats { place, bytes: holdings.bytes(), count: holdings.count(), peak, holdings }
        };
        let ranges = registry.bos.iter().filter(|(_, bo)| bo.state.role == BoRole::Range);
        MemoryStats {
            places: agents.chain([MemoryPlace::Host, MemoryPlace::Registered]).map(stats).collect(),
            reserved: ranges.map(|(_, bo)| bo.state.bytes).sum(),
            mapped: registry.maps.iter().map(|(_, entry)| entry.state.bytes).sum(),
            free_addresses: registry.arena.free_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::registry::tally::Holding;
    use crate::testing::runtime;

    #[test]
    fn peak_stays_and_a_refused_allocation_does_not_count() {
        let (runtime, _) = runtime(2);
        let agent = runtime.agent(1).unwrap();
        let first = agent.vram().alloc(3 << 20).unwrap();
        drop(agent.vram().alloc(5 << 20).unwrap());
        agent.vram().alloc(25 << 30).unwrap_err();
        let stats = runtime.memory_stats();
        let vram = stats.at(MemoryPlace::Agent(1)).unwrap();
        assert_eq!((vram.bytes, vram.count, vram.peak), (3 << 20, 1, 8 << 20));
        assert_eq!(vram.holdings.0, [Holding { role: BoRole::User, bytes: 3 << 20, count: 1 }]);
        assert_eq!(stats.at(MemoryPlace::Agent(0)).unwrap().bytes, 0);
        drop(first);
        let range = runtime.reserve(1 << 30, 0).unwrap();
        let after = runtime.memory_stats();
        assert_eq!(after.at(MemoryPlace::Agent(1)).unwrap().bytes, 0);
        assert_eq!((after.reserved, after.mapped), (range.len(), 0));
        assert!(after.free_addresses < stats.free_addresses);
    }
}
