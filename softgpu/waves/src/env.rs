// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a running wave uses beside its own registers: memory permissions, LDS, dispatch identity.
//!
//! INVARIANT: an `Env` lives no longer than the map lock it borrows from, so its cached ranges cannot outlive a mapping.

use crate::exception::AccessKind;
use crate::vm::{Map, MemoryFault};

/// Dwords of LDS a workgroup can have.
pub(crate) const LDS_DWORDS: usize = 16 * 1024;

/// LDS of one workgroup, aligned like a cache line: most accesses are whole lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Lds([u32; LDS_DWORDS]);

impl Lds {
    /// Zeroed LDS on the heap.
    pub(crate) fn new() -> Box<Lds> {
        Box::new(Lds([0; LDS_DWORDS]))
    }
}

impl std::ops::Deref for Lds {
    type Target = [u32; LDS_DWORDS];

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl std::ops::DerefMut for Lds {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Values that messages return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub doorbell: u32,
    pub dispatch_id: u64,
    pub trap_memory: u64,
}

/// Ranges that recent accesses were found in, valid for one generation of the map.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Hot {
    generation: u64,
    read: [[u64; 2]; 4],
    write: [[u64; 2]; 4],
    next: usize,
    /// Those in which accesses of generated code were found last: each has one of these, together with others.
    read_before: [[u64; 2]; Hot::PLACES],
    write_before: [[u64; 2]; Hot::PLACES],
}

impl Hot {
    /// Places for ranges in which accesses of generated code were found.
    pub(crate) const PLACES: usize = 128;
    /// Offset of those of loads.
    pub(crate) const READ_BEFORE: usize = std::mem::offset_of!(Hot, read_before);
    /// Offset of those of stores.
    pub(crate) const WRITE_BEFORE: usize = std::mem::offset_of!(Hot, write_before);
    /// Offset of the four readable ranges (start, end), for generated code.
    pub(crate) const READ: usize = std::mem::offset_of!(Hot, read);
    /// Offset of the four writable ranges.
    pub(crate) const WRITE: usize = std::mem::offset_of!(Hot, write);

    pub(crate) fn new() -> Hot {
        // Ranges that hold nothing.
        let (few, many) = ([[u64::MAX, 0]; 4], [[u64::MAX, 0]; Hot::PLACES]);
        Hot { generation: u64::MAX, read: few, write: few, next: 0, read_before: many, write_before: many }
    }
}

/// Everything outside the wave's registers.
pub(crate) struct Env<'a> {
    pub map: &'a Map,
    pub lds: &'a mut Lds,
    pub identity: Identity,
    hot: &'a mut Hot,
    /// Instructions executed, for statistics.
    pub executed: u64,
}

impl<'a> Env<'a> {
    pub(crate) fn new(map: &'a Map, lds: &'a mut Lds, hot: &'a mut Hot, identity: Identity) -> Env<'a> {
        if hot.generation != map.generation {
            *hot = Hot { generation: map.generation, ..Hot::new() };
        }
        Env { map, lds, identity, hot, executed: 0 }
    }

    /// Sends a message to the host.
    pub(crate) fn interrupt(&self, m0: u32, privileged: bool) {
        if let Some(messages) = &self.map.messages {
            messages.interrupt(m0, privileged);
        }
    }

    /// Whether `lo..hi` lies in one readable or writable range; remembers the range.
    #[inline(always)]
    pub(crate) fn allows(&mut self, lo: u64, hi: u64, kind: AccessKind) -> bool {
        let hot = if kind == AccessKind::Write { &self.hot.write } else { &self.hot.read };
        for &[start, end] in hot {
            if lo >= start && hi <= end && lo < hi {
                return true;
            }
        }
        self.look_up(lo, hi, kind)
    }

    /// The allowed range that holds `address`.
    #[inline(always)]
    pub(crate) fn range_of(&mut self, address: u64, kind: AccessKind) -> Option<(u64, u64)> {
        let hot = if kind == AccessKind::Write { &self.hot.write } else { &self.hot.read };
        for &[start, end] in hot {
            if address >= start && address < end {
                return Some((start, end));
            }
        }
        let one = address.checked_add(1)?;
        if !self.look_up(address, one, kind) {
            return None;
        }
        let hot = if kind == AccessKind::Write { &self.hot.write } else { &self.hot.read };
        Some(hot[self.hot.next].into())
    }

    /// The cached ranges, for generated code.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn hot(&mut self) -> &mut Hot {
        self.hot
    }

    #[cold]
    #[inline(never)]
    fn look_up(&mut self, lo: u64, hi: u64, kind: AccessKind) -> bool {
        let Ok(range) = self.map.range_around(lo, kind) else { return false };
        self.hot.next = (self.hot.next + 1) % 4;
        let next = self.hot.next;
        let hot = if kind == AccessKind::Write { &mut self.hot.write } else { &mut self.hot.read };
        hot[next] = range.into();
        lo < hi && hi <= range.1
    }

    /// The fault of an access, for the exception.
    #[cold]
    pub(crate) fn fault(&self, address: u64, len: u64, kind: AccessKind) -> MemoryFault {
        self.map.check(address, len, kind).err().unwrap_or(MemoryFault {
            address,
            access: kind,
            not_present: false,
        })
    }
}
