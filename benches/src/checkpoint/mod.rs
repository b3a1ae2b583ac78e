// SPDX-License-Identifier: MIT OR Apache-2.0
//! What freezing and thawing cost within the process: bandwidth on much memory, and the fixed cost of an idle context.
//!
//! Bandwidth is bytes of buffers over the time of `lock` + `checkpoint`, or `restore` + `unlock`, everything included. The
//! peers are a warm memcpy of as many bytes by one thread, and on the disk what the disk gives past the page cache with as
//! many threads as the runtime uses. Every restore's bytes are compared with what was there before. The process itself is
//! kept small: its buffers are what is measured.

pub mod criu;
mod disk;
mod pieces;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use stasis::checkpoint::{CheckpointReport, Mode, RestoreReport};
use stasis::{Queue, QueueOptions, Runtime, Signal};
use tempfile::TempDir;

use self::pieces::Pieces;
use crate::figure::{Report, median};
use crate::gpu::Gpu;

/// How much is saved.
pub const BYTES: usize = 1 << 30;
const RUNS: usize = 3;
/// No further run of a case once so much time has gone: a slow disk gets fewer runs, none is left out.
const ENOUGH: [Duration; 2] = [Duration::from_secs(22), Duration::from_secs(38)];
const IDLE_RUNS: usize = 20;
/// Of issue 2, for an idle context, milliseconds.
const IDLE_GOALS: (f64, f64) = (5.0, 10.0);
/// TIMEOUT: for queues that have nothing to do.
const DRAIN: Duration = Duration::from_secs(10);

const SHM: &str = "/dev/shm";

fn prefix(pid: u32) -> String {
    format!("stasis-bench-{pid}-")
}

fn beside() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.parent().unwrap_or(Path::new(".")).to_path_buf())
}

/// Removes what the killed process `pid` left: gigabytes, some of them in memory.
pub fn sweep(pid: u32) -> Result<()> {
    for parent in [beside()?, PathBuf::from(SHM)] {
        for entry in std::fs::read_dir(parent)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix(pid)) {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
    }
    Ok(())
}

/// Where images are written.
pub struct Place {
    /// `disk` or `tmpfs`.
    pub name: &'static str,
    /// A directory of ours there.
    pub directory: TempDir,
}

