// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an image costs apart from the device: buffers of ordinary shared memory written to and filled from one.
//!
//! Cold is into pages that nobody has touched, as a first checkpoint and every restore meet; its peer is one thread's
//! memcpy into such pages. Warm is into pages that are there: an earlier image's in memory, and buffers written before;
//! its peer is a warm memcpy. A disk's peer is what it gives past the page cache with as many threads. Hashes are made
//! and checked in all of it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use stasis::image::{Image, ImageWriter, Limit};

use super::memory::{Memory, copy};
use super::{Pieces, Place, disk, faults};
use crate::figure::{Report, median};

const SIZES: [usize; 2] = [1 << 30, 256 << 20];
/// Measured once, in a process of its own.
const LARGEST: usize = 4 << 30;
const BUFFERS: [usize; 2] = [1, 4096];
const RUNS: usize = 3;
/// Of sizes that are measured more than once, no further run once so much time has gone.
const ENOUGH: Duration = Duration::from_secs(16);
/// No further case once so much time has gone.
const TOO_LATE: Duration = Duration::from_secs(46);
const MIB: usize = 1 << 20;

/// Seconds that one image took.
#[derive(Default)]
struct Times {
    write: Vec<f64>,
    fill: Vec<f64>,
    /// Into pages that were there.
    write_warm: Vec<f64>,
    fill_warm: Vec<f64>,
    /// Page faults of the last warm write and fill together.
    faults: u64,
}

/// What it is compared with, bytes a second.
struct Peers {
    warm: f64,
    cold: f64,
    tmpfs: f64,
    disk: Option<(f64, f64)>,
}

impl Peers {
    fn measure(source: &mut Memory, bytes: usize, places: &[Place; 2]) -> Result<Self> {
        let (mut warm, mut cold) = (Vec::new(), Vec::new());
        for _ in 0..if bytes == LARGEST { 1 } else { RUNS } {
            let mut to = Memory::fresh(bytes)?;
            cold.push(copy(source, &mut to));
            warm.push(copy(source, &mut to));
        }
        let [tmpfs, on_disk] = places;
        let disk = disk::measure(on_disk.path(), bytes);
        let per_second = |times: &[f64]| bytes as f64 / median(times);
        Ok(Self {
            warm: per_second(&warm),
            cold: per_second(&cold),
            tmpfs: disk::plain_write(tmpfs.path(), bytes)?,
            disk: disk.ok(),
        })
    }
}

fn timed<T>(act: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let started = Instant::now();
    let result = act()?;
    Ok((started.elapsed().as_secs_f64(), result))
}

/// Writes an image of `source` in so many buffers, and fills fresh memory from it and the same once more.
fn cycle(
    source: &mut Memory,
    bytes: usize,
    count: usize,
    place: Option<&Place>,
    times: &mut Times,
) -> Result<()> {
    let none = Limit::none();
    let extents = source.extents(count);
    let path = place.map(|place| place.path().join("image"));
    let label = Path::new("memory");
    let write = |writer: Result<ImageWriter, _>| {
        let mut writer = writer?;
        writer.write_contents(&extents, &none)?;
        Ok(writer.finish(&())?)
    };
    let (seconds, mut finished) = timed(|| match &path {
        Some(path) => write(ImageWriter::create(path)),
        None => write(ImageWriter::in_memory()),
    })?;
    times.write.push(seconds);
    if path.is_none() {
        let before = faults();
        let (seconds, again) = timed(|| write(ImageWriter::in_memory_of(finished.file)))?;
        times.faults = faults() - before;
        times.write_warm.push(seconds);
        finished = again;
    }
    let mut memory = Memory::fresh(bytes)?;
    let into = memory.extents(count);
    let (seconds, image) = timed(|| {
        let image = match &path {
            Some(path) => Image::open(path)?,
            None => Image::of_file(finished.file, label)?,
        };
        image.fill(&into, true, &none)?;
        Ok(image)
    })?;
    times.fill.push(seconds);
    ensure!(memory.bytes() == source.bytes(), "what was filled is not what was written");
    let before = faults();
    let (seconds, _) = timed(|| Ok(image.fill(&into, true, &none)?))?;
    times.faults += faults() - before;
    times.fill_warm.push(seconds);
    // The next one is not to pay for this one's end.
    path.map_or(Ok(()), std::fs::remove_file).context("Cannot remove an image")
}

