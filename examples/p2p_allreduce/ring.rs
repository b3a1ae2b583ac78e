// SPDX-License-Identifier: MIT OR Apache-2.0
//! All-reduce by a ring: every agent sends a part of its vector to the next one, which adds it to its own. After n - 1
//! steps each agent has the sum of one part, and the sums then go round the ring once more.
//!
//! INVARIANT: the host submits everything and waits once. A copy waits for the addition that made its source, and for
//! the addition that has read the old value of its destination; an addition waits for its copy. A signal that a packet
//! waits for must live until the packet has been processed, so all signals are kept to the end.

use std::collections::BTreeSet;

use anyhow::Result;
use stasis::{Arg, Signal, Transfer};

use crate::team::{SOON, Team};

/// Runs it; the paths that were taken.
pub fn run(team: &Team) -> Result<BTreeSet<String>> {
    let n = team.members.len();
    let parts = team.device.split(u64::from(team.floats), 64);
    let span =
        |buffer: &'_ stasis::Buffer, part: usize| (buffer.clone(), parts[part].0 * 4, parts[part].1 * 4);
    let mut paths = BTreeSet::new();
    let mut note = |copy: &Transfer| {
        paths.insert(copy.path().to_string());
    };
    // The signals that each member's vector waits for, besides the order of its queue.
    let mut ready: Vec<Option<Signal>> = vec![None; n];
    let (mut copies, mut kept) = (Vec::new(), Vec::new());
    for step in 0..n - 1 {
        let mut next = ready.clone();
        for at in 0..n {
            let (to, part) = ((at + 1) % n, (at + n - step) % n);
            if parts[part].1 == 0 {
                continue;
            }
            let (from, offset, bytes) = span(&team.members[at].data, part);
            let member = &team.members[to];
            let after: Vec<&Signal> = [&ready[at], &ready[to]].into_iter().flatten().collect();
            let copy = team.copy(member.inbox.span(offset, bytes), from.span(offset, bytes), &after)?;
            note(&copy);
            let done = team.signal()?;
            let add = [
                Arg::Address(member.data.va() + offset),
                Arg::Address(member.inbox.va() + offset),
                // CAST: a part of what was a u32.
                Arg::U32((bytes / 4) as u32),
            ];
            member.run(&member.add, (bytes / 4) as u32, &add, &[copy.signal()], &done)?;
            next[to] = Some(done.clone());
            kept.push(done);
            copies.push(copy);
        }
        ready = next;
    }
    for step in 0..n - 1 {
        let mut next = ready.clone();
        for at in 0..n {
            let (to, part) = ((at + 1) % n, (at + 1 + n - step) % n);
            if parts[part].1 == 0 {
                continue;
            }
            let (from, offset, bytes) = span(&team.members[at].data, part);
            let after: Vec<&Signal> = [&ready[at], &ready[to]].into_iter().flatten().collect();
            let copy =
                team.copy(team.members[to].data.span(offset, bytes), from.span(offset, bytes), &after)?;
            note(&copy);
            next[to] = Some(copy.signal().clone());
            copies.push(copy);
        }
        ready = next;
    }
    copies.iter().try_for_each(|copy| copy.wait(SOON))?;
    ready.iter().flatten().try_for_each(|signal| signal.wait_done(SOON))?;
    Ok(paths)
}
