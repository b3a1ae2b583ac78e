// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which host vector register holds which piece of which VGPR row.
//!
//! INVARIANT: a piece is in at most one register; a dirty register is newer than memory. Which piece is evicted is
//! decided by distance to the next access (Belady), which the emitter knows because it sees the whole region in
//! advance.

/// A piece of a row: as many lanes as a host register has. `row * pieces per row + piece`.
pub(super) type Piece = u16;

/// No further access within the region.
pub(super) const NEVER: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Nothing,
    Temporary,
    Piece(Piece),
    /// A constant in all lanes.
    Constant(u32),
    /// The bits of a scalar for a piece's lanes, as lanes of ones and zeros; memory has them, too.
    Mask(Bits),
}

/// The bits of scalar `index` for the lanes of piece `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub index: u16,
    pub c: usize,
}

impl Bits {
    /// The scalars that may have them, as bits: in a wave64, a mask is two.
    pub(super) fn scalars(self) -> u128 {
        3u128.checked_shl(self.index.into()).unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    holds: Holds,
    dirty: bool,
    /// The operation being emitted uses the register: it is not evicted.
    pinned: bool,
    /// Position of the next access.
    next: u32,
    /// Whether that access overwrites the piece without reading it.
    next_overwrites: bool,
}

const FREE: Slot =
    Slot { holds: Holds::Nothing, dirty: false, pinned: false, next: NEVER, next_overwrites: false };

impl Slot {
    /// What has to be stored before this register, `k`, gets another piece.
    fn spill(&self, k: usize) -> Option<Spill> {
        match self.holds {
            Holds::Piece(piece) if self.dirty && !(self.next_overwrites && self.next != NEVER) => {
                Some(Spill { register: k as u8, piece })
            }
            _ => None,
        }
    }
}

/// What has to be stored before a register gets another piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spill {
    pub register: u8,
    pub piece: Piece,
}

#[derive(Clone, Debug)]
pub(super) struct Regs {
    slots: Vec<Slot>,
    /// What the mask registers have that are kept for a piece each (AVX-512; `masks.rs`).
    kept: [Option<Bits>; 2],
}

impl Regs {
    /// `count` registers, numbered from 0.
    pub(super) fn new(count: usize) -> Regs {
        Regs { slots: vec![FREE; count], kept: [None; 2] }
    }

    /// The register that holds `piece`.
    pub(super) fn find(&self, piece: Piece) -> Option<u8> {
        self.holding(Holds::Piece(piece))
    }

    fn holding(&self, holds: Holds) -> Option<u8> {
        self.slots.iter().position(|s| s.holds == holds).map(|k| k as u8)
    }

    pub(super) fn pin(&mut self, register: u8) {
        self.slots[register as usize].pinned = true;
    }

    pub(super) fn set_dirty(&mut self, register: u8) {
        // What was known of the next access may have been this one.
        (self.slots[register as usize].dirty, self.slots[register as usize].next_overwrites) = (true, false);
    }

    /// A register for a new value, pinned, and what must be stored first. `None` when all are pinned.
    fn take(&mut self, holds: Holds) -> Option<(u8, Option<Spill>)> {
        // Most of the time there is a free one.
        let free = self.slots.iter().rposition(|s| s.holds == Holds::Nothing && !s.pinned);
        let k = free.or_else(|| self.to_evict())?;
        let slot = &self.slots[k];
        let spill = slot.spill(k);
        self.slots[k] = Slot { holds, pinned: true, ..FREE };
        Some((k as u8, spill))
    }

    /// The register whose contents are needed last.
    fn to_evict(&self) -> Option<usize> {
        // Clean registers need no store, so they are evicted first among those of the same distance.
        let score = |s: &Slot| (s.next == NEVER && !s.dirty, u64::from(s.next) * 2 + u64::from(!s.dirty));
        let slots = self.slots.iter().enumerate().filter(|(_, s)| !s.pinned);
        slots.max_by_key(|(_, s)| score(s)).map(|(k, _)| k)
    }

    /// A register for `piece`, which no register holds.
    pub(super) fn take_piece(&mut self, piece: Piece) -> Option<(u8, Option<Spill>)> {
        self.take(Holds::Piece(piece))
    }

    /// A register for an intermediate result, until the end of the operation.
    pub(super) fn take_temporary(&mut self) -> Option<(u8, Option<Spill>)> {
        self.take(Holds::Temporary)
    }

    /// The register that has `value` in all lanes.
    pub(super) fn find_constant(&self, value: u32) -> Option<u8> {
        self.holding(Holds::Constant(value))
    }

