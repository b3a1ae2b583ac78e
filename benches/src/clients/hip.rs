// SPDX-License-Identifier: MIT OR Apache-2.0
//! A HIP program that launches empty kernels, and then sleeps.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::{SysconfVar, sysconf};

use super::{check_executed, installed, source, stasis_run};
use crate::figure::{Report, quantile};
use crate::ping_pong::{PingPong, Wait};

const BUSY_TRIPS: usize = 5000;
const PAUSED_TRIPS: usize = 200;
/// Before each of the paused trips: long after every thread has gone to sleep.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the program sleeps at the end, its queues open.
const SLEEP: Duration = Duration::from_secs(4);

/// Measures.
pub fn run(report: &Report) -> Result<()> {
    // The peers first: they fork, which is for a process of one thread.
    let mut ball = PingPong::start(Wait::Futex)?;
    let busy_peer: Vec<f64> = (0..BUSY_TRIPS).map(|_| ball.trip()).collect();
    let paused_peer: Vec<f64> = (0..PAUSED_TRIPS)
        .map(|_| {
            std::thread::sleep(PAUSE);
            ball.trip()
        })
        .collect();
    drop(ball);
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("round_trip");
    let compiler = installed("STASIS_ROCM_6_1", "rocm-6.1")?.join("bin/hipcc");
    let mut compile = Command::new(&compiler);
    compile.args(["-O2", "--offload-arch=gfx1100"]).arg(source("round_trip.hip")).arg("-o").arg(&program);
    let compiled = compile.output().with_context(|| format!("Cannot start {}", compiler.display()))?;
    ensure!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    let mut command = stasis_run()?;
    command.arg(&program).args([BUSY_TRIPS, PAUSED_TRIPS].map(|trips| trips.to_string()));
    command.args([PAUSE, SLEEP].map(|time| time.as_millis().to_string()));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let measured = follow(report, &mut child, [("busy", &busy_peer), ("paused", &paused_peer)]);
    if measured.is_err() {
        // It may have ended by itself; what it said is in the error then.
        let _ = child.kill();
    }
    let mut errors = String::new();
    child.stderr.take().context("no error stream")?.read_to_string(&mut errors)?;
    let status = child.wait()?;
    measured.with_context(|| errors.clone())?;
    ensure!(status.success(), "round_trip failed ({status}): {errors}");
    check_executed(&errors)
}

fn follow(report: &Report, child: &mut Child, peers: [(&str, &[f64]); 2]) -> Result<()> {
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    for (name, peer) in peers {
        let times = times(&mut lines, name)?;
        let case = match name {
            "busy" => "HIP round trip, one after the other".to_owned(),
            _ => format!("HIP round trip, each after {} ms", PAUSE.as_millis()),
        };
        for (metric, share) in [("round_trip_median", 0.5), ("round_trip_p90", 0.9)] {
            let peer = ("futex_ping_pong", quantile(peer, share));
            report.versus(&case, metric, quantile(&times, share), "us", peer);
        }
    }
    expect(&mut lines, "asleep")?;
    let (started, before) = (Instant::now(), device_seconds(child.id())?);
    expect(&mut lines, "awake")?;
    let share = (device_seconds(child.id())? - before) / started.elapsed().as_secs_f64();
    report.ratio("HIP program asleep", "device_cpu", share * 100.0, "%", ("one_core", share));
    Ok(())
}

type Lines = std::io::Lines<BufReader<ChildStdout>>;

/// Microseconds of each trip, in a line that begins with this name.
fn times(lines: &mut Lines, name: &str) -> Result<Vec<f64>> {
    let line = lines.next().context("round_trip ended early")??;
    let mut words = line.split(' ');
    ensure!(words.next() == Some(name), "round_trip said {line:?}, not {name}");
    words.map(|word| word.parse().with_context(|| format!("no number: {word}"))).collect()
}

fn expect(lines: &mut Lines, wanted: &str) -> Result<()> {
    match lines.next().transpose()? {
        Some(line) if line == wanted => Ok(()),
        found => bail!("round_trip said {found:?}, not {wanted}"),
    }
}

/// CPU time of the device of a run: of the processes below `stasis run` that are softgpud's. In clock ticks, of 10 ms.
fn device_seconds(stasis: u32) -> Result<f64> {
    let ticks = sysconf(SysconfVar::CLK_TCK)?.context("no clock tick")?;
    let softgpud = std::env::current_exe()?.with_file_name("softgpud");
    let (mut of_device, mut sum) = (0, 0.0);
    let mut processes = vec![stasis.to_string()];
    while let Some(pid) = processes.pop() {
        let directory = std::path::Path::new("/proc").join(&pid);
        let threads = std::fs::read_dir(directory.join("task")).context("a process ended")?;
        for thread in threads.flatten() {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            processes.extend(children.split_whitespace().map(str::to_owned));
        }
        if std::fs::read_link(directory.join("exe")).ok() != softgpud.canonicalize().ok() {
            continue;
        }
        let stat = std::fs::read_to_string(directory.join("stat"))?;
        // proc(5): the name, in brackets, may have spaces; user and system time are the 12th and 13th field behind it.
        let (_, fields) = stat.rsplit_once(") ").context("no name in /proc/PID/stat")?;
        let times = fields.split(' ').skip(11).take(2).map(|field| field.parse::<f64>().unwrap_or(0.0));
        sum += times.sum::<f64>();
        of_device += 1;
    }
    // One that serves, and one that executes.
    ensure!(of_device >= 2, "the run has {of_device} processes of softgpud");
    // CAST: a count of ticks a second.
    Ok(sum / ticks as f64)
}
