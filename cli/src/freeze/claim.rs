// SPDX-License-Identifier: MIT OR Apache-2.0
//! Before a restore: whether the pids of a checkpoint are free, another restore is at it, or its copy is there already.
//!
//! INVARIANT: a copy is known by the image that it came from, which its agent names; nothing else that has the pid is
//! ever taken for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, bail};
use stasis::checkpoint::{
    Admission, Done, IMAGE_FILE, Metadata, OfferError, Request, State, TermsOffer, call,
};
use stasis::criu::Manifest;
use stasis::image::Image;
use stasis_criu::guard;

use super::fate::lives;

/// TIMEOUT: how long a parent (pid 1 for an orphan) may take to reap a process; some look only every few seconds.
const BURIAL: Duration = Duration::from_secs(10);
/// TIMEOUT: how long a copy that has just been made may take to know itself.
const AWAKENING: Duration = Duration::from_secs(10);
/// TIMEOUT: how long an agent may take to say its state.
const STATUS: Duration = Duration::from_secs(5);
/// How long what is waited for is left alone.
const LOOK: Duration = Duration::from_millis(20);

/// What there is of a checkpoint's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Nothing: CRIU is to make them.
    None,
    /// All of them, made by another restore of the same checkpoint.
    Copy,
}

/// A tree about to be restored.
pub(super) struct Claim<'a> {
    pub manifest: &'a Manifest,
    /// Its processes with a runtime, each with the directory of its image.
    pub runtimes: &'a [(i32, PathBuf)],
    pub admission: &'a Admission,
    /// A copy that runs already is as good as one that this restore makes.
    pub joins: bool,
    /// Until when others are waited for.
    pub deadline: Instant,
}