    /// A register for a constant that no register has; it is kept as long as no piece needs the register.
    pub(super) fn take_constant(&mut self, value: u32) -> Option<(u8, Option<Spill>)> {
        self.take(Holds::Constant(value))
    }

    /// The register that has these bits as lanes.
    pub(super) fn find_mask(&self, bits: Bits) -> Option<u8> {
        self.holding(Holds::Mask(bits))
    }

    /// Makes a temporary the register of a scalar's bits, which are in memory as well. It is kept as long as no piece needs it.
    pub(super) fn keep_mask(&mut self, register: u8, bits: Bits) {
        let slot = &mut self.slots[register as usize];
        if slot.holds == Holds::Temporary {
            slot.holds = Holds::Mask(bits);
        }
    }

    /// Whether the mask register kept for a piece has these bits.
    pub(super) fn has_kept(&self, bits: Bits) -> bool {
        self.kept.get(bits.c) == Some(&Some(bits))
    }

    /// Notes what the mask register kept for a piece has.
    pub(super) fn set_kept(&mut self, bits: Bits) {
        if let Some(kept) = self.kept.get_mut(bits.c) {
            *kept = Some(bits);
        }
    }

    /// Scalars change: forgets their bits for piece `c`, or for all.
    pub(super) fn forget_masks(&mut self, scalars: u128, c: Option<usize>) {
        let changes = |bits: Bits| bits.scalars() & scalars != 0 && c.is_none_or(|c| c == bits.c);
        self.forget(|holds| matches!(holds, Holds::Mask(bits) if changes(bits)));
        for kept in &mut self.kept {
            kept.take_if(|bits| changes(*bits));
        }
    }

    /// Forgets constants and masks: code that is called now overwrites them, and only pieces are loaded again.
    pub(super) fn forget_constants(&mut self) {
        self.forget(|holds| matches!(holds, Holds::Constant(_) | Holds::Mask(_)));
        self.kept = [None; 2];
    }

    fn forget(&mut self, which: impl Fn(Holds) -> bool) {
        for s in self.slots.iter_mut().filter(|s| which(s.holds)) {
            *s = FREE;
        }
    }

    /// Makes a temporary the register of `piece`, newer than memory; `false` if the register is not a temporary.
    pub(super) fn rename(&mut self, register: u8, piece: Piece) -> bool {
        if self.slots[register as usize].holds != Holds::Temporary {
            return false;
        }
        if let Some(old) = self.find(piece) {
            self.slots[old as usize] = FREE;
        }
        let slot = &mut self.slots[register as usize];
        (slot.holds, slot.dirty) = (Holds::Piece(piece), true);
        true
    }

    /// Empties a register. Returns what has to be stored before that.
    pub(super) fn free(&mut self, register: u8) -> Option<Spill> {
        let slot = &mut self.slots[register as usize];
        let spill = slot.spill(register.into());
        *slot = FREE;
        spill
    }

    /// An empty register has an intermediate result.
    pub(super) fn make_temporary(&mut self, register: u8) {
        self.slots[register as usize] = Slot { holds: Holds::Temporary, pinned: true, ..FREE };
    }

    /// How many registers have something.
    pub(super) fn taken(&self) -> u8 {
        // CAST: there are at most 32.
        self.slots.iter().filter(|s| s.holds != Holds::Nothing).count() as u8
    }

    /// Frees temporaries within an operation.
    pub(super) fn release_temporaries(&mut self) {
        self.forget(|holds| holds == Holds::Temporary);
    }

    /// Ends an operation: temporaries are free again, nothing is pinned.
    pub(super) fn end_operation(&mut self) {
        for s in &mut self.slots {
            s.pinned = false;
            if s.holds == Holds::Temporary {
                *s = FREE;
            }
        }
    }

    /// Notes when `piece` is accessed next.
    pub(super) fn set_next(&mut self, piece: Piece, next: u32, overwrites: bool) {
        if let Some(s) = self.slots.iter_mut().find(|s| s.holds == Holds::Piece(piece)) {
            (s.next, s.next_overwrites) = (next, overwrites);
        }
    }

    /// Forgets `piece`, newer than memory or not.
    pub(super) fn drop_piece(&mut self, piece: Piece) {
        self.forget(|holds| holds == Holds::Piece(piece));
    }

    /// What has to be stored so that memory has `piece`, which counts as clean afterwards.
    pub(super) fn clean(&mut self, piece: Piece) -> Option<Spill> {
        let register = self.find(piece)?;
        let was_dirty = std::mem::take(&mut self.slots[register as usize].dirty);
        was_dirty.then_some(Spill { register, piece })
    }

