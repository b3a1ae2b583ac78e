// SPDX-License-Identifier: MIT OR Apache-2.0
//! What freezing and thawing cost within the process: bandwidth on much memory, and the fixed cost of an idle context.
//!
//! Bandwidth is bytes of buffers over the time of `lock` + `checkpoint`, or `restore` + `unlock`, everything included. The
//! peers are a memcpy of as many bytes by one thread, into memory that was touched and into such that was not, and on the disk what the disk gives past the page cache with as
//! many threads as the runtime uses. Every restore's bytes are compared with what was there before. The process itself is
//! kept small: its buffers are what is measured.

pub mod criu;
mod disk;
pub mod engines;
pub mod image;
pub mod lazy;
pub mod memory;
pub mod parent;
mod pieces;
mod plot;
pub mod pre_copy;
pub mod store;
pub mod stream;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use stasis::checkpoint::{CheckpointReport, IMAGE_FILE, Mode, RestoreReport};
use stasis::{Queue, QueueOptions, Runtime, Signal};
use stasis_plot::Bar;
use tempfile::TempDir;

use self::memory::{Memory, copy};
use self::pieces::Pieces;
use crate::figure::{Report, median};
use crate::gpu::Gpu;

/// How much is saved.
pub const BYTES: usize = 1 << 30;
/// As many small buffers.
const MANY: usize = 4096;
/// Bytes of all buffers, where something is measured by the memory that a process has.
const SIZES: [u64; 3] = [256 << 20, 1 << 30, 4 << 30];
const RUNS: usize = 3;
/// No further run of a case once so much time has gone: a slow disk gets fewer runs, none is left out.
const ENOUGH: [Duration; 2] = [Duration::from_secs(18), Duration::from_secs(34)];
/// No further case once so much time has gone.
const TOO_LATE: Duration = Duration::from_secs(46);
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

    /// Whether there is room for so many bytes.
    pub fn has_room_for(&self, bytes: usize) -> Result<bool> {
        let space = nix::sys::statvfs::statvfs(self.path())?;
        Ok(space.blocks_available() * space.fragment_size() > bytes as u64)
    }

    /// Those of [`SIZES`] for two images of which there is room; the others are noted.
    fn sizes(&self, report: &Report) -> Result<Vec<u64>> {
        let mut sizes = Vec::new();
        for bytes in SIZES {
            if self.has_room_for(2 * bytes as usize)? {
                sizes.push(bytes);
            } else {
                report.note(&format!("{}: no room for images, left out", self.path().display()));
            }
        }
        Ok(sizes)
    }

    /// Whether there is room for an image of [`BYTES`], with some to spare.
    pub fn has_room(&self) -> Result<bool> {
        self.has_room_for(2 * BYTES)
    }
}

/// One freeze and thaw.
struct Cycle {
    lock: f64,
    checkpoint: f64,
    restore: f64,
    down: CheckpointReport,
    up: RestoreReport,
}

fn cycle(runtime: &Runtime, directory: &Path) -> Result<Cycle> {
    let started = Instant::now();
    runtime.lock(Mode::Drain, DRAIN)?;
    let lock = started.elapsed().as_secs_f64();
    let down = runtime.checkpoint(directory)?;
    let checkpoint = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let up = runtime.restore(None)?;
    runtime.unlock()?;
    let restore = started.elapsed().as_secs_f64();
    // The next one is not to pay for this one's end.
    std::fs::remove_file(directory.join(IMAGE_FILE)).context("Cannot remove an image")?;
    Ok(Cycle { lock, checkpoint, restore, down, up })
}

/// Gigabytes a second of one thread's copy of so many bytes into memory that was touched before, and into such that was
/// not. All of it is given back.
fn copies(bytes: usize) -> Result<(f64, f64)> {
    let mut from = Memory::fresh(bytes)?;
    from.bytes().fill(1);
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut to = Memory::fresh(bytes)?;
        cold.push(copy(&mut from, &mut to));
        warm.push(copy(&mut from, &mut to));
    }
    let speed = |times: &[f64]| bytes as f64 / median(times) * 1e-9;
    Ok((speed(&warm), speed(&cold)))
}

/// Gigabytes a second of one thread's copy of [`BYTES`] within memory that was touched, which is given back.
pub fn memcpy() -> Result<f64> {
    Ok(copies(BYTES)?.0)
}

/// Page faults of this process so far.
fn faults() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold spaces: minflt is the eighth, its children's and majflt follow.
    let fields: Vec<_> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    field(7) + field(9)
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

/// What is frozen.
#[derive(Clone, Copy)]
struct Load {
    bytes: usize,
    buffers: usize,
    pieces: Pieces,
}

/// What a load is compared with, gigabytes a second.
struct Peers {
    warm: f64,
    cold: f64,
    /// The same bytes in one buffer, there and back.
    one: Option<(f64, f64)>,
}

