// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a file gives: large blocks, past the page cache on a disk, from as many threads as the runtime's images use.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use nix::fcntl::{FallocateFlags, OFlag, fallocate};

/// Bytes of one transfer, as the runtime's images use.
const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096;
/// Threads for each core, as the runtime's images use.
const THREADS: usize = 2;

/// An aligned block within a larger allocation.
struct Block {
    memory: Vec<u8>,
    start: usize,
}

impl Block {
    fn new() -> Self {
        // Never zeros.
        let memory = vec![0x5a; BLOCK + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + BLOCK]
    }
}

fn all_blocks(
    count: usize,
    threads: usize,
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
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    })
}

fn open(path: &Path, flags: i32) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
    options.open(path).with_context(|| format!("Cannot open {}", path.display()))
}

/// Bytes a second of writing (with fsync) and of reading a new file of so many bytes in `directory`, past the page
/// cache, its space taken before.
pub fn measure(directory: &Path, bytes: usize) -> Result<(f64, f64)> {
    let path = directory.join("peer");
    let file = open(&path, OFlag::O_DIRECT.bits())?;
    let threads = THREADS * std::thread::available_parallelism().map_or(1, usize::from);
    let count = bytes / BLOCK;
    let bytes = (count * BLOCK) as f64;
    let started = Instant::now();
    fallocate(&file, FallocateFlags::empty(), 0, (count * BLOCK).try_into()?)?;
    let write = |n: usize, block: &mut [u8]| {
        // No two blocks alike.
        block[..8].copy_from_slice(&(n as u64).to_le_bytes());
        file.write_all_at(block, (n * BLOCK) as u64)
    };
    all_blocks(count, threads, write).context("Cannot write past the page cache")?;
    file.sync_all()?;
    let write = bytes / started.elapsed().as_secs_f64();
    let started = Instant::now();
    all_blocks(count, threads, |n, block| file.read_exact_at(block, (n * BLOCK) as u64))
        .context("Cannot read")?;
    let read = bytes / started.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok((write, read))
}

/// Bytes a second of `write` by one thread to a new file of so many bytes in `directory`.
pub fn plain_write(directory: &Path, bytes: usize) -> Result<f64> {
    let path = directory.join("peer");
    let file = open(&path, 0)?;
    let count = bytes / BLOCK;
    let started = Instant::now();
    all_blocks(count, 1, |n, block| file.write_all_at(block, (n * BLOCK) as u64))?;
    let bandwidth = (count * BLOCK) as f64 / started.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(bandwidth)
}
