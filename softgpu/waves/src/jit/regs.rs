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

/// Most registers.
const REGISTERS: usize = 32;

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Temporary,
    Piece(Piece),
    /// A constant in all lanes.
    Constant(u32),
    /// The bits of a scalar for a piece's lanes, as lanes of ones and zeros; memory has them, too.
    Mask(Bits),
}

impl Holds {
    /// As a number that no other of its kind has.
    fn number(self) -> u32 {
        match self {
            Holds::Temporary => 0,
            Holds::Piece(piece) => piece.into(),
            Holds::Constant(value) => value,
            Holds::Mask(bits) => bits.number(),
        }
    }
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

    fn number(self) -> u32 {
        // CAST: there are at most 8 pieces.
        u32::from(self.index) << 8 | self.c as u32
    }

    fn of_number(number: u32) -> Bits {
        // CAST: what `number` has put there.
        Bits { index: (number >> 8) as u16, c: (number & 0xFF) as usize }
    }
}

/// What has to be stored before a register gets another piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spill {
    pub register: u8,
    pub piece: Piece,
}

/// The numbers of the bits that are set, lowest first.
fn each(mut set: u32) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        // CAST: below 32.
        let k = set.trailing_zeros() as u8;
        (set != 0).then(|| {
            set &= set - 1;
            k
        })
    })
}

/// Sets of registers have a bit for each.
#[derive(Clone, Debug)]
pub(super) struct Regs {
    all: u32,
    /// By what they hold; the others are free.
    pieces: u32,
    constants: u32,
    masks: u32,
    temporaries: u32,
    dirty: u32,
    /// The operation being emitted uses them: they are not evicted.
    pinned: u32,
    /// Those whose next access overwrites the piece without reading it.
    next_overwrites: u32,
    /// What a register holds, as the number of its kind ([`Holds::number`]).
    numbers: [u32; REGISTERS],
    /// Positions of the next accesses.
    next: [u32; REGISTERS],
    /// What the mask registers have that are kept for a piece each (AVX-512; `masks.rs`).
    kept: [Option<Bits>; 2],
}

impl Regs {
    /// `count` registers, numbered from 0; at most 32.
    pub(super) fn new(count: usize) -> Regs {
        Regs {
            all: u32::MAX.checked_shr((REGISTERS - count.min(REGISTERS)) as u32).unwrap_or(0),
            pieces: 0,
            constants: 0,
            masks: 0,
            temporaries: 0,
            dirty: 0,
            pinned: 0,
            next_overwrites: 0,
            numbers: [0; REGISTERS],
            next: [NEVER; REGISTERS],
            kept: [None; 2],
        }
    }

    /// The register of `kind` with this number.
    fn holding(&self, kind: u32, number: u32) -> Option<u8> {
        let mut equal = 0;
        for (k, other) in self.numbers.iter().enumerate() {
            equal |= u32::from(*other == number) << k;
        }
        each(equal & kind).next()
    }

    /// The register that holds `piece`.
    pub(super) fn find(&self, piece: Piece) -> Option<u8> {
        self.holding(self.pieces, piece.into())
    }

    pub(super) fn pin(&mut self, register: u8) {
        self.pinned |= 1 << register;
    }

    pub(super) fn set_dirty(&mut self, register: u8) {
        self.dirty |= 1 << register;
        // What was known of the next access may have been this one.
        self.next_overwrites &= !(1 << register);
    }

    /// Empties registers.
    fn forget(&mut self, set: u32) {
        for of_kind in [&mut self.pieces, &mut self.constants, &mut self.masks, &mut self.temporaries] {
            *of_kind &= !set;
        }
        for property in [&mut self.dirty, &mut self.pinned, &mut self.next_overwrites] {
            *property &= !set;
        }
    }

    /// What an empty register holds from now on.
    fn set(&mut self, register: u8, holds: Holds) {
        let kind = match holds {
            Holds::Temporary => &mut self.temporaries,
            Holds::Piece(_) => &mut self.pieces,
            Holds::Constant(_) => &mut self.constants,
            Holds::Mask(_) => &mut self.masks,
        };
        *kind |= 1 << register;
        self.numbers[register as usize] = holds.number();
        self.next[register as usize] = NEVER;
    }

    /// What has to be stored before this register gets another piece.
    fn spill(&self, register: u8) -> Option<Spill> {
        let is_dead = self.next_overwrites >> register & 1 == 1 && self.next[register as usize] != NEVER;
        let is_newer = (self.pieces & self.dirty) >> register & 1 == 1;
        (is_newer && !is_dead).then(|| Spill { register, piece: self.piece(register) })
    }

    /// The piece in a register that has one.
    fn piece(&self, register: u8) -> Piece {
        // CAST: a piece's number.
        self.numbers[register as usize] as Piece
    }

    /// A register for a new value, pinned, and what must be stored first. `None` when all are pinned.
    fn take(&mut self, holds: Holds) -> Option<(u8, Option<Spill>)> {
        let free = self.all & !(self.taken_set() | self.pinned);
        // Most of the time there is a free one.
        let k = if free != 0 { 31 - free.leading_zeros() as u8 } else { self.to_evict()? };
        let spill = self.spill(k);
        self.forget(1 << k);
        self.set(k, holds);
        self.pin(k);
        Some((k, spill))
    }