/// Measures a load; gives what it reached there and back.
fn large(report: &Report, gpu: &Gpu, place: &Place, load: Load, peers: &Peers) -> Result<((f64, f64), Bar)> {
    let Load { bytes, buffers, pieces } = load;
    let pool = gpu.agent.vram();
    let memory =
        (0..buffers).map(|_| Ok(pool.alloc((bytes / buffers) as u64)?)).collect::<Result<Vec<_>>>()?;
    for (n, buffer) in (0..).zip(&memory) {
        pieces.write(n, buffer)?;
    }
    let on_disk = place.name == "disk";
    let many = if buffers == 1 { String::new() } else { format!("{buffers} buffers, ") };
    let case = format!("{} MiB, {many}{}, {}", bytes >> 20, pieces.name(), place.name);
    let (mut cycles, mut disk) = (Vec::new(), Vec::new());
    while cycles.is_empty() || (cycles.len() < RUNS && report.elapsed() < ENOUGH[usize::from(on_disk)]) {
        // Disks vary by the minute: theirs is taken right beside ours.
        if on_disk && pieces == Pieces::Random {
            match disk::measure(place.path(), bytes) {
                Ok(bandwidth) => disk.push(bandwidth),
                Err(error) => report.note(&format!("no O_DIRECT peer on this disk: {error:#}")),
            }
        }
        cycles.push(cycle(&gpu.runtime, place.path())?);
        for (n, buffer) in (0..).zip(&memory) {
            let same = pieces.verify(n, buffer);
            same.with_context(|| format!("{case}: the restored bytes are not those saved"))?;
        }
    }
    let of = |pick: fn(&Cycle) -> f64| median(&cycles.iter().map(pick).collect::<Vec<_>>());
    let speed = |seconds: f64| bytes as f64 / seconds * 1e-9;
    let (down, up) = (speed(of(|c| c.checkpoint)), speed(of(|c| c.restore)));
    let put = |peer: &str, there: f64, back: f64| {
        report.versus(&case, "checkpoint_bandwidth", down, "GB/s", (peer, there));
        report.versus(&case, "restore_bandwidth", up, "GB/s", (peer, back));
    };
    put("memcpy", peers.warm, peers.warm);
    put("first_touch", peers.cold, peers.cold);
    if !disk.is_empty() {
        let peer = |pick: fn(&(f64, f64)) -> f64| median(&disk.iter().map(pick).collect::<Vec<_>>()) * 1e-9;
        report.versus(&case, "checkpoint_bandwidth", down, "GB/s", ("o_direct_write", peer(|d| d.0)));
        report.versus(&case, "restore_bandwidth", up, "GB/s", ("o_direct_read", peer(|d| d.1)));
    }
    if let Some((there, back)) = peers.one {
        put("one_buffer", there, back);
    }
    let phases = [
        of(|c| c.lock * 1e3),
        of(|c| c.down.write_ms),
        of(|c| c.down.close_ms),
        of(|c| c.up.open_ms),
        of(|c| c.up.rebuild_ms),
        of(|c| c.up.fill_ms),
    ];
    let [_, write, close, open, rebuild, fill] = phases;
    report.note(&format!(
        "{case} ({} runs): write {write:.0} ms, close {close:.0} ms; open {open:.1} ms, rebuild {rebuild:.0} ms, fill \
         {fill:.0} ms",
        cycles.len(),
    ));
    Ok(((down, up), Bar { name: case, lengths: phases.to_vec() }))
}

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    let (warm, cold) = copies(BYTES)?;
    report.plain("1 GiB, one thread", "memcpy_bandwidth", warm, "GB/s");
    report.plain("1 GiB, one thread", "first_touch_bandwidth", cold, "GB/s");
    let mut peers = Peers { warm, cold, one: None };
    let gpu = Gpu::open()?;
    let places = [Place::tmpfs()?, Place::disk()?];
    for place in &places {
        idle(report, &gpu, place)?;
    }
    let mut bars = Vec::new();
    for place in &places {
        if !place.has_room()? {
            report.note(&format!("{}: no room for an image, left out", place.path().display()));
            continue;
        }
        let quarter = |buffers| Load { bytes: BYTES / 4, buffers, pieces: Pieces::Random };
        let whole = |pieces| Load { bytes: BYTES, buffers: 1, pieces };
        peers.one = None;
        for load in [whole(Pieces::Random), whole(Pieces::Zeros), quarter(1), quarter(MANY)] {
            if report.elapsed() > TOO_LATE {
                report.note(&format!("{}: no time on this machine for all of it", place.name));
                break;
            }
            let (reached, bar) = large(report, &gpu, place, load, &peers)?;
            peers.one = (load.bytes < BYTES).then_some(reached);
            bars.push(bar);
        }
    }
    for figure in plot::save(bars)? {
        report.note(&format!("the phases are drawn in {}", figure.display()));
    }
    Ok(())
}
