// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of accumulations that are an outer product: tiles of accumulators stay in registers while their factors pass.
//!
//! INVARIANT: the operations on one accumulator keep their order, and no operation reads what another accumulator's wrote;
//! so the results are the same in any order of the accumulators.

use std::collections::HashMap;

use iced_x86::{Code, Register};
use softgpu_isa::Op;

use super::asm::{RENAMED, ROWS};
use super::generator::{Accesses, Emit, Gen, next_accesses};
use super::lane;
use super::regs::Piece;
use crate::step::{Kind, Step};

/// How many pieces of the accumulators are still to be done.
const PIECES_LEFT: Register = Register::ECX;

/// An operation on one piece: `to = f(to, from[0], from[1])`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accumulation {
    pub to: Piece,
    pub from: [Piece; 2],
}

/// What all operations on an accumulator read, in their order: one side of the product.
type Factors = Vec<Piece>;

/// Fewer accumulators are not worth it: they may all have registers.
const LEAST: usize = 8;

/// An accumulator: its two sides, by number, and the positions of its operations.
struct Chain {
    sides: [usize; 2],
    operations: Vec<usize>,
}

impl Gen {
    /// What `step` is for the first piece, if it is an accumulation that is the same for every piece, of an accumulator of the
    /// wave's own.
    pub(super) fn accumulation(&self, step: &Step) -> Option<Accumulation> {
        let is_product = matches!(step.op, Some(Op::V_FMA_F32 | Op::V_FMAC_F32));
        if !is_product || !step.src.iter().all(|s| s.kind == Kind::Vgpr) || step.src[2].index != step.dst {
            return None;
        }
        let [a, b, to] = step.src.map(|s| self.piece(s.index, 0, 0));
        (usize::from(to) < self.first_renamed()).then_some(Accumulation { to, from: [a, b] })
    }

    /// Accumulations in this order for all pieces: a loop over these, since the code of all would be long. Renamed rows must be
    /// at hand.
    pub(super) fn for_all_pieces(&mut self, operations: &[(&Step, Emit)]) {
        self.write_back(true);
        let accesses: Vec<Accesses> =
            operations.iter().map(|(step, _)| lane::accesses(self, step, 0, false)).collect();
        let accesses = next_accesses(&accesses, self.all_pieces(), |_| false);
        // CAST: at most 8.
        let pieces = self.pieces() as i32;
        self.asm.op2(Code::Mov_r32_imm32, PIECES_LEFT, pieces);
        let head = self.asm.label();
        self.asm.place(head);
        // A factor is read several times, so it gets a register.
        let had_renamed = std::mem::take(&mut self.has_renamed);
        for ((step, emit), accesses) in operations.iter().zip(&accesses) {
            emit(self, step, 0);
            self.end_operation(accesses);
        }
        self.write_back(true);
        self.has_renamed = had_renamed;
        // CAST: at most 64.
        let bytes = (self.wide.lanes() * 4) as i32;
        for base in [ROWS, RENAMED] {
            self.asm.op2(Code::Add_rm64_imm32, base, bytes);
        }
        self.asm.op1(Code::Dec_rm32, PIECES_LEFT);
        self.asm.jump(Code::Jne_rel32_64, head);
        for base in [ROWS, RENAMED] {
            self.asm.op2(Code::Sub_rm64_imm32, base, bytes * pieces);
        }
    }
}

/// The order in which `list` needs fewest loads in so many registers; `None` if it is not an outer product, in which every
/// accumulator has as many operations as the others.
pub(super) fn order(list: &[Accumulation], registers: usize) -> Option<Vec<usize>> {
    let (chains, factors) = chains(list)?;
    let is_second = sides(&chains, factors)?;
    let mut numbers: [Vec<usize>; 2] = [Vec::new(), Vec::new()];
    for (factor, &second) in is_second.iter().enumerate() {
        numbers[usize::from(second)].push(factor);
    }
    let tile = size(numbers[0].len(), numbers[1].len(), registers)?;
    let of: HashMap<[usize; 2], &Chain> = chains
        .iter()
        .map(|chain| {
            let [a, b] = chain.sides;
            (if is_second[a] { [b, a] } else { [a, b] }, chain)
        })
        .collect();
    // Two accumulators of the same factors.
    if of.len() != chains.len() {
        return None;
    }
    let turns = chains.first()?.operations.len();
    let mut order = Vec::with_capacity(list.len());
    for rows in numbers[0].chunks(tile[0]) {
        for columns in numbers[1].chunks(tile[1]) {
            // The factors of the shorter side stay, those of the other one pass.
            let rows_stay = rows.len() < columns.len();
            let (passing, staying) = if rows_stay { (columns, rows) } else { (rows, columns) };
            for turn in 0..turns {
                for &p in passing {
                    for &s in staying {
                        let key = if rows_stay { [s, p] } else { [p, s] };
                        order.extend(of.get(&key).map(|chain| chain.operations[turn]));
                    }
                }
            }
        }
    }
    (order.len() == list.len()).then_some(order)
}

/// The accumulators, and how many different sides they have.
fn chains(list: &[Accumulation]) -> Option<(Vec<Chain>, usize)> {
    let mut operations: HashMap<Piece, Vec<usize>> = HashMap::new();
    let mut accumulators = Vec::new();
    for (k, a) in list.iter().enumerate() {
        let positions = operations.entry(a.to).or_default();
        if positions.is_empty() {
            accumulators.push(a.to);
        }
        positions.push(k);
    }
    let is_independent = |a: &Accumulation| a.from.iter().all(|from| !operations.contains_key(from));
    if accumulators.len() < LEAST || !list.iter().all(is_independent) {
        return None;
    }
    let turns = list.len() / accumulators.len();
    let mut factors: HashMap<Factors, usize> = HashMap::new();
    let mut chains = Vec::with_capacity(accumulators.len());
    for to in accumulators {
        let operations = operations.remove(&to)?;
        if operations.len() != turns {
            return None;
        }
        let mut side = |k: usize| {
            let read: Factors = operations.iter().map(|&at| list[at].from[k]).collect();
            let next = factors.len();
            *factors.entry(read).or_insert(next)
        };
        let sides = [side(0), side(1)];
        chains.push(Chain { sides, operations });
    }
    Some((chains, factors.len()))
}