impl Claim<'_> {
    /// Holds the terms ready for each process, which may wake up and take its device before it can be given an order; and
    /// says what there is of them. Another restore of the same checkpoint that is under way is waited for.
    ///
    /// # Errors
    /// When something else has one of the pids, or others do not come to an end.
    pub fn stake(&self) -> Result<(Vec<TermsOffer>, Presence)> {
        let mut has_waited = false;
        let mut standing = Vec::new();
        for (pid, _) in self.runtimes {
            standing.push(self.offer(*pid, &mut has_waited)?);
        }
        has_waited |= self.wait_for_criu()?;
        let is_there = self.pids().any(lives);
        if is_there && self.is_copy()? {
            if self.joins || has_waited || self.states().any(|state| state != Some(State::Running)) {
                return Ok((standing, Presence::Copy));
            }
            bail!(
                "Process {0} was restored from this checkpoint before, and runs: end it to go back to the checkpoint, or \
                 restore beside it (--beside)",
                self.manifest.pid
            );
        }
        self.pids().try_for_each(wait_for_pid)?;
        Ok((standing, Presence::None))
    }

    /// Whether another CRIU has made the processes while ours failed to.
    ///
    /// # Errors
    /// When it does not come to an end.
    pub fn is_overtaken(&self) -> Result<bool> {
        self.wait_for_criu()?;
        Ok(self.pids().all(lives) && self.is_copy()?)
    }

    /// Waits for a CRIU that is making these processes; whether there was one.
    fn wait_for_criu(&self) -> Result<bool> {
        let mut has_waited = false;
        while let Some(criu) = restorer_of(self.manifest.pid) {
            has_waited = true;
            if Instant::now() >= self.deadline {
                let pid = self.manifest.pid;
                bail!("Process {criu}, a criu, has not come to an end with restoring process {pid}");
            }
            sleep(LOOK);
        }
        Ok(has_waited)
    }

    /// The root's pid and those of the other processes with a runtime.
    fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        let root = self.manifest.pid;
        std::iter::once(root).chain(self.runtimes.iter().map(|(pid, _)| *pid).filter(move |pid| *pid != root))
    }

    fn states(&self) -> impl Iterator<Item = Option<State>> + '_ {
        self.runtimes.iter().map(|(pid, _)| call(*pid, &Request::Status, STATUS).ok().map(|(state, _)| state))
    }

    fn offer(&self, pid: i32, has_waited: &mut bool) -> Result<TermsOffer> {
        loop {
            match TermsOffer::offer(pid, self.manifest.secret_of(pid), self.admission) {
                Err(OfferError::UnderWay { .. }) if Instant::now() < self.deadline => {
                    *has_waited = true;
                    sleep(LOOK);
                }
                offered => return offered.map_err(Error::from),
            }
        }
    }

    /// Whether every process with a runtime is there as a copy from its image.
    fn is_copy(&self) -> Result<bool> {
        for (pid, directory) in self.runtimes {
            let Some(image) = image_id(directory)? else { return Ok(false) };
            if copy_of(*pid).as_ref() != Some(&image) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The id of the image in a directory; processes that keep their contents have none there.
fn image_id(directory: &Path) -> Result<Option<String>> {
    let path = directory.join(IMAGE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(Image::inspect(&path)?.metadata::<Metadata>()?.image_id))
}

/// The image that a process says it came from. A copy that has just been made does not know yet.
fn copy_of(pid: i32) -> Option<String> {
    let until = Instant::now() + AWAKENING;
    loop {
        match call(pid, &Request::Status, STATUS) {
            Ok((State::Checkpointed, Done::Status { copy_of: None, .. })) if Instant::now() < until => {
                sleep(LOOK)
            }
            Ok((_, Done::Status { copy_of, .. })) => return copy_of,
            _ => return None,
        }
    }
}

/// The CRIU that is making a process, whoever has called it: its parent until it is done, or its tracer.
fn restorer_of(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |key: &str| -> Option<i32> {
        status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim().parse().ok()
    };
    let is_criu = |pid: &i32| {
        *pid > 0 && fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "criu")
    };
    [number("PPid"), number("TracerPid")].into_iter().flatten().find(is_criu)
}

/// The checkpoint needs its pid back: a living process has it for good, a dead one until its parent has buried it, one that
/// a killed restore had begun until its guard has ended it.
pub fn wait_for_pid(pid: i32) -> Result<()> {
    let deadline = Instant::now() + BURIAL;
    while fs::exists(format!("/proc/{pid}")).unwrap_or(true) {
        // In this order: a guard ends when nothing is left of the process.
        let is_guarded = guard::is_above(pid) && Instant::now() < deadline;
        if !is_guarded && lives(pid) {
            bail!(
                "Process {pid} exists; the checkpoint needs its pid back: end that process, or restore in a pid \
                 namespace of its own (unshare -pf --mount-proc)"
            );
        }
        if Instant::now() >= deadline {
            bail!(
                "Process {pid} has ended, but its parent does not reap it; the checkpoint needs its pid back"
            );
        }
        sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_criu_is_taken_for_a_restorer() {
        let directory = tempfile::tempdir().unwrap();
        let own = std::process::id().cast_signed();
        assert_eq!(restorer_of(own), None);
        assert_eq!(restorer_of(i32::MAX), None);
        // A child of something called criu.
        let program = directory.path().join("criu");
        fs::copy("/bin/sh", &program).unwrap();
        let mut criu = Command::new(&program).args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let pid = criu.id().cast_signed();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let child = loop {
            let listed = fs::read_to_string(&children).unwrap();
            if let Some(child) = listed.split_ascii_whitespace().next() {
                break child.parse::<i32>().unwrap();
            }
        };
        assert_eq!(restorer_of(child), Some(pid));
        criu.kill().unwrap();
        criu.wait().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), nix::sys::signal::Signal::SIGKILL).unwrap();
    }

    #[test]
    fn process_without_an_agent_is_no_copy() {
        assert_eq!(copy_of(std::process::id().cast_signed()), None);
        assert_eq!(image_id(Path::new("/nowhere")).unwrap(), None);
        let error = wait_for_pid(std::process::id().cast_signed()).unwrap_err();
        assert!(error.to_string().contains("needs its pid back"), "{error}");
    }
}
