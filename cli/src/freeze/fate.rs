// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is true of processes at the end, whatever went wrong before: they live, or they ended, and how.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Error;
use stasis::checkpoint::{Ended, Process, Request, call};
use stasis::criu::Manifest;

use super::party::{Party, Tree};

/// TIMEOUT: how long a process may take to be seen to have ended once its agent no longer answers.
const ENDING: Duration = Duration::from_secs(5);
/// TIMEOUT: how long the agent of a process that lives may take to say so, each time it is asked.
const ANSWER: Duration = Duration::from_secs(1);
/// How long is waited between looks.
const LOOK: Duration = Duration::from_millis(10);

/// Whether a process exists and has not ended.
pub fn lives(pid: i32) -> bool {
    Process::of(pid).is_some_and(|process| process.is_alive())
}

/// Processes as they were when all was well.
#[derive(Clone, Debug)]
pub struct Known(Vec<Process>);

impl Known {
    /// These processes, as they are now; a later one with such a pid is not taken for them.
    pub fn of(pids: impl Iterator<Item = i32>) -> Self {
        let seen = |pid| Process::of(pid).unwrap_or(Process { pid, started: 0 });
        Self(pids.map(seen).collect())
    }

    /// How one of them ended, if it has.
    pub fn end(&self, pid: i32) -> Option<Ended> {
        self.0.iter().find(|process| process.pid == pid)?.end()
    }

    /// Those that have ended, and how.
    pub fn ended(&self) -> Vec<(i32, Ended)> {
        self.0.iter().filter_map(|process| Some((process.pid, process.end()?))).collect()
    }

    /// The same of one whose agent did not answer: a process that is about to end closes its sockets first.
    pub fn end_of_silent(&self, pid: i32) -> Option<Ended> {
        let deadline = Instant::now() + ENDING;
        loop {
            if let Some(how) = self.end(pid) {
                return Some(how);
            }
            if call(pid, &Request::Status, ANSWER).is_ok() || Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// `7 (killed by signal 9), 8 (exit code 1)`
pub fn list(ended: &[(i32, Ended)]) -> String {
    let texts: Vec<_> = ended.iter().map(|(pid, how)| format!("{pid} ({how})")).collect();
    texts.join(", ")
}

/// Whether a tree is gone for good, with all that is needed to restore it: something failed after it was committed.
pub(super) fn is_complete(tree: &Tree, directory: &Path) -> bool {
    !lives(tree.pid) && Manifest::read(&directory.join(&tree.place)).is_ok()
}

/// What became of everybody after a failure.
pub(super) fn verdict(party: &Party, directory: &Path, known: &Known, not_back: Option<&Error>) -> String {
    let (complete, others): (Vec<_>, Vec<_>) =
        party.trees.iter().partition(|tree| is_complete(tree, directory));
    let pids: Vec<i32> = others.iter().flat_map(|tree| tree.pids()).collect();
    let ended: Vec<_> = known.ended().into_iter().filter(|(pid, _)| pids.contains(pid)).collect();
    let is_member =
        |pid: &i32| others.iter().any(|tree| tree.members.iter().any(|member| member.pid == *pid));
    let rest: Vec<i32> =
        pids.into_iter().filter(|pid| is_member(pid) && !ended.iter().any(|(dead, _)| dead == pid)).collect();
    let places: Vec<_> =
        complete.iter().map(|tree| directory.join(&tree.place).display().to_string()).collect();
    let mut texts = Vec::new();
    match (&rest[..], not_back) {
        ([], _) => {}
        ([one], None) => texts.push(format!("Process {one} was not frozen and runs on unharmed")),
        (rest, None) => texts.push(format!("Processes {} were not frozen and run on unharmed", join(rest))),
        ([one], Some(error)) => {
            texts.push(format!("Process {one} was not frozen, and did not come back by itself yet: {error}"));
        }
        (rest, Some(error)) => texts.push(format!(
            "Processes {} were not frozen, and did not come back by themselves yet: {error}",
            join(rest)
        )),
    }
    match &ended[..] {
        [] => {}
        [(pid, how)] => texts.push(format!("Process {pid} was not frozen: it has ended ({how})")),
        ended => texts.push(format!("Processes were not frozen because they have ended: {}", list(ended))),
    }
    if !places.is_empty() {
        texts.push(format!("What is gone and can be restored is in {}", places.join(", ")));
    }
    texts.join(". ")
}

fn join(pids: &[i32]) -> String {
    let texts: Vec<_> = pids.iter().map(i32::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freeze::party::Member;

    use std::path::PathBuf;
    use std::process::Command;

    fn party(pids: &[i32]) -> Party {
        let tree = |pid: &i32| Tree {
            pid: *pid,
            command: Vec::new(),
            executable: None,
            members: vec![Member { pid: *pid, executable: None, place: PathBuf::from(pid.to_string()) }],
            place: pid.to_string().into(),
        };
        Party::made_of(pids.iter().map(tree).collect())
    }

    #[test]
    fn verdict_names_who_runs_and_who_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pids = [std::process::id().cast_signed(), child.id().cast_signed()];
        let (both, one) = (party(&pids), party(&pids[1..]));
        let known = Known::of(pids.into_iter());
        let say = |party: &Party| verdict(party, directory.path(), &known, None);
        let both_run = format!("Processes {}, {} were not frozen and run on unharmed", pids[0], pids[1]);
        assert_eq!(say(&both), both_run);
        assert_eq!(say(&one), format!("Process {} was not frozen and runs on unharmed", pids[1]));
        child.kill().unwrap();
        assert_eq!(known.end_of_silent(pids[1]), Some(Ended::Killed(9)));
        let dead = format!("Process {} was not frozen: it has ended (killed by signal 9)", pids[1]);
        assert_eq!(say(&one), dead);
        let mixed = format!("Process {} was not frozen and runs on unharmed. {dead}", pids[0]);
        assert_eq!(say(&both), mixed);
        child.wait().unwrap();
        assert_eq!(known.ended(), [(pids[1], Ended::Unknown)]);
    }
}
