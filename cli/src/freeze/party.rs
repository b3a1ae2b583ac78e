// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process trees of a checkpoint: one or several, the processes in them that have a runtime, and where the images of
//! each go.
//!
//! INVARIANT: no process is touched here; a process is in one tree.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use stasis::checkpoint::contact::has_agent;
use stasis::checkpoint::{CallError, Request, call};
use stasis::criu::{
    Executable, SEALED_LAYOUT, SESSION_DIRECTORY, SessionIndex, make_private, prepare, prepare_empty,
};
use stasis::share::{Member as SessionMember, SessionOrder};

/// TIMEOUT: how long an agent may take to say its state.
const STATUS: Duration = Duration::from_secs(5);

/// A process with a runtime.
#[derive(Debug)]
pub(super) struct Member {
    pub pid: i32,
    pub executable: Option<Executable>,
    /// The directory of its image, relative to the party's; empty for that itself.
    pub place: PathBuf,
}

/// A tree that CRIU dumps at once.
#[derive(Debug)]
pub(super) struct Tree {
    /// Its root.
    pub pid: i32,
    pub command: Vec<String>,
    pub executable: Option<Executable>,
    /// Never empty.
    pub members: Vec<Member>,
    /// Its checkpoint's directory, relative to the party's.
    pub place: PathBuf,
}

/// All that is checkpointed together.
#[derive(Debug)]
pub(super) struct Party {
    /// Never empty.
    pub trees: Vec<Tree>,
    /// Names the session.
    id: String,
}