    /// The register whose contents are needed last.
    fn to_evict(&self) -> Option<u8> {
        let candidates = self.all & !self.pinned;
        // Clean registers need no store, so they are evicted first among those of the same distance.
        let score = |k: &u8| {
            let (next, is_clean) = (self.next[*k as usize], self.dirty >> *k & 1 == 0);
            (next == NEVER && is_clean, u64::from(next) * 2 + u64::from(is_clean))
        };
        each(candidates).max_by_key(score)
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
        self.holding(self.constants, value)
    }

    /// A register for a constant that no register has; it is kept as long as no piece needs the register.
    pub(super) fn take_constant(&mut self, value: u32) -> Option<(u8, Option<Spill>)> {
        self.take(Holds::Constant(value))
    }

    /// The register that has these bits as lanes.
    pub(super) fn find_mask(&self, bits: Bits) -> Option<u8> {
        self.holding(self.masks, bits.number())
    }

    fn is_temporary(&self, register: u8) -> bool {
        self.temporaries >> register & 1 == 1
    }

    /// Makes a temporary the register of a scalar's bits, which are in memory as well. It is kept as long as no piece needs it.
    pub(super) fn keep_mask(&mut self, register: u8, bits: Bits) {
        if self.is_temporary(register) {
            self.temporaries &= !(1 << register);
            self.set(register, Holds::Mask(bits));
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
        for k in each(self.masks) {
            if changes(Bits::of_number(self.numbers[k as usize])) {
                self.forget(1 << k);
            }
        }
        for kept in &mut self.kept {
            kept.take_if(|bits| changes(*bits));
        }
    }

    /// Forgets constants and masks: code that is called now overwrites them, and only pieces are loaded again.
    pub(super) fn forget_constants(&mut self) {
        self.forget(self.constants | self.masks);
        self.kept = [None; 2];
    }

    /// Makes a temporary the register of `piece`, newer than memory; `false` if the register is not a temporary.
    pub(super) fn rename(&mut self, register: u8, piece: Piece) -> bool {
        if !self.is_temporary(register) {
            return false;
        }
        self.drop_piece(piece);
        self.temporaries &= !(1 << register);
        self.set(register, Holds::Piece(piece));
        self.dirty |= 1 << register;
        true
    }

    /// Empties a register. Returns what has to be stored before that.
    pub(super) fn free(&mut self, register: u8) -> Option<Spill> {
        let spill = self.spill(register);
        self.forget(1 << register);
        spill
    }

    /// An empty register has an intermediate result.
    pub(super) fn make_temporary(&mut self, register: u8) {
        self.forget(1 << register);
        self.set(register, Holds::Temporary);
        self.pin(register);
    }

    fn taken_set(&self) -> u32 {
        self.pieces | self.constants | self.masks | self.temporaries
    }

    /// How many registers have something.
    pub(super) fn taken(&self) -> u8 {
        // CAST: there are at most 32.
        self.taken_set().count_ones() as u8
    }

    /// Frees temporaries within an operation.
    pub(super) fn release_temporaries(&mut self) {
        self.forget(self.temporaries);
    }

    /// Ends an operation: temporaries are free again, nothing is pinned.
    pub(super) fn end_operation(&mut self) {
        self.forget(self.temporaries);
        self.pinned = 0;
    }

    /// Notes when `piece` is accessed next.
    pub(super) fn set_next(&mut self, piece: Piece, next: u32, overwrites: bool) {
        if let Some(register) = self.find(piece) {
            self.next[register as usize] = next;
            let bit = 1 << register;
            self.next_overwrites = self.next_overwrites & !bit | if overwrites { bit } else { 0 };
        }
    }

    /// Forgets `piece`, newer than memory or not.
    pub(super) fn drop_piece(&mut self, piece: Piece) {
        if let Some(register) = self.find(piece) {
            self.forget(1 << register);
        }
    }

    /// What has to be stored so that memory has `piece`, which counts as clean afterwards.
    pub(super) fn clean(&mut self, piece: Piece) -> Option<Spill> {
        let register = self.find(piece)?;
        let was_dirty = self.dirty >> register & 1 == 1;
        self.dirty &= !(1 << register);
        was_dirty.then_some(Spill { register, piece })
    }

    /// All pieces that are newer than memory; they count as clean afterwards.
    pub(super) fn write_back(&mut self) -> Vec<Spill> {
        let spills = self.dirty();
        self.dirty &= !self.pieces;
        spills
    }

    /// All pieces that are newer than memory.
    pub(super) fn dirty(&self) -> Vec<Spill> {
        self.spills(self.pieces & self.dirty)
    }

    /// All pieces that are in a register.
    pub(super) fn held(&self) -> Vec<Spill> {
        self.spills(self.pieces)
    }

    fn spills(&self, set: u32) -> Vec<Spill> {
        each(set).map(|register| Spill { register, piece: self.piece(register) }).collect()
    }

    /// Whether every register has what it has in `other`.
    pub(super) fn holds_as(&self, other: &Regs) -> bool {
        let kinds = |regs: &Regs| [regs.pieces, regs.constants, regs.masks, regs.temporaries];
        let has_number = |k: u8| self.numbers[k as usize] == other.numbers[k as usize];
        kinds(self) == kinds(other) && each(self.taken_set()).all(has_number)
    }

    /// Forgets all pieces; dirty ones are lost.
    pub(super) fn clear(&mut self) {
        self.forget(u32::MAX);
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