/// One size, one kind of contents: every place, every number of buffers.
fn measure(
    report: &Report,
    source: &mut Memory,
    bytes: usize,
    pieces: Pieces,
    places: &[Place; 2],
    peers: &Peers,
) -> Result<()> {
    let mut one = [f64::NAN; 3];
    for count in BUFFERS {
        for (n, place) in [None, Some(&places[0]), Some(&places[1])].into_iter().enumerate() {
            let name = place.map_or("memory", |place| place.name);
            let buffers = if count == 1 { "1 buffer".to_owned() } else { format!("{count} buffers") };
            let case = format!("image of {} MiB, {buffers}, {}, {name}", bytes / MIB, pieces.name());
            if report.elapsed() > TOO_LATE {
                report.note(&format!("{case}: no time on this machine; left out"));
                continue;
            }
            let mut times = Times::default();
            // A disk varies by the minute: its peer is taken beside each run.
            let mut disk: Vec<_> = peers.disk.into_iter().collect();
            while times.write.is_empty()
                || (times.write.len() < RUNS && bytes < LARGEST && report.elapsed() < ENOUGH)
            {
                cycle(source, bytes, count, place, &mut times).with_context(|| case.clone())?;
                if name == "disk" && pieces == Pieces::Random && bytes < LARGEST {
                    disk.extend(disk::measure(places[1].path(), bytes).ok());
                }
            }
            let speed = |times: &[f64]| bytes as f64 / median(times);
            let put = |metric, bandwidth: f64, (peer, of): (&str, f64)| {
                report.versus(&case, metric, bandwidth * 1e-9, "GB/s", (peer, of * 1e-9));
            };
            let (write, fill) = (speed(&times.write), speed(&times.fill));
            let peer = |pick: fn(&(f64, f64)) -> f64| median(&disk.iter().map(pick).collect::<Vec<_>>());
            match name {
                "disk" if pieces == Pieces::Random => {
                    put("checkpoint_bandwidth", write, ("o_direct_write", peer(|d| d.0)));
                    put("restore_bandwidth", fill, ("o_direct_read", peer(|d| d.1)));
                    put("restore_bandwidth_warm", speed(&times.fill_warm), ("o_direct_read", peer(|d| d.1)));
                }
                "disk" => put("checkpoint_bandwidth", write, ("memcpy", peers.warm)),
                _ => {
                    put("checkpoint_bandwidth", write, ("first_touch", peers.cold));
                    put("restore_bandwidth", fill, ("first_touch", peers.cold));
                }
            }
            if name == "tmpfs" {
                put("checkpoint_bandwidth", write, ("tmpfs_write", peers.tmpfs));
            }
            if name == "memory" {
                put("checkpoint_bandwidth_warm", speed(&times.write_warm), ("memcpy", peers.warm));
                put("restore_bandwidth_warm", speed(&times.fill_warm), ("memcpy", peers.warm));
                let each = times.faults as f64 / (bytes / MIB) as f64;
                report.plain(&case, "warm_page_faults_per_mib", each, "1");
            }
            if count == 1 {
                one[n] = write;
            } else {
                put("checkpoint_bandwidth_of_many", write, ("one_buffer", one[n]));
            }
        }
    }
    Ok(())
}

/// Whether there is room for three times so much in memory and twice on the disk.
fn has_room(bytes: usize, disk: &Place) -> Result<bool> {
    let free = kfd::meminfo::bytes("MemAvailable").unwrap_or(0);
    Ok(free > 7 * bytes as u64 / 2 && disk.has_room_for(2 * bytes)?)
}

/// Measures the ordinary sizes.
pub fn run(report: &Report) -> Result<()> {
    sizes(report, &SIZES)
}

/// Measures the largest.
pub fn run_largest(report: &Report) -> Result<()> {
    sizes(report, &[LARGEST])
}

fn sizes(report: &Report, all: &[usize]) -> Result<()> {
    let places = [Place::tmpfs()?, Place::disk()?];
    for &bytes in all {
        if !has_room(bytes, &places[1])? {
            report.note(&format!("{} MiB: no room in memory or on the disk; left out", bytes / MIB));
            continue;
        }
        let mut source = Memory::fresh(bytes)?;
        let mut peers = None;
        for pieces in [Pieces::Random, Pieces::Zeros] {
            pieces.write_memory(source.bytes());
            let peers = match &mut peers {
                Some(peers) => peers,
                none => none.insert(Peers::measure(&mut source, bytes, &places)?),
            };
            measure(report, &mut source, bytes, pieces, &places, peers)?;
        }
        let Some(peers) = peers else { continue };
        let case = format!("{} MiB", bytes / MIB);
        report.plain(&case, "memcpy_bandwidth", peers.warm * 1e-9, "GB/s");
        report.plain(&case, "first_touch_bandwidth", peers.cold * 1e-9, "GB/s");
    }
    Ok(())
}