impl Tree {
    fn find(pid: i32) -> Result<Self> {
        let command = command_line(pid)?;
        let mut members = Vec::new();
        for member in stasis_criu_foreign::members(pid).into_iter().filter(|member| has_agent(*member)) {
            match call(member, &Request::Status, STATUS) {
                // Before the process is stopped: it takes milliseconds.
                Ok(_) => members.push(Member {
                    pid: member,
                    executable: Executable::of(member).ok(),
                    place: PathBuf::new(),
                }),
                // It has ended meanwhile.
                Err(CallError::NoAgent { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if members.is_empty() {
            call(pid, &Request::Status, STATUS)?;
            bail!("Process {pid} has just opened a Stasis runtime: try again");
        }
        Ok(Self { pid, command, executable: Executable::of(pid).ok(), members, place: PathBuf::new() })
    }

    /// Its root and the processes with a runtime, each once.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        let others = self.members.iter().map(|member| member.pid).filter(|pid| *pid != self.pid);
        std::iter::once(self.pid).chain(others)
    }

    /// Whether its root alone has a runtime, whose image then lies beside CRIU's.
    pub fn is_plain(&self) -> bool {
        matches!(&self.members[..], [only] if only.pid == self.pid)
    }
}

impl Party {
    /// Finds the processes with a runtime in the trees of these roots.
    pub fn find(roots: &[i32]) -> Result<Self> {
        let mut trees = roots.iter().map(|root| Tree::find(*root)).collect::<Result<Vec<_>>>()?;
        let mut known = HashMap::new();
        for tree in &trees {
            for pid in std::iter::once(tree.pid).chain(tree.members.iter().map(|member| member.pid)) {
                match known.insert(pid, tree.pid) {
                    Some(other) if other != tree.pid || tree_is_named_twice(roots, pid) => {
                        bail!(
                            "Process {pid} is in the tree of process {other} already: name the tree's root once"
                        )
                    }
                    _ => {}
                }
            }
        }
        let several = trees.len() > 1;
        for tree in &mut trees {
            if several {
                tree.place = PathBuf::from(tree.pid.to_string());
            }
            let is_plain = tree.is_plain();
            for member in &mut tree.members {
                let own = format!("stasis-{}", member.pid);
                member.place = if is_plain { tree.place.clone() } else { tree.place.join(own) };
            }
        }
        let id =
            fs::read_to_string("/proc/sys/kernel/random/uuid").context("Cannot draw a session's name")?;
        Ok(Self { trees, id: id.trim().to_owned() })
    }

    /// Trees that a test made up.
    #[cfg(test)]
    pub fn made_of(trees: Vec<Tree>) -> Self {
        Self { trees, id: "x".into() }
    }

    /// The processes with a runtime.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.trees.iter().flat_map(|tree| &tree.members)
    }

    /// The roots of the trees.
    pub fn roots(&self) -> Vec<i32> {
        self.trees.iter().map(|tree| tree.pid).collect()
    }

    /// Whether processes have to agree.
    pub fn is_session(&self) -> bool {
        self.members().count() > 1
    }

    /// Makes the directories, all private; returns the absolute path of the outermost.
    pub fn prepare(&self, directory: &Path) -> Result<PathBuf> {
        let directory = match &self.trees[..] {
            [_] => prepare(directory)?,
            trees => {
                let directory = prepare_empty(directory)?;
                for tree in trees {
                    prepare(&directory.join(&tree.place))?;
                }
                let index = SessionIndex { layout: SEALED_LAYOUT, id: self.id.clone(), trees: self.roots() };
                index.write(&directory)?;
                directory
            }
        };
        for tree in self.trees.iter().filter(|tree| !tree.is_plain()) {
            tree.members.iter().try_for_each(|member| make_private(&directory.join(&member.place)))?;
        }
        if self.is_session() {
            make_private(&directory.join(SESSION_DIRECTORY))?;
        }
        Ok(directory)
    }

    /// What a member is told of the others, if there are any.
    pub fn session(&self, member: &Member, directory: &Path, patience: Duration) -> Option<SessionOrder> {
        let up = |place: &Path| place.components().map(|_| "..").collect::<PathBuf>();
        let seen = |other: &Member| SessionMember {
            name: other.pid.to_string(),
            image: Path::new("..").join(&other.place),
        };
        self.is_session().then(|| SessionOrder {
            id: self.id.clone(),
            directory: directory.join(SESSION_DIRECTORY),
            from_image: up(&member.place).join(SESSION_DIRECTORY),
            name: member.pid.to_string(),
            members: self.members().map(seen).collect(),
            patience_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// Whether a root was given more than once: then its tree looks like its own double.
fn tree_is_named_twice(roots: &[i32], pid: i32) -> bool {
    roots.iter().filter(|root| **root == pid).count() > 1
}

/// The command line of a process.
///
/// # Errors
/// When there is no such process.
pub fn command_line(pid: i32) -> Result<Vec<String>> {
    let raw = fs::read(format!("/proc/{pid}/cmdline"))
        .with_context(|| format!("There is no process {pid} to checkpoint"))?;
    Ok(raw
        .split(|b| *b == 0)
        .filter(|a| !a.is_empty())
        .map(|a| String::from_utf8_lossy(a).into_owned())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(pid: i32, members: &[i32], place: &str) -> Tree {
        let member = |member: &i32| {
            let own =
                if *member == pid && members.len() == 1 { String::new() } else { format!("stasis-{member}") };
            Member { pid: *member, executable: None, place: Path::new(place).join(own) }
        };
        let members = members.iter().map(member).collect();
        Tree { pid, command: Vec::new(), executable: None, members, place: place.into() }
    }

    /// Every member finds the meeting from its image, and every image from the meeting.
    #[test]
    fn places_of_a_session_lead_to_each_other() {
        let lone = Party { trees: vec![tree(7, &[7, 8, 9], "")], id: "x".into() };
        let several = Party { trees: vec![tree(7, &[7], "7"), tree(17, &[18, 19], "17")], id: "x".into() };
        for party in [lone, several] {
            let temporary = tempfile::tempdir().unwrap();
            let directory = party.prepare(&temporary.path().join("c")).unwrap();
            let places: Vec<_> = party.members().map(|member| directory.join(&member.place)).collect();
            for (member, place) in party.members().zip(&places) {
                let order = party.session(member, &directory, Duration::from_millis(5)).unwrap();
                assert_eq!((order.name.clone(), order.patience_ms), (member.pid.to_string(), 5));
                let meeting = place.join(&order.from_image).canonicalize().unwrap();
                assert_eq!(meeting, order.directory);
                let seen: Vec<_> =
                    order.members.iter().map(|m| meeting.join(&m.image).canonicalize().unwrap()).collect();
                assert_eq!(seen, places);
            }
        }
    }

    #[test]
    fn root_alone_is_in_no_session_and_lies_where_it_always_did() {
        let party = Party { trees: vec![tree(7, &[7], "")], id: "x".into() };
        let temporary = tempfile::tempdir().unwrap();
        let directory = party.prepare(&temporary.path().join("c")).unwrap();
        let names: Vec<_> = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["criu"]);
        assert_eq!(party.session(&party.trees[0].members[0], &directory, Duration::ZERO), None);
    }
}