/// Which factors are of the second side, if they can be divided so that every accumulator has one of each.
fn sides(chains: &[Chain], factors: usize) -> Option<Vec<bool>> {
    let mut others: Vec<Vec<usize>> = vec![Vec::new(); factors];
    for Chain { sides: [a, b], .. } in chains {
        others[*a].push(*b);
        others[*b].push(*a);
    }
    let mut is_second: Vec<Option<bool>> = vec![None; factors];
    for first in 0..factors {
        if is_second[first].is_some() {
            continue;
        }
        is_second[first] = Some(false);
        let mut waiting = vec![first];
        while let Some(at) = waiting.pop() {
            let other_side = is_second[at].map(|second| !second);
            for &other in &others[at] {
                match is_second[other] {
                    None => {
                        is_second[other] = other_side;
                        waiting.push(other);
                    }
                    known if known != other_side => return None,
                    _ => {}
                }
            }
        }
    }
    is_second.into_iter().collect()
}

/// The size of a tile with which fewest factors are loaded; `None` if none saves much.
fn size(rows: usize, columns: usize, registers: usize) -> Option<[usize; 2]> {
    let fits = |r: usize, c: usize| r * c + r.min(c) + 1 < registers;
    let sizes = (2..=rows).flat_map(|r| (2..=columns).map(move |c| [r, c]));
    let loads = |[r, c]: [usize; 2]| rows * columns.div_ceil(c) + columns * rows.div_ceil(r);
    sizes.filter(|&[r, c]| fits(r, c)).min_by_key(|&size| (loads(size), size[0] * size[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` by `m` accumulators, `turns` times, whose factors are read in either order.
    fn product(n: u16, m: u16, turns: u16) -> Vec<Accumulation> {
        let mut list = Vec::new();
        for turn in 0..turns {
            for (i, j) in (0..n).flat_map(|i| (0..m).map(move |j| (i, j))) {
                let (a, b) = (1000 + turn * 64 + i, 1000 + turn * 64 + 32 + j);
                let from = if (i + j) % 3 == 0 { [b, a] } else { [a, b] };
                list.push(Accumulation { to: i * m + j, from });
            }
        }
        list
    }

    /// Loads of factors and accumulators, if of so many registers the one whose contents are needed last is taken.
    fn loads(list: &[Accumulation], order: &[usize], registers: usize) -> usize {
        let reads: Vec<Piece> =
            order.iter().flat_map(|&k| [list[k].from[0], list[k].from[1], list[k].to]).collect();
        let (mut held, mut loads) = (Vec::new(), 0);
        for (at, piece) in reads.iter().enumerate() {
            if !held.contains(piece) {
                loads += 1;
                held.push(*piece);
            }
            if held.len() > registers {
                let next =
                    |piece| reads[at + 1..].iter().position(|other| other == piece).unwrap_or(usize::MAX);
                let last = (0..held.len()).max_by_key(|&k| next(&held[k])).unwrap();
                held.swap_remove(last);
            }
        }
        loads
    }

    #[test]
    fn every_operation_is_there_once_and_those_of_an_accumulator_in_their_order() {
        for (n, m, registers) in [(8, 8, 32), (8, 8, 15), (5, 7, 15), (4, 4, 15), (3, 8, 32)] {
            let list = product(n, m, 4);
            let order = order(&list, registers).unwrap();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..list.len()).collect::<Vec<_>>());
            for to in 0..n * m {
                let of: Vec<usize> = order.iter().copied().filter(|&k| list[k].to == to).collect();
                assert!(of.is_sorted(), "accumulator {to} of {n} x {m}");
            }
        }
    }

    #[test]
    fn a_tile_loads_a_factor_for_several_accumulators() {
        let list = product(8, 8, 4);
        for (registers, most) in [(32, 0.8), (15, 1.1)] {
            let order = order(&list, registers).unwrap();
            let loads = loads(&list, &order, registers) as f64 / list.len() as f64;
            assert!(loads <= most, "{loads} loads an operation in {registers} registers");
        }
    }

    #[test]
    fn what_is_no_outer_product_keeps_its_order() {
        let mut depends = product(8, 8, 2);
        depends[70].from[0] = 3;
        assert_eq!(order(&depends, 32), None, "a factor is an accumulator");
        let mut uneven = product(8, 8, 2);
        uneven.pop();
        assert_eq!(order(&uneven, 32), None, "an accumulator has one operation less");
        let mut twice = product(8, 8, 1);
        twice.push(Accumulation { to: 64, ..twice[0] });
        assert_eq!(order(&twice, 32), None, "two accumulators of the same factors");
        let triangle = [[1000, 1001], [1001, 1002], [1002, 1000]];
        let mut odd: Vec<Accumulation> =
            triangle.iter().zip(100..).map(|(&from, to)| Accumulation { to, from }).collect();
        odd.extend(product(4, 4, 1).iter().map(|a| Accumulation { from: a.from.map(|f| f + 100), ..*a }));
        assert_eq!(order(&odd, 32), None, "the factors have no two sides");
        assert_eq!(order(&product(2, 2, 4), 32), None, "few accumulators");
    }
}
