// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a checkpoint upon a parent costs when some of the buffers' bytes have changed since, beside one that writes everything.
//!
//! Where nothing tells what changed all bytes are hashed, and the limit is what BLAKE3 does on all cores with bytes that are read once. One
//! byte is changed in each chunk that is said to be changed.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use stasis::Buffer;
use stasis::checkpoint::{CheckpointOptions, CheckpointReport, Mode};
use stasis::image::CHUNK_BYTES;

use super::memory::Memory;
use super::{BYTES, DRAIN, Pieces, Place};
use crate::figure::{Report, median};
use crate::gpu::Gpu;

/// One chunk in so many is changed; none for 0.
const EACH: [u64; 3] = [0, 64, 8];
const RUNS: usize = 3;

/// Gigabytes a second of BLAKE3 on all cores.
fn hash_speed() -> Result<f64> {
    let mut memory = Memory::fresh(BYTES)?;
    Pieces::Random.write_memory(memory.bytes());
    let bytes = &*memory.bytes();
    let cores = std::thread::available_parallelism()?.get();
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for part in bytes.chunks(BYTES.div_ceil(cores)) {
                scope.spawn(|| {
                    part.chunks(CHUNK_BYTES as usize).for_each(|chunk| {
                        std::hint::black_box(blake3::hash(chunk));
                    })
                });
            }
        });
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(BYTES as f64 / median(&times) * 1e-9)
}

/// Milliseconds until the image is there and the device is closed, and what was written; the process has its device again then.
pub fn checkpoint(gpu: &Gpu, directory: &Path, parent: Option<&Path>) -> Result<(f64, CheckpointReport)> {
    let options = CheckpointOptions { parent: parent.map(PathBuf::from), ..CheckpointOptions::default() };
    std::fs::create_dir(directory)?;
    let started = Instant::now();
    gpu.runtime.lock(Mode::Drain, DRAIN)?;
    let report = gpu.runtime.checkpoint_with(directory, &options)?;
    let seconds = started.elapsed().as_secs_f64();
    gpu.runtime.restore(None)?;
    gpu.runtime.unlock()?;
    Ok((seconds * 1e3, report))
}

/// Changes one chunk in `each`, of which the parent has another byte; how many bytes these chunks have.
fn change(buffer: &Buffer, each: u64) -> Result<u64> {
    let chunks = (0..buffer.len() / CHUNK_BYTES).filter(|n| each > 0 && n % each == 0);
    let mut changed = 0;
    for n in chunks {
        let (at, mut byte) = (n * CHUNK_BYTES + 1000 + each, [0]);
        buffer.download(at, &mut byte)?;
        buffer.upload(at, &[byte[0].wrapping_add(1)])?;
        changed += CHUNK_BYTES;
    }
    Ok(changed)
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let hashed = hash_speed()?;
    report.plain("1 GiB, all cores", "blake3_bandwidth", hashed, "GB/s");
    let gpu = Gpu::open()?;
    let buffer = gpu.agent.vram().alloc(BYTES as u64)?;
    Pieces::Random.write(0, &buffer)?;
    for place in [Place::tmpfs()?, Place::disk()?] {
        if !place.has_room()? {
            report.note(&format!("{}: no room for an image, left out", place.path().display()));
            continue;
        }
        let (first, whole) = (place.path().join("first"), place.path().join("whole"));
        checkpoint(&gpu, &first, None)?;
        let mut wholes = Vec::new();
        for _ in 0..RUNS {
            wholes.push(checkpoint(&gpu, &whole, None)?.0);
            std::fs::remove_dir_all(&whole)?;
        }
        for each in EACH {
            let (mut times, mut written, mut stored, mut read) = (Vec::new(), Vec::new(), 0, 0);
            // All chunks that changed before, too, are the first of sixty-four.
            let mut changed = 0;
            for _ in 0..RUNS {
                changed = change(&buffer, each)?;
                let next = place.path().join("next");
                let (time, done) = checkpoint(&gpu, &next, Some(&first))?;
                // What the runtime keeps for itself changes, too.
                ensure!(
                    (changed..=changed + (1 << 20)).contains(&done.stored_bytes),
                    "{changed} bytes changed, and {} were written",
                    done.stored_bytes
                );
                times.push(time);
                written.push(done.write_ms);
                stored = done.stored_bytes;
                read = done.content_bytes - done.unread_bytes;
                std::fs::remove_dir_all(&next).context("Cannot remove an image")?;
            }
            let case = format!("1 GiB, {} MiB of it in chunks that changed, {}", changed >> 20, place.name);
            let time = median(&times);
            report.versus(&case, "checkpoint_upon_parent", time, "ms", ("whole_checkpoint", median(&wholes)));
            let limit = BYTES as f64 / hashed * 1e-6;
            report.versus(&case, "image_upon_parent", median(&written), "ms", ("hash_of_all_bytes", limit));
            report.plain(&case, "read", read as f64 / 1e6, "MB");
            if changed > 0 {
                let (stored, changed) = (stored as f64 / 1e6, changed as f64 / 1e6);
                report.versus(&case, "stored", stored, "MB", ("changed_chunks", changed));
            }
        }
    }
    Ok(())
}
