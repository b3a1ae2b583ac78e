// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of memory held, by place and by use.
//!
//! INVARIANT: the registry's entries are what is counted; only the peaks are remembered apart.

use std::collections::BTreeMap;
use std::fmt;

use super::state::{AgentIndex, BoKind, BoRole, BoState};

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryPlace {
    /// The memory of the agent with this index.
    Agent(usize),
    /// System memory that was allocated.
    Host,
    /// Memory that the process had before and has registered.
    Registered,
    /// Memory that came as a DMABuf.
    Imported,
}

impl MemoryPlace {
    /// Where the memory of a buffer object is, if it has any.
    pub fn of(state: &BoState) -> Option<Self> {
        match state.kind {
            BoKind::Vram => Some(MemoryPlace::Agent(state.agent.at())),
            BoKind::Gtt => Some(MemoryPlace::Host),
            BoKind::Userptr { .. } => Some(MemoryPlace::Registered),
            BoKind::Imported => Some(MemoryPlace::Imported),
            BoKind::Doorbell | BoKind::Reserved => None,
        }
    }
}

/// Bytes by place, and the most there were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    now: BTreeMap<MemoryPlace, u64>,
    peak: BTreeMap<MemoryPlace, u64>,
}

impl Tally {
    /// Counts an entry.
    pub fn add(&mut self, state: &BoState) {
        if let Some(place) = MemoryPlace::of(state) {
            *self.now.entry(place).or_default() += state.bytes;
        }
    }

    /// Counts it no longer.
    pub fn remove(&mut self, state: &BoState) {
        let now = MemoryPlace::of(state).and_then(|place| self.now.get_mut(&place));
        if let Some(now) = now {
            *now = now.saturating_sub(state.bytes);
        }
    }

    /// Remembers what is held if it is the most: not while an entry may turn out not to be had.
    pub fn settle(&mut self) {
        for (place, now) in &self.now {
            let peak = self.peak.entry(*place).or_default();
            *peak = (*peak).max(*now);
        }
    }

    /// The most bytes there were at a place.
    pub fn peak(&self, place: MemoryPlace) -> u64 {
        self.peak.get(&place).copied().unwrap_or(0)
    }
}

/// Memory of one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// What it is for.
    pub role: BoRole,
    /// Bytes.
    pub bytes: u64,
    /// Buffer objects.
    pub count: u64,
}

/// What a place's memory is used for, most first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings(pub Vec<Holding>);

impl Holdings {
    /// What is held at a place, by the states of all buffer objects.
    pub fn of<'s>(states: impl Iterator<Item = &'s BoState>, place: MemoryPlace) -> Self {
        let mut holdings: Vec<Holding> = Vec::new();
        for &BoState { role, bytes, .. } in states.filter(|state| MemoryPlace::of(state) == Some(place)) {
            match holdings.iter_mut().find(|holding| holding.role == role) {
                Some(holding) => {
                    holding.bytes += bytes;
                    holding.count += 1;
                }
                None => holdings.push(Holding { role, bytes, count: 1 }),
            }
        }
        holdings.sort_by_key(|holding| std::cmp::Reverse(holding.bytes));
        Holdings(holdings)
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|holding| holding.bytes).sum()
    }

    /// All buffer objects.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|holding| holding.count).sum()
    }
}

impl fmt::Display for Holdings {
    /// `24.0 GiB: buffers 20.1 GiB in 12, save areas 3.9 GiB in 4`; what is not among the first four in one sum.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 4;
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        write!(f, "{}", Amount(self.bytes()))?;
        let (named, others) = self.0.split_at(self.0.len().min(NAMED));
        for (n, Holding { role, bytes, count }) in named.iter().enumerate() {
            let comma = if n == 0 { ":" } else { "," };
            write!(f, "{comma} {} {} in {count}", role.name(), Amount(*bytes))?;
        }
        if !others.is_empty() {
            let others = Holdings(others.to_vec());
            write!(f, ", others {} in {}", Amount(others.bytes()), others.count())?;
        }
        Ok(())
    }
}

/// Bytes in the unit that makes them readable.
struct Amount(u64);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1024 => return write!(f, "{} B", self.0),
            0x400..0x10_0000 => (0x400, "KiB"),
            0x10_0000..0x4000_0000 => (0x10_0000, "MiB"),
            _ => (0x4000_0000, "GiB"),
        };
        let tenths = u128::from(self.0) * 10 / unit;
        write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
    }
}

/// The place of what was to be allocated.
pub fn place_of(kind: BoKind, agent: AgentIndex) -> MemoryPlace {
    match kind {
        BoKind::Vram => MemoryPlace::Agent(agent.at()),
        _ => MemoryPlace::Host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_readable() {
        let text = |bytes| Amount(bytes).to_string();
        assert_eq!(text(1023), "1023 B");
        assert_eq!(text(4096), "4.0 KiB");
        assert_eq!(text((3 << 20) + (1 << 19)), "3.5 MiB");
        assert_eq!(text(u64::MAX), "17179869183.9 GiB");
    }

    #[test]
    fn holdings_name_the_largest_first_and_sum_the_rest() {
        let holding = |role, mib: u64, count| Holding { role, bytes: mib << 20, count };
        let holdings = Holdings(vec![
            holding(BoRole::User, 2048, 12),
            holding(BoRole::SaveArea, 46, 1),
            holding(BoRole::Physical, 32, 16),
            holding(BoRole::Ring, 1, 1),
            holding(BoRole::Eop, 1, 2),
            holding(BoRole::Image, 1, 3),
        ]);
        assert_eq!(
            holdings.to_string(),
            "2.0 GiB: buffers 2.0 GiB in 12, save areas 46.0 MiB in 1, physical memory 32.0 MiB in 16, rings 1.0 MiB in 1, \
             others 2.0 MiB in 5"
        );
        assert_eq!(Holdings::default().to_string(), "nothing");
    }
}
