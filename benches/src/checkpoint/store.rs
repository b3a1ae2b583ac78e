// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints in stores (`bench checkpoint-store`): against `cp`, which checks nothing and keeps everything twice, and, in a bucket, against the same
//! bytes as one object of the same server.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::criu::{criu_is_here, stasis_command};
use super::lazy::Worker;
use super::{BYTES, Place};
use crate::figure::{Report, median};

const RUNS: usize = 3;
/// How chunks are compressed, and how long they are as a rule, KiB.
const STORES: [(&str, &str); 3] = [("none", "64"), ("none", "512"), ("lz4", "64")];
const BUCKET: &str = "s3://bucket/store";

/// A server of S3's interface with a bucket.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts the one that the setup has installed, if it has.
    fn start() -> Result<Option<Self>> {
        let named = std::env::var_os("STASIS_S3_PYTHON").map(PathBuf::from);
        let Some(python) = named.filter(|python| python.is_file()) else { return Ok(None) };
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new(python);
        command.args(["-I", "-m", "moto.server", "-H", "127.0.0.1", "-p", &address.port().to_string()]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = Self { process, address };
        let began = Instant::now();
        while server.ask("PUT", "/bucket", &[]).is_err() {
            ensure!(began.elapsed() < Duration::from_secs(60), "the S3 server does not start");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(Some(server))
    }

    /// One request by a connection of its own, to the end of its answer; returns the length of that. It has no signature, so what it
    /// writes is for everybody.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Result<usize> {
        let mut stream = TcpStream::connect(self.address)?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: s3\r\nx-amz-acl: public-read\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n"
        )?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        Ok(answer.len())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What `stasis store` takes, in seconds, and what it says.
fn timed(server: Option<&Server>, place: &Place, arguments: &[&str]) -> Result<(f64, Value)> {
    let mut command = stasis_command(&[&["store"], arguments].concat())?;
    if let Some(server) = server {
        command.env("AWS_ENDPOINT_URL", format!("http://{}", server.address));
        command.env("AWS_ACCESS_KEY_ID", "id").env("AWS_SECRET_ACCESS_KEY", "secret");
        command.env("STASIS_STAGING", place.path());
    }
    let began = Instant::now();
    let output = command.output().context("Cannot start stasis")?;
    let seconds = began.elapsed().as_secs_f64();
    if !output.status.success() {
        bail!("stasis store {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok((seconds, serde_json::from_slice(&output.stdout)?))
}

/// Files below a directory, and their bytes.
fn count(directory: &Path) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (files, bytes) = match entry.file_type()?.is_dir() {
            true => count(&entry.path())?,
            false => (1, entry.metadata()?.len()),
        };
        sum = (sum.0 + files, sum.1 + bytes);
    }
    Ok(sum)
}

/// Measures, if CRIU is here.
pub fn run(report: &Report) -> Result<()> {
    if !criu_is_here() {
        report.note("no CRIU here (cargo xtask setup installs one): left out");
        return Ok(());
    }
    let place = Place::tmpfs()?;
    if !place.has_room_for(4 * BYTES)? {
        report.note(&format!("{}: no room for images, left out", place.path().display()));
        return Ok(());
    }
    let mut worker = Worker::start(&place, BYTES as u64)?;
    worker.freeze()?;
    let image = place.path().join("image");
    let bytes = count(&image)?.1 as f64;
    let mut copied = Vec::new();
    for _ in 0..RUNS {
        let (to, began) = (place.path().join("copied"), Instant::now());
        let status = Command::new("cp").arg("-r").arg(&image).arg(&to).status()?;
        ensure!(status.success(), "cp failed");
        copied.push(bytes / began.elapsed().as_secs_f64() / 1e9);
        fs::remove_dir_all(to)?;
    }
    for (compression, kib) in STORES {
        let case = format!("{} MiB, chunks of {kib} KiB, {compression}, directory on tmpfs", BYTES >> 20);
        in_store(report, &case, None, &place, (compression, kib), ("cp", median(&copied)))?;
    }
    match Server::start()? {
        None => report.note("no S3 server here (cargo xtask setup --s3 installs one): left out"),
        Some(server) => {
            let body = vec![7; BYTES / 4];
            let (mut put, mut got) = (Vec::new(), Vec::new());
            for _ in 0..RUNS {
                for (method, body, times) in [("PUT", &body[..], &mut put), ("GET", &[], &mut got)] {
                    let began = Instant::now();
                    server.ask(method, "/bucket/plain", body)?;
                    times.push((BYTES / 4) as f64 / began.elapsed().as_secs_f64() / 1e9);
                }
            }
            let case = format!("{} MiB as one object of the same server", BYTES >> 22);
            report.plain(&case, "get", median(&got), "GB/s");
            let case = format!("{} MiB, chunks of 64 KiB, none, bucket", BYTES >> 20);
            in_store(report, &case, Some(&server), &place, STORES[0], ("one_object_put", median(&put)))?;
        }
    }
    worker.thaw(&[])?;
    worker.finish()
}

/// One store: the first addition, the same again, and a fetch.
fn in_store(
    report: &Report,
    case: &str,
    server: Option<&Server>,
    place: &Place,
    (compression, kib): (&str, &str),
    peer: (&str, f64),
) -> Result<()> {
    let text = |name: &str| place.path().join(name).to_str().map(str::to_owned).context("a strange name");
    let (image, back, own) = (text("image")?, text("back")?, text("store")?);
    let (mut first, mut again, mut fetched) = (Vec::new(), Vec::new(), Vec::new());
    let bytes = count(Path::new(&image))?.1 as f64;
    for run in 0..RUNS {
        let at = if server.is_some() { format!("{BUCKET}-{run}") } else { own.clone() };
        let how = ["--compress", compression, "--chunk-kib", kib];
        for (name, times) in [("one", &mut first), ("other", &mut again)] {
            let (seconds, _) = timed(server, place, &[&["add", &at, &image, name], &how[..]].concat())?;
            times.push(bytes / seconds / 1e9);
        }
        let trust: &[&str] = if server.is_some() { &["--trust-owner"] } else { &[] };
        let (seconds, _) = timed(server, place, &[&["fetch", &at, "one", &back], trust].concat())?;
        fetched.push(bytes / seconds / 1e9);
        fs::remove_dir_all(&back)?;
        if server.is_none() {
            if run == 0 {
                let (files, kept) = count(Path::new(&own))?;
                report.plain(case, "files", files as f64, "");
                report.plain(case, "kept", kept as f64 / bytes, "of the checkpoint's bytes");
            }
            fs::remove_dir_all(&own)?;
        }
    }
    report.versus(case, "add", median(&first), "GB/s", peer);
    report.versus(case, "add_the_same_again", median(&again), "GB/s", peer);
    report.versus(case, "fetch", median(&fetched), "GB/s", peer);
    Ok(())
}
