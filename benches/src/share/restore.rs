// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint and its restore against the number of shared buffers: of one process that has each twice, and of two
//! processes in a session that have each once.
//!
//! INVARIANT: of every set the bytes are compared after the restore, and that what one holder writes the other reads. The
//! peers are as many buffers of one holder, in the same process or the same session, taken in turns; every
//! round has all numbers, so that the machine's moods fall on all of them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use stasis::share::Item;
use stasis::{Buffer, Runtime};

use super::cycle::{self, NAMES, Phases};
use super::memfd;
use super::second::{Order, Second};
use crate::checkpoint::Place;
use crate::figure::{Report, median};

/// How many buffers.
const COUNTS: [usize; 5] = [1, 16, 64, 256, 1024];
const BYTES: usize = 64 << 10;
const ROUNDS: usize = 7;
/// No further round over all numbers once so much time has gone.
const ENOUGH: Duration = Duration::from_secs(30);

/// The processes that hold the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holders {
    One,
    /// One process, twice.
    Same,
    /// One process of a session.
    OneOfTwo,
    /// Both processes of a session.
    Two,
}

impl Holders {
    fn in_session(self) -> bool {
        matches!(self, Self::OneOfTwo | Self::Two)
    }
}

/// The `n`th buffer's bytes.
fn content(n: usize, salt: u64) -> Vec<u8> {
    let mut state =
        (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd134_2543_de82_ef95) | 1;
    let word = |_| {
        // Marsaglia's xorshift: no run of zeros that an image would leave out.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..BYTES / 8).flat_map(word).collect()
}

fn write(buffers: &[Buffer], salt: u64) -> Result<()> {
    buffers.iter().enumerate().try_for_each(|(n, buffer)| Ok(buffer.write(0, &content(n, salt))?))
}

/// Whether the buffers have these bytes.
pub fn check(buffers: &[Buffer], salt: u64) -> Result<()> {
    let mut found = vec![0; BYTES];
    for (n, buffer) in buffers.iter().enumerate() {
        buffer.read(0, &mut found)?;
        ensure!(
            found == content(n, salt),
            "buffer {n} of {} has other bytes than were written",
            buffers.len()
        );
    }
    Ok(())
}

/// What a further buffer costs between two numbers of them, in the unit of the times.
fn slope(from: (usize, f64), to: (usize, f64)) -> f64 {
    (to.1 - from.1) / (to.0 as f64 - from.0 as f64)
}

struct Bench<'a> {
    runtime: &'a Runtime,
    second: Second,
    base: &'a Path,
    generation: u64,
}

impl Bench<'_> {
    fn tell(&mut self, order: Order) -> Result<Phases> {
        self.second.order(order)?;
        self.second.answer()
    }

    fn send(&mut self, buffers: &[Buffer]) -> Result<()> {
        for part in buffers.chunks(memfd::MOST) {
            let items: Vec<Item<'_>> = part.iter().map(Item::Buffer).collect();
            self.second.order(Order::Take)?;
            self.runtime.send(self.second.socket(), &items)?;
            self.second.answer()?;
        }
        Ok(())
    }

    fn cycle(&mut self, alone: bool) -> Result<Phases> {
        self.generation += 1;
        let generation = self.generation;
        cycle::prepare(self.base, generation)?;
        if !alone {
            self.second.order(Order::Down { generation })?;
        }
        let down = cycle::down(self.runtime, self.base, generation, NAMES[0], alone)?;
        let phases = if alone {
            cycle::up(self.runtime, down)?
        } else {
            self.second.answer()?;
            self.second.order(Order::Up)?;
            let own = cycle::up(self.runtime, down)?;
            own.longer(self.second.answer()?)
        };
        // The next one is not to pay for this one's memory.
        std::fs::remove_dir_all(cycle::directory(self.base, generation)).context("Cannot remove an image")?;
        Ok(phases)
    }

    /// One set, one checkpoint and restore of it.
    fn round(&mut self, count: usize, holders: Holders) -> Result<Phases> {
        let agent = self.runtime.agent(0).context("There is no agent")?;
        let pool = agent.vram();
        let made: Vec<Buffer> =
            (0..count).map(|_| Ok(pool.alloc(BYTES as u64)?)).collect::<Result<Vec<_>>>()?;
        write(&made, 1)?;
        let import = |buffer: &Buffer| Ok(self.runtime.import(buffer.export()?, &agent)?);
        let imported = match holders {
            Holders::Same => made.iter().map(import).collect::<Result<Vec<_>>>()?,
            _ => Vec::new(),
        };
        if holders == Holders::Two {
            self.send(&made)?;
        }
        let phases = self.cycle(!holders.in_session())?;
        for salt in [1, 2] {
            check(&made, salt)?;
            check(&imported, salt)?;
            self.tell(Order::Check { salt })?;
            write(&made, 2)?;
        }
        self.tell(Order::Free)?;
        imported.iter().chain(&made).try_for_each(Buffer::free)?;
        Ok(phases)
    }
}

