// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random graphs of processes, buffers, DMABufs and imports, and a model of the contents of each alias.
//!
//! INVARIANT: the model knows which worker holds which memory, but not how. After a checkpoint the workers that shared
//! memory share it again, no other worker does, and every descriptor has its number.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::language::{Answer, Ask, By, Seen};
use super::{PATIENCE, Sharers};
use crate::gpu::Numbers;
use crate::worker::open_files;

/// Bytes of every buffer: several pages, so that a missing last page is found.
const BYTES: u64 = 3 * 4096;
/// Bytes that are compared, at the end of the buffer.
const MARK: usize = 8;

/// A source of choices.
#[derive(Debug)]
pub struct Dice(Numbers);

impl Dice {
    /// The choices of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Numbers(seed))
    }

    /// A number below `sides`.
    ///
    /// # Panics
    /// For 0.
    pub fn roll(&mut self, sides: usize) -> usize {
        // The lowest bits of the generator are the least random.
        (self.0.next().expect("numbers do not end") >> 7) as usize % sides
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.roll(from.len())) }
    }
}

/// A worker's object, by its name in the worker.
type Held = (String, String);

/// Which worker holds which memory.
#[derive(Debug, Default)]
pub struct Graph {
    seed: u64,
    is_one_tree: bool,
    buffers: BTreeMap<Held, usize>,
    fds: BTreeMap<Held, usize>,
    memories: usize,
    names: usize,
    marks: u64,
}

impl Graph {
    /// An empty graph. Its names differ from those of graphs of other seeds, whose workers may live on.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// An empty graph in which no worker with children ever ends: its processes are one tree, as CRIU requires.
    #[must_use]
    pub fn of_one_tree(seed: u64) -> Self {
        Self { is_one_tree: true, ..Self::new(seed) }
    }

    fn name(&mut self, kind: char) -> String {
        self.names += 1;
        format!("{kind}{}-{}", self.seed, self.names)
    }

    /// Does `steps` random operations with the workers `who`. Some of them may end; the first, the root, does not.
    pub fn grow(&mut self, on: &mut Sharers, dice: &mut Dice, steps: usize, agents: usize) {
        for _ in 0..steps {
            let names = on.names();
            let worker = names[dice.roll(names.len())].clone();
            let buffers: Vec<Held> = self.buffers.keys().filter(|(at, _)| *at == worker).cloned().collect();
            let fds: Vec<Held> = self.fds.keys().filter(|(at, _)| *at == worker).cloned().collect();
            match dice.roll(16) {
                0..=2 if self.memories < 6 => {
                    let buffer = self.name('b');
                    let agent = Some(dice.roll(agents + 1)).filter(|agent| *agent < agents);
                    on.ask(&worker, Ask::Alloc { buffer: buffer.clone(), bytes: BYTES, agent });
                    self.buffers.insert((worker, buffer), self.memories);
                    self.memories += 1;
                }
                3..=5 => {
                    let Some(held) = dice.pick(&buffers) else { continue };
                    let fd = self.name('f');
                    on.ask(&worker, Ask::Export { buffer: held.1.clone(), fd: fd.clone() });
                    self.fds.insert((worker, fd), self.buffers[held]);
                }
                6..=8 => {
                    let Some(held) = dice.pick(&fds) else { continue };
                    let to = names[dice.roll(names.len())].clone();
                    // A name that is new in all workers.
                    let fd = self.name('f');
                    on.ask(&worker, Ask::Dup { fd: held.1.clone(), to: fd.clone() });
                    if to == worker {
                        self.fds.insert((worker, fd), self.fds[held]);
                        continue;
                    }
                    on.ask(&worker, Ask::Send { fd: fd.clone(), to: on.socket_of(&to) });
                    on.ask(&worker, Ask::Close { fd: fd.clone() });
                    // The worker has taken the descriptor when it answers a later order.
                    on.ask(&to, Ask::Descriptors);
                    self.fds.insert((to, fd), self.fds[held]);
                }
                9..=11 => {
                    let Some(held) = dice.pick(&fds) else { continue };
                    let (buffer, agent) = (self.name('i'), dice.roll(agents));
                    let fd = held.1.clone();
                    on.ask(&worker, Ask::Import { fd, buffer: buffer.clone(), agent });
                    self.buffers.insert((worker, buffer), self.fds[held]);
                }
                12 => {
                    let Some(held) = dice.pick(&fds) else { continue };
                    on.ask(&worker, Ask::Close { fd: held.1.clone() });
                    self.fds.remove(held);
                }
                13 => {
                    let Some(held) = dice.pick(&buffers) else { continue };
                    on.ask(&worker, Ask::Free { buffer: held.1.clone() });
                    self.buffers.remove(held);
                }
                14 if names.len() > 2 && worker != on.root_name() => {
                    if self.is_one_tree && on.has_children(&worker) {
                        continue;
                    }
                    on.exit(&worker);
                    self.buffers.retain(|(at, _), _| *at != worker);
                    self.fds.retain(|(at, _), _| *at != worker);
                }
                15 if names.len() < 8 => {
                    let (child, inherited) = (self.name('w'), dice.pick(&fds).cloned());
                    let inherit: Vec<&str> = inherited.iter().map(|(_, fd)| fd.as_str()).collect();
                    on.spawn(&worker, &child, &inherit);
                    if let Some(held) = inherited {
                        self.fds.insert((child, held.1.clone()), self.fds[&held]);
                    }
                }
                _ => {}
            }
        }
    }

