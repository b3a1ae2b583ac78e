// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is given back to the system behind the answer: the kernel takes 0.2 ms for each MiB of small pages.
//!
//! INVARIANT: memory that waits is in no GPU's page tables and behind no handle. It is bounded: beyond [`most_bytes`] memory is given back at
//! once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Less is given back at once.
const LARGE: u64 = 16 << 20;
/// Half of it is the most that waits, however much the machine has.
const MOST: u64 = 32 << 30;
/// How long files are kept: the last process that unmaps or closes a file frees its pages, and a client unmaps them when it has the answer.
const KEPT: Duration = Duration::from_millis(300);

/// Whether memory is given back behind the answer in this process ([`turn_on`]).
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Has large memory given back behind the answer from now on, as executors do: it would be a third of the time for which a process stops that is
/// checkpointed.
pub fn turn_on() {
    IS_ON.store(true, Ordering::Relaxed);
}

type Work = Box<dyn FnOnce() + Send>;

/// What is to be done when.
struct Item {
    due: Instant,
    /// Bytes of memory that it keeps from others.
    held: u64,
    work: Work,
}

/// What waits, and the bytes of it, those included that are being given back.
#[derive(Default)]
struct Waiting {
    items: Vec<Item>,
    bytes: u64,
}

#[derive(Default)]
struct Reaper {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

/// Does `work`, which gives back `bytes` bytes of mappings: in a thread of its own, soon, if they are many; else now. The memory is kept by
/// its files.
pub fn unmap_soon(bytes: u64, work: impl FnOnce() + Send + 'static) {
    give_back(bytes, 0, Duration::ZERO, work);
}

/// Does `work`, which closes files with `bytes` bytes: in a thread of its own, when the client has had the time to unmap them, if they are
/// many; else now.
pub fn close_later(bytes: u64, work: impl FnOnce() + Send + 'static) {
    give_back(bytes, bytes, KEPT, work);
}

fn give_back(bytes: u64, held: u64, after: Duration, work: impl FnOnce() + Send + 'static) {
    static REAPER: OnceLock<Option<&'static Reaper>> = OnceLock::new();
    let is_behind = bytes >= LARGE && IS_ON.load(Ordering::Relaxed);
    match is_behind.then(|| *REAPER.get_or_init(start)).flatten() {
        Some(reaper) => reaper.add(held, after, work),
        None => work(),
    }
}

impl Reaper {
    /// Does `work` later, or now if it would keep too much memory.
    fn add(&self, held: u64, after: Duration, work: impl FnOnce() + Send + 'static) {
        let most = most_bytes();
        let mut waiting = self.waiting.lock();
        if waiting.bytes.saturating_add(held) > most {
            drop(waiting);
            return work();
        }
        waiting.bytes += held;
        waiting.items.push(Item { due: Instant::now() + after, held, work: Box::new(work) });
        self.more.notify_one();
    }
}

/// The thread; none where none can be had.
fn start() -> Option<&'static Reaper> {
    let reaper: &'static Reaper = Box::leak(Box::default());
    std::thread::Builder::new().name("reaper".to_owned()).spawn(|| run(reaper)).ok().map(|_| reaper)
}

fn run(reaper: &Reaper) {
    let mut waiting = reaper.waiting.lock();
    loop {
        let next = (0..waiting.items.len()).min_by_key(|at| waiting.items[*at].due);
        match next.map(|at| (at, waiting.items[at].due)) {
            None => reaper.more.wait(&mut waiting),
            Some((_, due)) if due > Instant::now() => {
                reaper.more.wait_until(&mut waiting, due);
            }
            Some((at, _)) => {
                let Item { held, work, .. } = waiting.items.swap_remove(at);
                // A panic must not end the thread: mappings wait for it.
                let work = AssertUnwindSafe(work);
                let done = parking_lot::MutexGuard::unlocked(&mut waiting, || catch_unwind(work));
                if done.is_err() {
                    tracing::error!(target: "processor", held, "memory was not given back");
                }
                waiting.bytes -= held;
            }
        }
    }
}

/// Most bytes that may wait: half of what the machine, and every group that limits this process (cgroup-v2), has left, so that somebody who
/// fills as much again does not run out.
fn most_bytes() -> u64 {
    let of_machine = kfd::meminfo::bytes("MemAvailable").unwrap_or(0);
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let of_groups = left_of_groups(Path::new("/sys/fs/cgroup"), Path::new(group));
    of_machine.min(of_groups).min(MOST) / 2
}

/// What the groups from `group` up to the root leave of memory.
fn left_of_groups(root: &Path, group: &Path) -> u64 {
    let number = |directory: &Path, name: &str| -> Option<u64> {
        std::fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok()
    };
    // Without a limit it says "max", and in the root there is none.
    let left = |group: &Path| {
        let directory = root.join(group);
        let most = number(&directory, "memory.max")?;
        Some(most.saturating_sub(number(&directory, "memory.current").unwrap_or(most)))
    };
    group.ancestors().filter_map(left).min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn little_is_given_back_at_once_and_much_by_another_thread() {
        let (said, heard) = channel();
        let say = || {
            let said = said.clone();
            move || said.send(std::thread::current().id()).unwrap()
        };
        // TIMEOUT: of a thread on a busy machine.
        let next = || heard.recv_timeout(Duration::from_secs(60)).unwrap();
        let own = std::thread::current().id();
        unmap_soon(LARGE, say());
        assert_eq!(next(), own, "not turned on");
        turn_on();
        unmap_soon(LARGE - 1, say());
        assert_eq!(next(), own);
        unmap_soon(LARGE, say());
        assert_ne!(next(), own);
        close_later(u64::MAX, say());
        assert_eq!(next(), own, "more than the machine has");
        let begun = Instant::now();
        close_later(LARGE, say());
        // What is unmapped does not wait for files.
        unmap_soon(LARGE, say());
        assert!(next() != own && next() != own);
        assert!(begun.elapsed() >= KEPT);
    }

    #[test]
    fn groups_leave_what_the_strictest_of_them_leaves() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("outer/inner");
        std::fs::create_dir_all(&inner).unwrap();
        let left = || left_of_groups(root.path(), Path::new("outer/inner"));
        assert_eq!(left(), u64::MAX);
        let write = |place: &str, text: &str| std::fs::write(root.path().join(place), text).unwrap();
        write("outer/inner/memory.max", "max\n");
        write("outer/memory.max", "5000\n");
        write("outer/memory.current", "1000\n");
        assert_eq!(left(), 4000);
        write("outer/inner/memory.max", "3000\n");
        write("outer/inner/memory.current", "3500\n");
        assert_eq!(left(), 0);
        std::fs::remove_file(root.path().join("outer/inner/memory.current")).unwrap();
        assert_eq!(left(), 0, "what is not known is not there");
    }
}