type Pick = fn(&Phases) -> f64;

const METRICS: [(&str, Pick); 9] = [
    ("lock_ms", |p| p.lock),
    ("write_ms", |p| p.write),
    ("close_ms", |p| p.close),
    ("checkpoint_ms", |p| p.checkpoint),
    ("open_ms", |p| p.open),
    ("rebuild_ms", |p| p.rebuild),
    ("fill_ms", |p| p.fill),
    ("rest_ms", |p| p.rest),
    ("restore_ms", |p| p.restore),
];

fn of(all: &[Phases], pick: Pick) -> f64 {
    median(&all.iter().map(pick).collect::<Vec<_>>())
}

/// Milliseconds of both ways for each number of buffers.
#[derive(Default)]
struct Line {
    checkpoint: Vec<(usize, f64)>,
    restore: Vec<(usize, f64)>,
}

impl Line {
    fn add(&mut self, count: usize, all: &[Phases]) {
        self.checkpoint.push((count, of(all, |p| p.checkpoint)));
        self.restore.push((count, of(all, |p| p.restore)));
    }

    /// Whether it is one: what a further buffer costs, at the end against before.
    fn report(&self, report: &Report, what: &str) {
        for (verb, points) in [("checkpoint", &self.checkpoint), ("restore", &self.restore)] {
            for (count, ms) in points {
                let metric = format!("{verb}_us_per_buffer");
                let each = |(count, ms): &(usize, f64)| ms * 1e3 / *count as f64;
                let case = format!("{count} {what}");
                match points.iter().find(|(count, _)| *count == 64) {
                    Some(at) if *count > 64 => {
                        report.versus(&case, &metric, each(&(*count, *ms)), "us", ("64 of them", each(at)));
                    }
                    _ => report.plain(&case, &metric, each(&(*count, *ms)), "us"),
                }
            }
            if let [.., a, b, c] = points[..] {
                let peer = format!("from {} to {}", a.0, b.0);
                let case = format!("from {} to {} {what}", b.0, c.0);
                let metric = format!("{verb}_us_per_further");
                report.versus(&case, &metric, slope(b, c) * 1e3, "us", (&peer, slope(a, b) * 1e3));
            }
        }
    }
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let runtime = Runtime::open_default()?;
    let place = Place::tmpfs()?;
    let second = Second::start(Some(place.path()))?;
    let mut bench = Bench { runtime: &runtime, second, base: place.path(), generation: 0 };
    let kinds = [Holders::One, Holders::Same, Holders::OneOfTwo, Holders::Two];
    for holders in kinds {
        bench.round(1, holders)?;
    }
    let mut all = COUNTS.map(|_| kinds.map(|_| Vec::new()));
    let mut rounds = 0;
    while rounds < ROUNDS && (rounds == 0 || report.elapsed() < ENOUGH) {
        for (count, all) in COUNTS.into_iter().zip(&mut all) {
            for (holders, all) in kinds.into_iter().zip(all) {
                all.push(bench.round(count, holders)?);
            }
        }
        rounds += 1;
    }
    report.note(&format!("buffers of {} KiB, {rounds} rounds", BYTES >> 10));
    let mut lines = kinds.map(|_| Line::default());
    for (count, all) in COUNTS.into_iter().zip(&all) {
        for (line, all) in lines.iter_mut().zip(all) {
            line.add(count, all);
        }
        let [alone, same, one_of_two, two] = all;
        for (case, ours, peer) in
            [("shared in one process", same, alone), ("shared by two processes", two, one_of_two)]
        {
            for (metric, pick) in METRICS {
                let peer = ("unshared", of(peer, pick));
                report.versus(&format!("{count} {case}"), metric, of(ours, pick), "ms", peer);
            }
        }
    }
    for (line, what) in lines.iter().zip([
        "unshared, one process",
        "shared in one process",
        "unshared, two processes",
        "shared by two processes",
    ]) {
        line.report(report, what);
    }
    bench.second.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_of_a_line_with_a_fixed_cost_is_the_cost_of_one_more() {
        let at = |count: usize| (count, 5.0 + 0.25 * count as f64);
        assert!((slope(at(64), at(1024)) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn content_differs_by_buffer_and_by_salt() {
        let (a, b, c) = (content(1, 1), content(2, 1), content(1, 2));
        assert_eq!(a.len(), BYTES);
        assert!(a != b && a != c && a == content(1, 1));
    }
}
