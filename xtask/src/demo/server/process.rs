// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's process, before and after: the same pid, but another child.
//!
//! INVARIANT: when it goes out of sight it is killed, whichever of its lives it is in.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};

use super::{INSTANCE, PATIENCE, Stage, text};
use crate::demo::{exists, wait_until};

/// Where the process is in its life.
enum Life {
    /// Started by us.
    First(Child),
    /// Frozen.
    None,
    /// Started by CRIU.
    Second,
}

/// The server.
pub(super) struct Server<'a> {
    stage: &'a Stage<'a>,
    pid: u32,
    life: Life,
}

/// What the server says it did.
pub(super) struct Served {
    /// How often each id was answered with 200.
    pub(super) answers: HashMap<String, u32>,
    /// Answers with 200 that its metrics count.
    pub(super) counted: u64,
}

/// From now on what loses its parent becomes this process's child: the restored server, whose end we want to see.
pub(super) fn adopt() -> Result<()> {
    set_child_subreaper(Some(rustix::process::getpid())).context("Cannot adopt processes (prctl)")
}

impl<'a> Server<'a> {
    /// Starts it, with a log that has all it prints.
    pub(super) fn start(stage: &'a Stage<'a>) -> Result<Self> {
        drop(File::create(&stage.log)?);
        let append = || OpenOptions::new().append(true).open(&stage.log);
        // A session of its own: CRIU takes no process that hangs on a terminal.
        let child = Command::new("setsid")
            .arg(&stage.built.embed_server)
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(append()?)
            .stderr(append()?)
            .env("STASIS_SOFTGPUD", &stage.built.softgpud)
            .env("STASIS_SOFTGPU_INSTANCE", INSTANCE)
            .env("STASIS_MODEL", &stage.model)
            .spawn()
            .context("Cannot start embed-server through setsid (util-linux)")?;
        Ok(Self { stage, pid: child.id(), life: Life::First(child) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Takes leave of the process that CRIU killed.
    pub(super) fn bury(&mut self) -> Result<()> {
        if let Life::First(mut child) = std::mem::replace(&mut self.life, Life::None) {
            child.wait()?;
        }
        Ok(())
    }

    /// CRIU has brought it back.
    pub(super) fn is_back(&mut self) {
        self.life = Life::Second;
    }

    /// What it did in both lives: its log and its metrics.
    pub(super) fn served(&self, url: &str) -> Result<Served> {
        let mut answers: HashMap<String, u32> = HashMap::new();
        for line in text(&self.stage.log)?.lines() {
            let has = |what: &str| line.contains(what);
            if has("path=\"/v1/embeddings\"") && has("status=200") {
                let id = line.split("id=\"").nth(1).and_then(|rest| rest.split('"').next());
                *answers
                    .entry(id.context("A line of the server's log has no id")?.to_owned())
                    .or_default() += 1;
            }
        }
        let host = url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")?;
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics)?;
        let ours = |line: &&str| {
            let has = |what: &str| line.contains(what);
            line.starts_with("embed_http_requests_total{") && has("\"/v1/embeddings\"") && has("\"200\"")
        };
        let counted = metrics.lines().find(ours).and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
        Ok(Served { answers, counted: counted.context("The server's metrics count no embeddings")? })
    }

    /// Asks it to end and waits; its exit status if it can be known, for a process in between may have adopted it.
    pub(super) fn end(mut self) -> Result<Option<i32>> {
        let pid = self.kill(Signal::TERM)?;
        let mut status = None;
        wait_until("the server's end after SIGTERM", PATIENCE, || {
            match waitpid(Some(pid), WaitOptions::NOHANG) {
                Ok(Some((_, end))) => {
                    // What a signal ended has no exit status; shells count those from 128.
                    status = end.exit_status().or(end.terminating_signal().map(|signal| 128 + signal));
                    true
                }
                Ok(None) => false,
                Err(Errno::CHILD) => !exists(self.pid),
                Err(_) => false,
            }
        })?;
        self.life = Life::None;
        ensure!(!text(&self.stage.log)?.contains(" ERROR "), "see {}", self.stage.log.display());
        Ok(status)
    }

    fn kill(&self, signal: Signal) -> Result<Pid> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("The server has no pid")?;
        kill_process(pid, signal).context("The server is gone")?;
        Ok(pid)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        if !matches!(self.life, Life::None) {
            // Only after a failure, which is told already.
            let _ = self.kill(Signal::KILL);
        }
        if let Life::First(child) = &mut self.life {
            let _ = child.wait();
        }
    }
}
