// SPDX-License-Identifier: MIT OR Apache-2.0
//! From nothing to the first embedding: a server that starts, and the same server that CRIU brings back, with its buffers filled before
//! or while it serves.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use stasis::image::IMAGE_FILE;

use super::model;
use super::serving::beside;
use crate::checkpoint::criu::{criu_is_here, run_stasis};
use crate::figure::{Report, median};

const RUNS: usize = 5;
/// TIMEOUT: for a server to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a server that does not answer yet is left alone.
const PAUSE: Duration = Duration::from_millis(1);
const HOST: &str = "127.0.0.1";
const ASKED: &str = "The first thing that is asked.";
const PORT: u16 = 18087;

/// Asks for an embedding, on a connection of its own.
fn embedding(port: u16, input: &str) -> Result<Value> {
    let body = json!({ "model": "all-MiniLM-L6-v2", "input": input }).to_string();
    let mut stream = TcpStream::connect((HOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!(
        "POST /v1/embeddings HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let mut answer: Value = serde_json::from_str(body)?;
    Ok(answer["data"][0]["embedding"].take())
}

/// Asks until there is an embedding: a connection may be refused, or end before it is answered, by a server that is not there yet.
pub(super) fn first_embedding(port: u16, input: &str) -> Result<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match embedding(port, input) {
            Ok(embedding) => return Ok(embedding),
            Err(error) if Instant::now() >= deadline => bail!("the server does not answer: {error}"),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

pub(super) fn start(directory: &Path, port: u16) -> Result<Child> {
    let log = fs::OpenOptions::new().append(true).create(true).open(directory.join("log"))?;
    let mut command = Command::new("setsid");
    command
        .arg(beside("embed-server")?)
        .args(["--listen", &format!("{HOST}:{port}"), "--model"])
        .arg(model()?);
    command.env("RUST_LOG", "warn").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().context("Cannot start a server through setsid (util-linux)")
}

/// Milliseconds from the beginning of what `bring` does to the first embedding, which must be `wanted`.
fn timed(wanted: &mut Option<Value>, bring: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    let asking =
        std::thread::spawn(move || first_embedding(PORT, ASKED).map(|found| (found, started.elapsed())));
    bring()?;
    let asked = asking.join().map_err(|_| anyhow!("the thread that asks has panicked"))?;
    let (found, time) = asked?;
    ensure!(wanted.get_or_insert_with(|| found.clone()) == &found, "another embedding than before");
    Ok(time.as_secs_f64() * 1e3)
}

/// Ends a restored server, which is CRIU's orphan: somebody else reaps it.
pub(super) fn end(pid: i32) -> Result<()> {
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    while Path::new(&format!("/proc/{pid}")).exists() {
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Has no page of a file in the page cache: the restore before has left it there, which one on another day would not find.
fn forget(path: &Path) -> Result<()> {
    let file = fs::File::open(path)?;
    file.sync_all()?;
    Ok(posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
}

/// Measures, if CRIU is here.
pub fn run(report: &Report) -> Result<()> {
    if !criu_is_here() {
        report.note("no CRIU here (cargo xtask setup installs one): left out");
        return Ok(());
    }
    let directory = tempfile::Builder::new().prefix("stasis-bench-embed-").tempdir()?;
    let (image, mut wanted) = (directory.path().join("image"), None);
    let image = image.to_str().context("a directory with a strange name")?;
    let (mut cold, mut whole, mut lazy) = (Vec::new(), Vec::new(), Vec::new());
    let mut phases = Value::Null;
    for _ in 0..RUNS {
        let mut server = None;
        cold.push(timed(&mut wanted, || {
            server = Some(start(directory.path(), PORT)?);
            Ok(())
        })?);
        let mut server = server.context("no server")?;
        let pid = server.id().cast_signed();
        run_stasis(&["checkpoint", &pid.to_string(), image])?;
        server.wait()?;
        for (more, times) in [(&[][..], &mut whole), (&["--lazy"][..], &mut lazy)] {
            forget(&Path::new(image).join(IMAGE_FILE))?;
            times.push(timed(&mut wanted, || {
                phases = run_stasis(&[&["restore", image], more].concat())?.1;
                Ok(())
            })?);
            end(pid)?;
        }
        fs::remove_dir_all(image)?;
    }
    let case = "all-MiniLM-L6-v2, a sentence";
    let cold = ("cold_start_to_first_embedding", median(&cold));
    report.versus(case, "restore_to_first_embedding", median(&whole), "ms", cold);
    report.versus(case, "lazy_restore_to_first_embedding", median(&lazy), "ms", cold);
    for phase in ["criu_ms", "open_ms", "rebuild_ms", "fill_ms", "restore_ms"] {
        let name = format!("lazy_restore_{}", phase.trim_end_matches("_ms"));
        report.plain(case, &name, phases[phase].as_f64().unwrap_or(f64::NAN), "ms");
    }
    Ok(())
}
