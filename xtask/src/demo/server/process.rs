// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's process before the freeze and after the thaw: the same pid, but another child.
//!
//! INVARIANT: when the handle is dropped the process is killed, whether it was thawed or not.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{INSTANCE, PATIENCE, Stage, text};
use crate::demo::{exists, wait_until};

/// The state of the process.
enum Life {
    /// Started by this process.
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

/// The server's own account of its work.
pub(super) struct Served {
    /// How often each id was answered with 200.
    pub(super) answers: HashMap<String, u32>,
    /// Answers with 200 that its metrics count.
    pub(super) counted: u64,
}

/// From now on orphans become children of this process: the restored server becomes one, so that its exit status can be
/// read.
pub(super) fn adopt() -> Result<()> {
    set_child_subreaper(true).map_err(io::Error::from).context("Cannot adopt processes (prctl)")
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

    /// Reaps the process that CRIU killed.
    pub(super) fn bury(&mut self) -> Result<()> {
        if let Life::First(mut child) = std::mem::replace(&mut self.life, Life::None) {
            child.wait()?;
        }
        Ok(())
    }

    /// CRIU has restored it.
    pub(super) fn is_back(&mut self) {
        self.life = Life::Second;
    }

    /// Its work before and after the freeze: its log and its metrics.
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

    /// Asks it to end and waits. Returns its exit status, if that can be known: another process may have adopted it.
    pub(super) fn end(mut self) -> Result<Option<i32>> {
        let pid = self.kill(Signal::SIGTERM)?;
        let mut status = None;
        wait_until("the server's end after SIGTERM", PATIENCE, || {
            match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => false,
                Ok(end) => {
                    status = match end {
                        WaitStatus::Exited(_, code) => Some(code),
                        // What a signal ended has no exit status; shells count those from 128.
                        WaitStatus::Signaled(_, signal, _) => Some(128 + signal as i32),
                        _ => None,
                    };
                    true
                }
                Err(Errno::ECHILD) => !exists(self.pid),
                Err(_) => false,
            }
        })?;
        self.life = Life::None;
        ensure!(!text(&self.stage.log)?.contains(" ERROR "), "see {}", self.stage.log.display());
        Ok(status)
    }

    fn kill(&self, signal: Signal) -> Result<Pid> {
        let pid = i32::try_from(self.pid).ok().filter(|pid| *pid > 0).context("The server has no pid")?;
        let pid = Pid::from_raw(pid);
        kill(pid, signal).map_err(io::Error::from).context("The server is gone")?;
        Ok(pid)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        if !matches!(self.life, Life::None) {
            // Only after a failure, which was reported already.
            let _ = self.kill(Signal::SIGKILL);
        }
        if let Life::First(child) = &mut self.life {
            let _ = child.wait();
        }
    }
}
