// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which registers a piece of a program reads and writes, spare rows included.
//!
//! INVARIANT: the sets never miss a register; they may name more. So two pieces that do not conflict may change places.

use softgpu_isa::{Effects, Inst, RegSet, WaveSize};

use crate::predecode::Shape;
use crate::step::{Kind, Step};

/// Reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touch {
    reads: RegSet,
    writes: RegSet,
    /// Bit per spare register.
    spare_reads: u8,
    spare_writes: u8,
}

impl Touch {
    /// The registers of `inst`, which is lowered to `steps`.
    pub(super) fn of(inst: &Inst, steps: &[Step], shape: Shape) -> Touch {
        let wave = if shape.halves == 2 { WaveSize::W64 } else { WaveSize::W32 };
        let Effects { reads, writes } = inst.effects(wave);
        let mut touch = Touch { reads, writes, ..Touch::default() };
        let spare =
            |row: u16| (row as usize / shape.halves).checked_sub(shape.vgprs).map_or(0, |k| 1u8 << (k & 7));
        for step in steps {
            touch.spare_writes |= spare(step.dst);
            for src in step.src.iter().filter(|s| matches!(s.kind, Kind::Vgpr | Kind::VgprMod)) {
                touch.spare_reads |= spare(src.index);
            }
        }
        touch
    }

    /// Whether `self` may not change places with `other`.
    pub(super) fn conflicts(&self, other: &Touch) -> bool {
        self.writes.intersects(&other.reads)
            || self.writes.intersects(&other.writes)
            || self.reads.intersects(&other.writes)
            || self.spare_writes & (other.spare_reads | other.spare_writes) != 0
            || self.spare_reads & other.spare_writes != 0
    }

    /// Adds the registers of `other`.
    pub(super) fn add(&mut self, other: &Touch) {
        union(&mut self.reads, &other.reads);
        union(&mut self.writes, &other.writes);
        self.spare_reads |= other.spare_reads;
        self.spare_writes |= other.spare_writes;
    }

    /// Whether EXEC may change.
    pub(super) fn writes_exec(&self) -> bool {
        self.writes.scalar >> crate::wave::EXEC & 3 != 0
    }

    /// Calls `f` with the number of every register that is read.
    pub(super) fn each_read(&self, f: impl FnMut(usize)) {
        each(&self.reads, self.spare_reads, f);
    }

    /// Calls `f` with the number of every register that may change.
    pub(super) fn each_write(&self, f: impl FnMut(usize)) {
        each(&self.writes, self.spare_writes, f);
    }

    /// Whether VGPR `register` may change.
    pub(super) fn writes_register(&self, register: usize) -> bool {
        self.writes.vector.get(register / 64).is_some_and(|word| word >> (register % 64) & 1 != 0)
    }

    /// Whether it reads scalars that `other` may change.
    pub(super) fn reads_scalars_of(&self, other: &Touch) -> bool {
        self.reads.scalar & other.writes.scalar != 0
    }

    pub(super) fn reads_scc(&self) -> bool {
        self.reads.scc
    }

    pub(super) fn writes_scc(&self) -> bool {
        self.writes.scc
    }

    /// Scalars that may change, as bits.
    pub(super) fn written_scalars(&self) -> u128 {
        self.writes.scalar
    }
}

fn union(into: &mut RegSet, from: &RegSet) {
    into.scalar |= from.scalar;
    for (a, b) in into.vector.iter_mut().zip(&from.vector) {
        *a |= b;
    }
    into.scc |= from.scc;
    into.mode |= from.mode;
}

/// Registers as numbers: VGPRs, spare ones from 256, scalars from 264, SCC 392.
fn each(set: &RegSet, spare: u8, mut f: impl FnMut(usize)) {
    let mut bits = |mut word: u128, base: usize| {
        while word != 0 {
            f(base + word.trailing_zeros() as usize);
            word &= word - 1;
        }
    };
    for (k, &word) in set.vector.iter().enumerate() {
        bits(word.into(), 64 * k);
    }
    bits(spare.into(), 256);
    bits(set.scalar, 264);
    bits(u128::from(set.scc), 392);
}