    /// Writes through every alias, by the CPU and by agents alternately, and reads through all other aliases.
    ///
    /// # Panics
    /// When one shows something else.
    pub fn check(&mut self, on: &Sharers, dice: &mut Dice) {
        let borrowed = self.import_all(on);
        for memory in 0..self.memories {
            let aliases: Vec<Held> =
                self.buffers.iter().filter(|(_, of)| **of == memory).map(|(held, _)| held.clone()).collect();
            for writer in &aliases {
                self.marks += 1;
                let mark = (self.marks << 8 | memory as u64).to_le_bytes();
                let offset = BYTES - MARK as u64;
                let by = if dice.roll(4) == 0 { By::Device } else { By::Cpu };
                let bytes = mark.to_vec();
                on.ask(&writer.0, Ask::Write { buffer: writer.1.clone(), offset, bytes, by });
                for reader in &aliases {
                    let by = if dice.roll(8) == 0 { By::Device } else { By::Cpu };
                    let buffer = reader.1.clone();
                    let read = on.ask(&reader.0, Ask::Read { buffer, offset, bytes: MARK, by });
                    assert_eq!(read, Answer::Bytes(mark.to_vec()), "{writer:?} wrote, {reader:?} read");
                }
            }
        }
        // Separate memories are still separate: the last mark of each is still there.
        for ((worker, buffer), memory) in &self.buffers {
            let (offset, bytes, by) = (BYTES - MARK as u64, MARK, By::Cpu);
            let read = on.ask(worker, Ask::Read { buffer: buffer.clone(), offset, bytes, by });
            let Answer::Bytes(read) = read else { panic!("{read:?}") };
            assert_eq!(usize::from(read[0]), *memory, "{worker} {buffer} shows another memory");
        }
        for (worker, buffer) in borrowed {
            on.ask(&worker, Ask::Free { buffer: buffer.clone() });
            self.buffers.remove(&(worker, buffer));
        }
    }

    /// A buffer for every descriptor that is the only alias of its worker.
    fn import_all(&mut self, on: &Sharers) -> Vec<Held> {
        let fds: Vec<(Held, usize)> = self.fds.iter().map(|(held, memory)| (held.clone(), *memory)).collect();
        let mut made = Vec::new();
        for ((worker, fd), memory) in fds {
            let has_one = self.buffers.iter().any(|((at, _), of)| *at == worker && *of == memory);
            if !has_one {
                let buffer = self.name('t');
                on.ask(&worker, Ask::Import { fd, buffer: buffer.clone(), agent: 0 });
                self.buffers.insert((worker.clone(), buffer.clone()), memory);
                made.push((worker, buffer));
            }
        }
        made
    }

    /// All descriptors, as their workers see them; those of the same memory, and only those, are of the same inode.
    ///
    /// # Panics
    /// When they are not, or one is missing.
    #[must_use]
    pub fn descriptors(&self, on: &Sharers) -> BTreeMap<Held, Seen> {
        let mut found = BTreeMap::new();
        let mut inodes = BTreeMap::<u64, usize>::new();
        for worker in on.names() {
            let Answer::Descriptors(seen) = on.ask(&worker, Ask::Descriptors) else { panic!("descriptors") };
            for (fd, seen) in seen {
                let memory = self.fds[&(worker.clone(), fd.clone())];
                assert_eq!(*inodes.entry(seen.inode).or_insert(memory), memory, "{worker} {fd}");
                found.insert((worker.clone(), fd), seen);
            }
        }
        assert_eq!(found.len(), self.fds.len());
        let memories: std::collections::BTreeSet<_> = self.fds.values().collect();
        assert_eq!(inodes.len(), memories.len(), "one memory has several inodes");
        found
    }

    /// Ends all objects, and checks that none is left.
    ///
    /// # Panics
    /// When something is.
    pub fn clear(self, on: &Sharers) {
        for (worker, buffer) in self.buffers.into_keys() {
            on.ask(&worker, Ask::Free { buffer });
        }
        for (worker, fd) in self.fds.into_keys() {
            on.ask(&worker, Ask::Close { fd });
        }
        for worker in on.names() {
            let objects = on.objects(&worker);
            assert_eq!(objects.shared, 0, "{worker} has shared buffers left: {objects:?}");
            let pid = on.pid(&worker);
            let left = || -> Vec<String> {
                let is_memory = |name: &String| {
                    ["softgpu:vram", "softgpu:gtt", "stasis-dmabuf"].iter().any(|kind| name.contains(kind))
                };
                open_files(pid).into_iter().filter(is_memory).collect()
            };
            // The coordinator's thread of a restore releases its descriptors when the last participant has them.
            let deadline = Instant::now() + PATIENCE;
            while !left().is_empty() {
                assert!(Instant::now() < deadline, "{worker} has descriptors left: {:?}", left());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
