// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of a job: started, restored, checkpointed, and waited for.
//!
//! INVARIANT: whoever waits for a process knows its pid; ends of others, which this process inherits as their subreaper, are
//! collected only while no command of its own is under way.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::Deserialize;
use stasis::checkpoint::Metadata;

use super::images::Image;
use super::output::{Output, Pipes};

/// What shells add to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;
/// TIMEOUT: how long processes that were killed may take to end.
const ENDING: Duration = Duration::from_secs(10);
/// How often they are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// A program that runs.
#[derive(Debug)]
pub struct Program {
    pub pid: i32,
    output: Output,
    /// Its exit status, once it was waited for: the kernel tells it once.
    ended: Cell<Option<u8>>,
}

/// How a program is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Runs,
    /// With this status, as a shell says it.
    Ended(u8),
}

/// What is wanted of a restore.
#[derive(Clone, Copy, Debug)]
pub struct From<'a> {
    pub image: &'a Path,
    /// The inodes of the pipes that the program had.
    pub pipes: [u64; 2],
    /// The GPUs for its agents, in their order.
    pub devices: &'a [u32],
}

impl Program {
    /// Starts it, in a session of its own: CRIU wants a whole one. Answers also the inodes of its pipes.
    pub fn start(command: &[OsString], settings: &[(&str, String)]) -> Result<(Self, [u64; 2])> {
        let (output, Pipes { ends: [out, error], inodes }) = Output::begin()?;
        let name = command.first().map(|name| name.display().to_string()).unwrap_or_default();
        // It has the pid of setsid, which executes it in its own place.
        let mut setsid = Command::new("setsid");
        setsid.args(command).envs(settings.iter().map(|(name, value)| (name, value)));
        setsid.stdin(Stdio::null()).stdout(out).stderr(error);
        let child =
            setsid.spawn().with_context(|| format!("Cannot start {name} (by setsid of util-linux)"))?;
        Ok((Self::of(child.id().cast_signed(), output), inodes))
    }

    /// Brings it back from an image. Answers also the inodes of its pipes.
    ///
    /// # Errors
    /// What `stasis restore` said; nothing runs then.
    pub fn restore(from: From<'_>) -> Result<(Self, [u64; 2])> {
        let (output, pipes) = Output::begin()?;
        let mut restore = own("restore")?;
        restore.arg("--json").arg(from.image);
        // Of a program with fewer agents than the job has GPUs, the first ones.
        for (index, device) in from.devices.iter().take(agents(from.image)).enumerate() {
            restore.arg("--map").arg(format!("{index}={device}"));
        }
        for (end, inode) in pipes.ends.iter().zip(from.pipes) {
            // CRIU takes it, and nobody else is started meanwhile.
            fcntl(end, FcntlArg::F_SETFD(FdFlag::empty())).context("Cannot hand a pipe on")?;
            let pipe = format!("fd[{}]:pipe:[{inode}]", end.as_raw_fd());
            restore.args(["--criu-arg", "--inherit-fd", "--criu-arg"]).arg(pipe);
        }
        let done = restore.stdin(Stdio::null()).output().context("Cannot start stasis restore")?;
        let Pipes { ends, inodes } = pipes;
        drop(ends);
        if !done.status.success() {
            output.finish();
            bail!("{}", said(&done.stderr));
        }
        let Restored { pid } = serde_json::from_slice(&done.stdout)
            .context("stasis restore does not say which process it is")?;
        Ok((Self::of(pid, output), inodes))
    }

    fn of(pid: i32, output: Output) -> Self {
        Self { pid, output, ended: Cell::new(None) }
    }

    /// Begins a checkpoint of it, whose messages go to a file.
    pub fn checkpoint(&self, directory: &Path, options: &[OsString], messages: File) -> Result<Child> {
        let mut checkpoint = own("checkpoint")?;
        checkpoint.args(options).arg("--json").arg(self.pid.to_string()).arg(directory);
        checkpoint.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
        checkpoint.spawn().context("Cannot start stasis checkpoint")
    }

