// SPDX-License-Identifier: MIT OR Apache-2.0
//! All-reduce by direct reads: one kernel on each agent reads the vectors of all agents and writes the sum.
//!
//! INVARIANT: an agent reads a peer's memory only if it has a path there; other vectors are first copied to the agent
//! through system memory.

use std::collections::BTreeSet;

use anyhow::Result;
use stasis::Arg;

use crate::team::{SOON, Team};

/// Most agents whose vectors one kernel adds.
pub const MOST: usize = 4;

/// Lets every agent address the vectors that it can reach: once, before the measurement.
pub fn grant(team: &Team) -> Result<()> {
    for reader in &team.members {
        for member in &team.members {
            if reader.queue.agent().path_to(member.queue.agent()).exists() {
                member.data.allow(reader.queue.agent())?;
            }
        }
    }
    Ok(())
}

/// Runs the all-reduce. Returns the paths that were used.
pub fn run(team: &Team) -> Result<BTreeSet<String>> {
    let (n, bytes) = (team.members.len(), team.bytes());
    let mut paths = BTreeSet::new();
    let (mut sums, mut copies) = (Vec::new(), Vec::new());
    for (at, reader) in team.members.iter().enumerate() {
        let mut vectors = Vec::with_capacity(MOST);
        let first = copies.len();
        for (other, member) in team.members.iter().enumerate() {
            if reader.queue.agent().path_to(member.queue.agent()).exists() {
                vectors.push(member.data.va());
                if other != at {
                    paths.insert("direct".to_owned());
                }
                continue;
            }
            // One place in the inbox for each of the others.
            let offset = bytes * (if other < at { other } else { other - 1 }) as u64;
            let copy = team.copy(reader.inbox.span(offset, bytes), member.data.all(), &[])?;
            paths.insert(copy.path().to_string());
            vectors.push(reader.inbox.va() + offset);
            copies.push(copy);
        }
        vectors.resize(MOST, vectors[0]);
        let mut args = vec![Arg::Buffer(&reader.sums)];
        args.extend(vectors.iter().map(|va| Arg::Address(*va)));
        // CAST: at most MOST.
        args.extend([Arg::U32(n as u32), Arg::U32(team.floats)]);
        let after: Vec<_> = copies[first..].iter().map(stasis::Transfer::signal).collect();
        let done = team.signal()?;
        reader.run(&reader.sum, team.floats, &args, &after, &done)?;
        sums.push(done);
    }
    copies.iter().try_for_each(|copy| copy.wait(SOON))?;
    sums.iter().try_for_each(|signal| signal.wait_done(SOON))?;
    Ok(paths)
}
