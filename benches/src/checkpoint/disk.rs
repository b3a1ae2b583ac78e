// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a disk gives: large blocks past the page cache, from as many threads as there are cores.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};

/// Bytes of one transfer, as the runtime's images use.
const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;

/// An aligned block within a larger allocation.
struct Block {
    memory: Vec<u8>,
    start: usize,
}

impl Block {
    fn new() -> Self {
        let memory = vec![0; BLOCK + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + BLOCK]
    }
}

fn all_blocks(
    count: usize,
    transfer: impl Fn(usize, &mut [u8]) -> std::io::Result<()> + Sync,
) -> std::io::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut block = Block::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return Ok(());
            }
            transfer(n, block.bytes())?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    })
}

fn open(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
    options.open(path).with_context(|| format!("Cannot open {} with O_DIRECT", path.display()))
}

/// Bytes a second of writing (with fsync) and of reading a new file of so many bytes in `directory`.
pub fn measure(directory: &Path, bytes: usize) -> Result<(f64, f64)> {
    let path = directory.join("peer");
    let file = open(&path)?;
    let count = bytes / BLOCK;
    let bytes = (count * BLOCK) as f64;
    let started = Instant::now();
    let write = |n: usize, block: &mut [u8]| {
        // No two blocks alike, and never zeros.
        block.fill((n % 255) as u8 + 1);
        file.write_all_at(block, (n * BLOCK) as u64)
    };
    all_blocks(count, write).context("Cannot write past the page cache")?;
    file.sync_all()?;
    let write = bytes / started.elapsed().as_secs_f64();
    let started = Instant::now();
    all_blocks(count, |n, block| file.read_exact_at(block, (n * BLOCK) as u64)).context("Cannot read")?;
    let read = bytes / started.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok((write, read))
}
