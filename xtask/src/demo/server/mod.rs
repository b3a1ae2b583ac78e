// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server under load is frozen, ends and is thawed; no client loses a request or gets a wrong answer.
//!
//! INVARIANT: the last line says OK only if no request was lost, no answer was wrong, and the server answered each
//! request once.

mod load;
mod process;
mod verdict;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use self::load::{First, Load};
use self::process::Server;
use self::verdict::Story;
use super::{DemoArgs, devices, exists, fresh_directory, stasis, wait_until};
use crate::setup::Installed;
use crate::workspace::{self, BuiltServer};

/// The instance of the software device.
const INSTANCE: &str = "demo-server";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the server stays frozen.
const AWAY: Duration = Duration::from_secs(1);

/// The programs and files of the demo.
struct Stage<'a> {
    args: &'a DemoArgs,
    built: &'a BuiltServer,
    /// Where the model is.
    model: PathBuf,
    sentences: PathBuf,
    /// The server's embedding of each sentence alone.
    expect: PathBuf,
    log: PathBuf,
    report: PathBuf,
}

/// What happens to established connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connections {
    /// They are kept; bytes that are sent meanwhile wait.
    Kept,
    /// They are reset; clients try again.
    Reset,
}

impl Connections {
    /// The choice that this machine's CRIU supports.
    fn of(installed: &Installed) -> Result<Self> {
        let criu = installed.criu.as_ref().context("There is no CRIU: run `cargo xtask setup`")?;
        let locked = Command::new(&criu.path).args(["check", "--feature", "network_lock_nftables"]).output();
        let kept = locked.context("Cannot start criu")?.status.success();
        Ok(if kept { Self::Kept } else { Self::Reset })
    }

    fn option(self) -> &'static str {
        match self {
            Self::Kept => "--tcp-established",
            Self::Reset => "--tcp-close",
        }
    }
}

/// Milliseconds since 1970, the clock that this process shares with the clients.
fn unix_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

/// Runs the demo; the last line it prints is the verdict.
pub(super) fn run(args: &DemoArgs, built: &BuiltServer, installed: &Installed) -> Result<()> {
    let image = fresh_directory(args, "server")?;
    let connections = if args.reset { Connections::Reset } else { Connections::of(installed)? };
    let out = |name: &str| args.out.join(name);
    let stage = Stage {
        args,
        built,
        model: installed.model.clone().context("The setup fetched no model")?,
        sentences: workspace::root().join("examples/embed-server/load/sentences.txt"),
        expect: out("server-expected.jsonl"),
        log: out("server.log"),
        report: out("server-load.jsonl"),
    };
    process::adopt()?;

    println!("\n1. A server of sentence embeddings starts cold");
    let started = unix_ms();
    let mut server = Server::start(&stage)?;
    let first = First::start(&stage, None)?.wait()?;
    let cold_ms = first.unix_ms - started;
    println!("   process {} at {}: first embedding after {cold_ms:.0} ms", server.pid(), first.url);

    println!("2. {} clients", args.clients);
    let recorded = load::record(&stage, &first)?;
    println!("   {recorded} sentences asked for one by one: what every later answer must be to the bit");
    let load = Load::start(&stage, &first.url)?;
    follow(&load, args.seconds, "before the freeze")?;
    let device_before = devices(INSTANCE);
    ensure!(!device_before.is_empty(), "no softgpud serves the process: cannot show that it goes");

    println!("3. Frozen in mid-traffic ({})", connections.option());
    let image_text = image.to_string_lossy().into_owned();
    let pid = server.pid();
    let freeze = unix_ms();
    let checkpoint = stasis(
        &built.stasis,
        installed,
        &["checkpoint", connections.option(), &pid.to_string(), &image_text],
    )?;
    let gone = unix_ms();
    // CRIU killed the process; it must be reaped, or its pid would not be free.
    server.bury()?;
    wait_until("the end of the frozen server and its softgpud", Duration::from_secs(5), || {
        !exists(pid) && devices(INSTANCE).is_empty()
    })?;
    let port = load::refused(&first.url)?;
    println!(
        "   {image_text} written; process {pid}: gone, softgpud {device_before:?}: gone, port {port}: closed"
    );
    std::thread::sleep(AWAY);

    println!("4. Thawed");
    let probe = First::start(&stage, Some(&stage.expect))?;
    let thaw = unix_ms();
    let restore = stasis(&built.stasis, installed, &["restore", &image_text])?;
    let thawed = unix_ms();
    server.is_back();
    let again = probe.wait()?;
    let restore_ms = again.unix_ms - thaw;
    println!(
        "   process {pid} on softgpud {:?}: first embedding after {restore_ms:.0} ms",
        devices(INSTANCE)
    );
    follow(&load, args.seconds, "after the thaw")?;

    println!("5. What the clients saw, and what the server did");
    let report = load.finish()?;
    let served = server.served(&first.url)?;
    let status = server.end()?;
    let story = Story {
        connections,
        cold_ms,
        freeze,
        gone,
        thaw,
        thawed,
        restore_ms,
        // The two first requests and the recorded ones were not made by the clients.
        others: recorded + 2,
        checkpoint,
        restore,
    };
    let picture = args.out.join("server.png");
    verdict::say(&stage, &story, &report, &served, &picture)?;
    ensure!(status == Some(0) || status.is_none(), "the server ended with {status:?} after SIGTERM");
    println!("   SIGTERM: the server ended in order");
    println!("{}", verdict::line(&stage, &story, &report, &picture)?);
    Ok(())
}

/// Watches the clients for so many seconds.
fn follow(load: &Load, seconds: f64, what: &'static str) -> Result<()> {
    // CAST: some seconds.
    let bar =
        ProgressBar::new(u64::try_from(Duration::from_secs_f64(seconds).as_millis()).unwrap_or(u64::MAX));
    if let Ok(style) = ProgressStyle::with_template("  {msg:<28} [{bar:40}] {elapsed}") {
        bar.set_style(style);
    }
    let (start, before) = (Instant::now(), load.answered());
    while start.elapsed().as_secs_f64() < seconds {
        bar.set_position(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX));
        bar.set_message(format!("{what}: {} answers", load.answered() - before));
        std::thread::sleep(Duration::from_millis(50));
    }
    bar.finish();
    // Even on a slow machine there must be traffic.
    wait_until("an answer", PATIENCE, || load.answered() > before)?;
    println!("   {what}: {} answers in {seconds} s", load.answered() - before);
    Ok(())
}

/// The text of a file that a child writes.
fn text(path: &std::path::Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("Cannot read {}", path.display()))
}
