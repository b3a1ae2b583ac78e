// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients: `embed-load`, and what it reports.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{JoinHandle, spawn};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::{Stage, text};
use crate::demo::number;

fn embed_load(stage: &Stage) -> Command {
    Command::new(&stage.built.embed_load)
}

/// The first request, before the freeze and after the thaw: the first of the sentences.
fn sentence(stage: &Stage) -> Result<String> {
    let text = text(&stage.sentences)?;
    Ok(text.lines().next().context("There are no sentences")?.to_owned())
}

/// A client that waits for the first answer.
pub(super) struct First(Child);

/// The first answer.
pub(super) struct Answered {
    /// When the answer was complete.
    pub(super) unix_ms: f64,
    /// Where the server is.
    pub(super) url: String,
    embedding: Value,
}

impl First {
    /// Starts asking; the server need not run yet.
    pub(super) fn start(stage: &Stage, expect: Option<&Path>) -> Result<Self> {
        let mut command = embed_load(stage);
        command.args(["first", "--sentence", &sentence(stage)?, "--log"]).arg(&stage.log);
        if let Some(expect) = expect {
            command.arg("--expect").arg(expect);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Ok(Self(child.context("Cannot start embed-load")?))
    }

    pub(super) fn wait(self) -> Result<Answered> {
        let output = self.0.wait_with_output()?;
        ensure!(
            output.status.success(),
            "no first embedding: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let value: Value = serde_json::from_slice(&output.stdout)?;
        let url = value["url"].as_str().context("embed-load names no url")?.to_owned();
        Ok(Answered { unix_ms: number(&value, "unix_ms")?, url, embedding: value["embedding"].clone() })
    }
}

/// Records every sentence's embedding, and checks the first answer against it. Returns the number of sentences.
pub(super) fn record(stage: &Stage, first: &Answered) -> Result<u64> {
    let mut command = embed_load(stage);
    command.args(["record", "--url", &first.url, "--sentences"]).arg(&stage.sentences).arg(&stage.expect);
    let output = command.output().context("Cannot start embed-load")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let sentence = sentence(stage)?;
    let lines = text(&stage.expect)?;
    let all = lines.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let same = all.iter().find(|one| one["text"] == sentence.as_str());
    ensure!(
        same.is_some_and(|one| one["embedding"] == first.embedding),
        "the server's first embedding is not the one it gave later"
    );
    // CAST: usize to u64 is lossless here.
    Ok(all.len() as u64)
}

/// Shows that no process listens any more. Returns the port.
pub(super) fn refused(url: &str) -> Result<String> {
    let host = url.trim_start_matches("http://");
    match TcpStream::connect(host) {
        Err(why) if why.kind() == ErrorKind::ConnectionRefused => {
            Ok(host.rsplit(':').next().unwrap_or(host).to_owned())
        }
        Err(why) => Err(why).context("A connection to the frozen server fails, but not as it should"),
        Ok(_) => bail!("The server is gone, but a process listens at {host}"),
    }
}

/// Clients at work.
pub(super) struct Load {
    child: Child,
    /// The clients stop when this pipe is closed.
    until: ChildStdin,
    answered: Arc<AtomicU64>,
    reader: JoinHandle<Result<Vec<Value>>>,
}

/// A request as its client saw it; times are milliseconds since 1970.
pub(super) struct Request {
    pub(super) id: String,
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) attempts: f64,
    pub(super) ok: bool,
    /// What was wrong.
    pub(super) why: Option<String>,
}

/// The clients' report.
pub(super) struct Report {
    /// When the clients began.
    pub(super) begin: f64,
    pub(super) requests: Vec<Request>,
    pub(super) summary: Value,
}

impl Load {
    /// Starts the clients.
    pub(super) fn start(stage: &Stage, url: &str) -> Result<Self> {
        let mut command = embed_load(stage);
        command.args(["--url", url, "--clients", &stage.args.clients.to_string(), "--until-eof", "--json"]);
        command.arg("--sentences").arg(&stage.sentences).arg("--expect").arg(&stage.expect);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("Cannot start embed-load")?;
        let until = child.stdin.take().context("embed-load has no standard input")?;
        let output = child.stdout.take().context("embed-load has no standard output")?;
        let mut file = File::create(&stage.report)?;
        let answered = Arc::new(AtomicU64::new(0));
        let counter = answered.clone();
        let reader = spawn(move || {
            let mut lines = Vec::new();
            for line in BufReader::new(output).lines() {
                let line = line?;
                writeln!(file, "{line}")?;
                let value: Value = serde_json::from_str(&line)?;
                if value["outcome"] == "ok" {
                    // ORDERING: a count by itself.
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                lines.push(value);
            }
            Ok(lines)
        });
        Ok(Self { child, until, answered, reader })
    }

    /// Requests answered correctly until now.
    pub(super) fn answered(&self) -> u64 {
        // ORDERING: a count by itself.
        self.answered.load(Ordering::Relaxed)
    }

    /// Has them stop.
    pub(super) fn finish(mut self) -> Result<Report> {
        drop(self.until);
        // The exit status is ignored: the report has the verdict on each answer, too.
        self.child.wait()?;
        let lines = self.reader.join().map_err(|_| anyhow!("The report could not be read"))??;
        let (Some(first), Some(summary)) = (lines.first(), lines.last()) else {
            bail!("embed-load reported nothing");
        };
        ensure!(summary["kind"] == "summary", "embed-load did not come to its end");
        let begin = number(first, "unix_ms")?;
        let requests = lines.iter().filter(|line| line["kind"] == "request").map(|line| {
            let start = begin + number(line, "start_ms")?;
            Ok(Request {
                id: line["id"].as_str().context("A request has no id")?.to_owned(),
                start,
                end: start + number(line, "latency_ms")?,
                attempts: number(line, "attempts")?,
                ok: line["outcome"] == "ok",
                why: line["why"].as_str().map(str::to_owned),
            })
        });
        Ok(Report { begin, requests: requests.collect::<Result<_>>()?, summary: summary.clone() })
    }
}