impl Place {
    fn at(name: &'static str, parent: &Path) -> Result<Self> {
        let prefix = prefix(std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
        let directory =
            directory.with_context(|| format!("Cannot make a directory in {}", parent.display()))?;
        Ok(Self { name, directory })
    }

    /// Beside this program, where the build has room.
    pub fn disk() -> Result<Self> {
        Self::at("disk", &beside()?)
    }

    /// In memory.
    pub fn tmpfs() -> Result<Self> {
        Self::at("tmpfs", Path::new(SHM))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Whether there is room for an image of [`BYTES`], with some to spare.
    pub fn has_room(&self) -> Result<bool> {
        let space = rustix::fs::statvfs(self.path())?;
        Ok(space.f_bavail * space.f_frsize > 2 * BYTES as u64)
    }
}

/// One freeze and thaw.
struct Cycle {
    checkpoint: f64,
    restore: f64,
    down: CheckpointReport,
    up: RestoreReport,
}

fn cycle(runtime: &Runtime, directory: &Path) -> Result<Cycle> {
    let started = Instant::now();
    runtime.lock(Mode::Drain, DRAIN)?;
    let down = runtime.checkpoint(directory)?;
    let checkpoint = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let up = runtime.restore(None)?;
    runtime.unlock()?;
    Ok(Cycle { checkpoint, restore: started.elapsed().as_secs_f64(), down, up })
}

/// Gigabytes a second of one thread's copy of [`BYTES`] within memory that was touched, which is given back.
pub fn memcpy() -> f64 {
    let (from, mut to) = (vec![1u8; BYTES], vec![2u8; BYTES]);
    let times = (0..3).map(|_| {
        let started = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        started.elapsed().as_secs_f64()
    });
    BYTES as f64 / median(&times.collect::<Vec<_>>()) * 1e-9
}

fn idle(report: &Report, gpu: &Gpu, place: &Place) -> Result<()> {
    let queue = Queue::create(&gpu.agent, QueueOptions::default())?;
    let signal = Signal::new(&gpu.runtime, 0)?;
    let cycles = (0..IDLE_RUNS).map(|_| cycle(&gpu.runtime, place.path())).collect::<Result<Vec<_>>>()?;
    let of = |pick: fn(&Cycle) -> f64| median(&cycles.iter().map(pick).collect::<Vec<_>>());
    let case = format!("idle context with one queue, {}", place.name);
    let (down, up) = IDLE_GOALS;
    report.versus(&case, "idle_checkpoint_ms", of(|c| c.checkpoint * 1e3), "ms", ("goal_5_ms", down));
    report.versus(&case, "idle_restore_ms", of(|c| c.restore * 1e3), "ms", ("goal_10_ms", up));
    report.note(&format!(
        "{case}: write {:.2} ms, close {:.2} ms; open {:.2} ms, rebuild {:.2} ms, fill {:.2} ms; {:.0} KiB of the \
         runtime's own",
        of(|c| c.down.write_ms),
        of(|c| c.down.close_ms),
        of(|c| c.up.open_ms),
        of(|c| c.up.rebuild_ms),
        of(|c| c.up.fill_ms),
        of(|c| c.down.content_bytes as f64) / 1024.0
    ));
    drop((queue, signal));
    Ok(())
}

fn large(report: &Report, gpu: &Gpu, place: &Place, pieces: Pieces, memcpy: f64) -> Result<()> {
    let buffer = gpu.agent.vram().alloc(BYTES as u64)?;
    pieces.write(&buffer)?;
    let on_disk = place.name == "disk";
    let case = format!("1 GiB, {}, {}", pieces.name(), place.name);
    let (mut cycles, mut disk) = (Vec::new(), Vec::new());
    while cycles.is_empty() || (cycles.len() < RUNS && report.elapsed() < ENOUGH[usize::from(on_disk)]) {
        // Disks vary by the minute: theirs is taken right beside ours.
        if on_disk && pieces == Pieces::Random {
            match disk::measure(place.path(), BYTES) {
                Ok(bandwidth) => disk.push(bandwidth),
                Err(error) => report.note(&format!("no O_DIRECT peer on this disk: {error:#}")),
            }
        }
        cycles.push(cycle(&gpu.runtime, place.path())?);
        pieces.verify(&buffer).with_context(|| format!("{case}: the restored bytes are not those saved"))?;
    }
    let bytes = BYTES as f64;
    let of = |pick: fn(&Cycle) -> f64| median(&cycles.iter().map(pick).collect::<Vec<_>>());
    let (down, up) = (bytes / of(|c| c.checkpoint) * 1e-9, bytes / of(|c| c.restore) * 1e-9);
    report.versus(&case, "checkpoint_bandwidth", down, "GB/s", ("memcpy", memcpy));
    report.versus(&case, "restore_bandwidth", up, "GB/s", ("memcpy", memcpy));
    if !disk.is_empty() {
        let peer = |pick: fn(&(f64, f64)) -> f64| median(&disk.iter().map(pick).collect::<Vec<_>>()) * 1e-9;
        report.versus(&case, "checkpoint_bandwidth", down, "GB/s", ("o_direct_write", peer(|d| d.0)));
        report.versus(&case, "restore_bandwidth", up, "GB/s", ("o_direct_read", peer(|d| d.1)));
    }
    report.note(&format!(
        "{case} ({} runs): write {:.0} ms, close {:.0} ms; open {:.1} ms, rebuild {:.0} ms, fill {:.0} ms",
        cycles.len(),
        of(|c| c.down.write_ms),
        of(|c| c.down.close_ms),
        of(|c| c.up.open_ms),
        of(|c| c.up.rebuild_ms),
        of(|c| c.up.fill_ms)
    ));
    Ok(())
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let copy = memcpy();
    report.plain("1 GiB, warm, one thread", "memcpy_bandwidth", copy, "GB/s");
    let gpu = Gpu::open()?;
    let places = [Place::tmpfs()?, Place::disk()?];
    for place in &places {
        idle(report, &gpu, place)?;
    }
    for place in &places {
        if !place.has_room()? {
            report.note(&format!("{}: no room for an image, left out", place.path().display()));
            continue;
        }
        for pieces in [Pieces::Random, Pieces::Zeros] {
            large(report, &gpu, place, pieces, copy)?;
        }
    }
    Ok(())
}
