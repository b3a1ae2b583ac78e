// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a process that CRIU brings back takes to its first result, by the memory that it has: with `stasis restore --lazy`, and as a
//! peer with all of its buffers filled before.
//!
//! The process copies one buffer to another by the device, again and again, and says when it has looked at the copy; the rest of its
//! memory lies still. In the end it compares every byte.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use super::criu::{await_word, criu_is_here, run_stasis};
use super::pieces::Pieces;
use super::{DRAIN, Place, plot};
use crate::figure::Report;
use crate::gpu::Gpu;

/// The role of the process that is frozen.
pub const ROLE: &str = "lazy-frozen";
/// Bytes of the buffer that is copied, and of the copy.
const WORKING: u64 = 16 << 20;
/// TIMEOUT: for whatever is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

fn now_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()
}

/// A process that works, its log in a directory.
pub(super) struct Worker<'p> {
    child: Child,
    place: &'p Place,
}

impl<'p> Worker<'p> {
    pub(super) fn start(place: &'p Place, bytes: u64) -> Result<Self> {
        for name in ["log", "go"] {
            let _ = fs::remove_file(place.path().join(name));
        }
        let path = place.path().to_str().context("a directory with a strange name")?;
        let log = OpenOptions::new().append(true).create(true).open(place.path().join("log"))?;
        let mut command = crate::spawn(ROLE, &[path, &bytes.to_string()])?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let worker = Self { child: command.spawn()?, place };
        await_word(&worker.log(), "ready")?;
        Ok(worker)
    }

    fn log(&self) -> std::path::PathBuf {
        self.place.path().join("log")
    }

    fn image(&self) -> Result<String> {
        Ok(self.place.path().join("image").to_str().context("a directory with a strange name")?.to_owned())
    }

    pub(super) fn freeze(&mut self) -> Result<()> {
        run_stasis(&["checkpoint", &self.pid(), &self.image()?])?;
        self.bury()
    }

    pub(super) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Takes its zombie away, which would keep its pid. Of a restored process, which is no child, this tells the first one's end again.
    pub(super) fn bury(&mut self) -> Result<()> {
        self.child.wait()?;
        Ok(())
    }

    /// The first result after a moment.
    fn first_after(&self, moment: u128) -> Result<u128> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = fs::read_to_string(self.log())?;
            let times = said.lines().filter_map(|line| line.strip_prefix("result ")?.parse::<u128>().ok());
            if let Some(first) = times.filter(|time| *time > moment).min() {
                return Ok(first);
            }
            ensure!(Instant::now() < deadline, "there was no result: {said}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Thaws it; milliseconds to the first result, and the command's report.
    pub(super) fn thaw(&self, more: &[&str]) -> Result<(f64, serde_json::Value)> {
        let started = now_us();
        let image = self.image()?;
        let (_, report) = run_stasis(&[&["restore", image.as_str()], more].concat())?;
        let first = self.first_after(started)?;
        fs::remove_dir_all(image)?;
        Ok(((first - started) as f64 / 1e3, report))
    }

    /// Waits until all is there; milliseconds from now on.
    fn await_all(&self) -> Result<f64> {
        let started = Instant::now();
        let pid = self.child.id().to_string();
        while run_stasis(&["status", &pid])?.1["lazy_bytes"].as_u64() != Some(0) {
            ensure!(started.elapsed() < PATIENCE, "contents do not come");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(started.elapsed().as_secs_f64() * 1e3)
    }

    pub(super) fn finish(self) -> Result<()> {
        fs::write(self.place.path().join("go"), "")?;
        await_word(&self.log(), "intact")
    }
}

/// Measures, if CRIU is here.
pub fn run(report: &Report) -> Result<()> {
    if !criu_is_here() {
        report.note("no CRIU here (cargo xtask setup installs one): left out");
        return Ok(());
    }
    let mut lines = Vec::new();
    for place in [Place::tmpfs()?, Place::disk()?] {
        let (mut lazily, mut wholes) = (Vec::new(), Vec::new());
        for bytes in place.sizes(report)? {
            let mut worker = Worker::start(&place, bytes)?;
            worker.freeze()?;
            let (lazy, told) = worker.thaw(&["--lazy"])?;
            let rest = worker.await_all()?;
            worker.freeze()?;
            let (whole, _) = worker.thaw(&[])?;
            worker.finish()?;
            let case = format!("{} MiB, {} of them used, {}", bytes >> 20, WORKING >> 19, place.name);
            report.versus(&case, "lazy_first_result", lazy, "ms", ("whole_first_result", whole));
            report.plain(&case, "lazy_criu", told["criu_ms"].as_f64().unwrap_or(f64::NAN), "ms");
            report.plain(&case, "lazy_all_arrived_after", rest, "ms");
            lazily.push((bytes, lazy));
            wholes.push((bytes, whole));
        }
        let name = format!("first result by memory, {}", place.name);
        let whole = ("whole_first_result", plot::slope(&wholes));
        report.versus(&name, "lazy_first_result", plot::slope(&lazily), "ms/GiB", whole);
        lines.push((format!("lazy, {}", place.name), lazily));
        lines.push((format!("whole, {}", place.name), wholes));
    }
    let title = "From a restore to the first result, by the buffers";
    for path in plot::save_by_memory("restore-first-result", title, &lines)? {
        report.note(&format!("figure: {}", path.display()));
    }
    Ok(())
}

/// The process that is frozen.
pub fn play(arguments: &[String]) -> Result<()> {
    let [directory, bytes] = arguments else { bail!("which directory, and how many bytes?") };
    let (directory, bytes): (&Path, u64) = (Path::new(directory), bytes.parse()?);
    // CRIU takes no process out of the middle of a session.
    nix::unistd::setsid()?;
    let started = Instant::now();
    let gpu = Gpu::open()?;
    let still = gpu.agent.vram().alloc(bytes - 2 * WORKING)?;
    Pieces::Random.write_by_device(0, &gpu.runtime, &still)?;
    let [from, to] = [gpu.agent.vram().alloc(WORKING)?, gpu.agent.vram().alloc(WORKING)?];
    Pieces::Random.write(1, &from)?;
    let mut wanted = [0; 8];
    from.read(WORKING - 8, &mut wanted)?;
    println!("ready");
    while !directory.join("go").exists() {
        ensure!(started.elapsed() < 4 * PATIENCE, "nobody needs this process any more");
        to.write(WORKING - 8, &[0; 8])?;
        gpu.runtime.copy(to.all(), from.all(), &[])?.wait(Some(DRAIN))?;
        let mut found = [0; 8];
        to.read(WORKING - 8, &mut found)?;
        ensure!(found == wanted, "the copy is wrong");
        println!("result {}", now_us());
    }
    Pieces::Random.verify(0, &still)?;
    Pieces::Random.verify(1, &from)?;
    println!("intact");
    Ok(())
}
