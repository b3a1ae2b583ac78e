// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a run of lane-wise operations: chains of results and their consumers stay together.
//!
//! INVARIANT: two operations that share a register keep their order, unless both only read it. In the new order an
//! accumulator is loaded and stored once for all operations on it, not once for each.

use super::flow::Item;

/// Resources of an item: 256 VGPRs, 8 spare ones, 128 scalars, SCC.
const RESOURCES: usize = 256 + 8 + 128 + 1;

#[derive(Clone, Copy)]
struct Use {
    writer: u32,
    /// The readers since the last write: a list through `next_reader`.
    readers: u32,
}

const NONE: u32 = u32::MAX;

/// Puts `items` in a better order.
pub(super) fn by_chains(items: Vec<Item>) -> Vec<Item> {
    let touched = |k: usize, writes: bool, resources: &mut Vec<usize>| {
        let touch = &items[k].touch;
        if writes {
            touch.each_write(|r| resources.push(r));
        } else {
            touch.each_read(|r| resources.push(r));
        }
    };
    order(items.len(), RESOURCES, touched).into_iter().map(|k| items[k]).collect()
}

/// Each of `operations` for every piece: so many pieces of an operation side by side, and all operations for these before those for the
/// next ones.
pub(super) fn by_pieces<T: Copy>(operations: &[T], pieces: usize, side_by_side: usize) -> Vec<(T, usize)> {
    let starts = (0..pieces).step_by(side_by_side.max(1));
    let some = starts.map(|first| first..(first + side_by_side.max(1)).min(pieces));
    some.flat_map(|some| operations.iter().flat_map(move |&op| some.clone().map(move |c| (op, c)))).collect()
}

/// How many pieces of a run are done side by side, as chains of operations that do not wait for each other: all, two or one, as the
/// registers allow if `rows` pieces with the same lanes are live at a time and so many more registers are wanted.
pub(super) fn side_by_side(rows: usize, pieces: usize, registers: usize, more: usize) -> usize {
    [pieces, 2].into_iter().find(|count| rows * count + more <= registers).unwrap_or(1)
}

/// A better order of `n` operations on so many resources. `touched` gives the resources that an operation reads, or writes.
pub(super) fn order(
    n: usize,
    resources: usize,
    touched: impl Fn(usize, bool, &mut Vec<usize>),
) -> Vec<usize> {
    if n < 8 {
        return (0..n).collect();
    }
    let mut uses = vec![Use { writer: NONE, readers: NONE }; resources];
    // Successors, and how many operations each one waits for.
    let mut after: Vec<Vec<u32>> = vec![Vec::new(); n];
    let mut waits = vec![0u32; n];
    let mut links: Vec<(u32, u32)> = Vec::new();
    let mut resources = Vec::new();
    for k in 0..n {
        let index = k;
        let k = k as u32;
        let mut depend = |on: u32| {
            if on != NONE && on != k && after[on as usize].last() != Some(&k) {
                after[on as usize].push(k);
                waits[k as usize] += 1;
            }
        };
        resources.clear();
        touched(index, false, &mut resources);
        for &r in &resources {
            depend(uses[r].writer);
            links.push((k, uses[r].readers));
            uses[r].readers = links.len() as u32 - 1;
        }
        resources.clear();
        touched(index, true, &mut resources);
        for &r in &resources {
            depend(uses[r].writer);
            let mut link = uses[r].readers;
            while link != NONE {
                let (reader, next) = links[link as usize];
                depend(reader);
                link = next;
            }
            uses[r] = Use { writer: k, readers: NONE };
        }
    }
    let mut order = Vec::with_capacity(n);
    let mut taken = vec![false; n];
    let mut first = 0;
    while order.len() < n {
        // The first operation of the old order that waits for no other, then its chain.
        while taken[first] {
            first += 1;
        }
        let mut next = (first..n).find(|&k| !taken[k] && waits[k] == 0);
        while let Some(k) = next {
            taken[k] = true;
            order.push(k);
            for &s in &after[k] {
                waits[s as usize] -= 1;
            }
            next = after[k].iter().map(|&s| s as usize).find(|&s| !taken[s] && waits[s] == 0);
        }
        if order.len() < n && (first..n).all(|k| taken[k] || waits[k] != 0) {
            // Cannot happen: the first operation waits for no other. The old order is correct in any case.
            return (0..n).collect();
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_pieces_are_side_by_side_as_have_registers() {
        let list = |together| by_pieces(&['a', 'b'], 4, together);
        assert_eq!(list(1)[..4], [('a', 0), ('b', 0), ('a', 1), ('b', 1)]);
        assert_eq!(list(2)[..5], [('a', 0), ('a', 1), ('b', 0), ('b', 1), ('a', 2)]);
        assert_eq!(list(4)[3..5], [('a', 3), ('b', 0)]);
        assert_eq!([1, 2, 5, 6].map(|rows| side_by_side(rows, 4, 15, 4)), [4, 4, 2, 1]);
    }
}