    /// All pieces that are newer than memory; they count as clean afterwards.
    pub(super) fn write_back(&mut self) -> Vec<Spill> {
        let mut spills = Vec::new();
        for (k, s) in self.slots.iter_mut().enumerate() {
            if let (Holds::Piece(piece), true) = (s.holds, s.dirty) {
                spills.push(Spill { register: k as u8, piece });
                s.dirty = false;
            }
        }
        spills
    }

    /// All pieces that are newer than memory.
    pub(super) fn dirty(&self) -> Vec<Spill> {
        self.clone().write_back()
    }

    /// All pieces that are in a register.
    pub(super) fn held(&self) -> Vec<Spill> {
        let piece = |(k, s): (usize, &Slot)| match s.holds {
            Holds::Piece(piece) => Some(Spill { register: k as u8, piece }),
            _ => None,
        };
        self.slots.iter().enumerate().filter_map(piece).collect()
    }

    /// Whether every piece is in the same register as in `other`.
    pub(super) fn holds_as(&self, other: &Regs) -> bool {
        self.slots.iter().zip(&other.slots).all(|(a, b)| a.holds == b.holds)
    }

    /// Forgets all pieces; dirty ones are lost.
    pub(super) fn clear(&mut self) {
        self.slots.fill(FREE);
        self.kept = [None; 2];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_piece_needed_last_goes_and_is_stored_if_dirty() {
        let mut regs = Regs::new(2);
        let (a, _) = regs.take_piece(10).unwrap();
        let (b, _) = regs.take_piece(11).unwrap();
        regs.set_dirty(a);
        regs.end_operation();
        regs.set_next(10, 9, false);
        regs.set_next(11, 5, false);
        assert_eq!(regs.take_piece(12), Some((a, Some(Spill { register: a, piece: 10 }))));
        assert_eq!(regs.take_temporary(), Some((b, None)));
        assert_eq!(regs.take_temporary(), None, "both are in use");
    }

    #[test]
    fn constants_are_kept_until_a_piece_needs_the_register() {
        let mut regs = Regs::new(2);
        let (a, _) = regs.take_piece(10).unwrap();
        let (b, _) = regs.take_constant(7).unwrap();
        regs.end_operation();
        regs.set_next(10, 5, false);
        assert_eq!((regs.find_constant(7), regs.find_constant(8)), (Some(b), None));
        assert_eq!(regs.take_piece(11), Some((b, None)));
        assert_eq!((regs.find_constant(7), regs.find(10)), (None, Some(a)));
        regs.end_operation();
        let (c, _) = regs.take_constant(9).unwrap();
        regs.end_operation();
        assert_eq!(regs.find_constant(9), Some(c));
        regs.forget_constants();
        assert_eq!(regs.find_constant(9), None);
    }

    #[test]
    fn masks_are_kept_until_their_scalar_changes() {
        let bits = |index, c| Bits { index, c };
        let mut regs = Regs::new(4);
        for (index, c) in [(106, 0), (106, 1), (4, 0)] {
            let (n, _) = regs.take_temporary().unwrap();
            regs.keep_mask(n, bits(index, c));
        }
        regs.end_operation();
        regs.set_kept(bits(106, 0));
        let found =
            |regs: &Regs| [(106, 0), (106, 1), (4, 0)].map(|(i, c)| regs.find_mask(bits(i, c)).is_some());
        assert_eq!((found(&regs), regs.has_kept(bits(106, 0))), ([true; 3], true));
        regs.forget_masks(1 << 106, Some(1));
        assert_eq!((found(&regs), regs.has_kept(bits(106, 0))), ([true, false, true], true));
        // A scalar may be the second one of a mask.
        regs.forget_masks(1 << 107 | 1 << 3, None);
        assert_eq!((found(&regs), regs.has_kept(bits(106, 0))), ([false, false, true], false));
        regs.forget_constants();
        assert_eq!(found(&regs), [false; 3]);
    }

    #[test]
    fn a_dead_piece_is_not_stored() {
        let mut regs = Regs::new(1);
        let (a, _) = regs.take_piece(10).unwrap();
        regs.set_dirty(a);
        regs.end_operation();
        regs.set_next(10, 7, true);
        assert_eq!(regs.take_piece(12), Some((a, None)));
        regs.set_dirty(a);
        regs.end_operation();
        // No operation of the region overwrites the piece: memory must have it at the end.
        regs.set_next(12, NEVER, true);
        assert_eq!(regs.take_piece(13).unwrap().1, Some(Spill { register: a, piece: 12 }));
    }
}