    /// Whether it has ended.
    pub fn look(&self) -> Life {
        if self.ended.get().is_none() {
            self.ended.set(self.wait());
        }
        self.ended.get().map_or(Life::Runs, Life::Ended)
    }

    /// Its exit status, if it has just ended.
    fn wait(&self) -> Option<u8> {
        match waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => Some(u8::try_from(code).unwrap_or(1)),
            Ok(WaitStatus::Signaled(_, signal, _)) => {
                Some(u8::try_from(BY_SIGNAL + signal as i32).unwrap_or(1))
            }
            // Its exit status was taken by another wait.
            Err(Errno::ECHILD) if kill(Pid::from_raw(self.pid), None).is_err() => Some(1),
            _ => None,
        }
    }

    /// Collects processes that nobody else waits for. No command of this process's may be under way.
    pub fn collect_others(&self) {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT | WaitPidFlag::WEXITED;
        while let Ok(status) = nix::sys::wait::waitid(nix::sys::wait::Id::All, flags) {
            let Some(pid) = status.pid().filter(|pid| pid.as_raw() != self.pid) else { return };
            if waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_err() {
                return;
            }
        }
    }

    /// Ends it and all processes that came of it, whichever groups and sessions they are in: this process inherits them.
    pub fn kill(&self) {
        let deadline = Instant::now() + ENDING;
        while Instant::now() < deadline {
            // It may end at any moment.
            self.look();
            let own = std::process::id().cast_signed();
            let children: Vec<i32> =
                stasis_criu_foreign::members(own).into_iter().filter(|pid| *pid != own).collect();
            if children.is_empty() {
                return;
            }
            for child in children {
                let _ = signal(child, Signal::SIGKILL);
            }
            self.collect_others();
            sleep(LOOK);
        }
    }

    /// Passes a signal on.
    pub fn tell(&self, word: Signal) {
        let _ = signal(self.pid, word);
    }

    /// Waits until what it wrote is passed on.
    pub fn finish(&self) {
        self.output.finish();
    }
}

#[derive(Debug, Deserialize)]
struct Restored {
    pid: i32,
}

/// Sends a signal to a process, or to a process group by its negative number.
pub fn signal(pid: i32, signal: Signal) -> io::Result<()> {
    Ok(kill(Pid::from_raw(pid), signal)?)
}

/// The agents of the one process with a runtime that an image is of; none where there are several, each with its own, or no runtime.
fn agents(image: &Path) -> usize {
    let [path] = &Image::runtimes(image)[..] else { return 0 };
    let metadata = stasis::image::Image::open(path).and_then(|image| image.metadata::<Metadata>());
    metadata.map_or(0, |metadata| metadata.agents.len())
}

/// A program that does not get the SIGTERM that Slurm sends to all processes of a job: this process decides what it means. SIGINT
/// ends it.
pub fn shielded(program: &OsStr) -> Command {
    let mut command = Command::new("env");
    command.args(["--block-signal=TERM", "--"]).arg(program);
    command
}

/// Another command of this program.
fn own(verb: &str) -> Result<Command> {
    let program = std::env::current_exe().context("Cannot find this program's own path")?;
    let mut command = shielded(program.as_os_str());
    command.arg(verb);
    Ok(command)
}

/// What a command said of its failure, in one line.
pub fn said(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.as_slice() {
        [] => "it says nothing".to_owned(),
        lines => lines.join("; "),
    }
}

/// How a command ended.
pub fn outcome(status: ExitStatus, text: &[u8]) -> Result<()> {
    match (status.success(), status.signal()) {
        (true, _) => Ok(()),
        (false, Some(signal)) => bail!("it was ended by signal {signal}: {}", said(text)),
        (false, None) => bail!("{}", said(text)),
    }
}
