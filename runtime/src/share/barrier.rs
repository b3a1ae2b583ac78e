// SPDX-License-Identifier: MIT OR Apache-2.0
//! The barrier of a session's checkpoint: either all its processes release their shared memory or none does.
//!
//! They meet in a directory. Each, its queues drained, writes what it holds (`NAME.table`) and waits for the others:
//! from then on nobody changes shared memory. Each writes its image, says so (`NAME.ready`) and waits again. The first
//! to see all ready, or to give up, makes the `decision`, a file that can be made only once.
//!
//! INVARIANT: memory is given up only after a decision to commit, and a decision is never changed: whoever is late finds
//! the one that was made. A member that has died is noticed by the lock on its table.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stasis_protocol::{Limit, Stopped};
use thiserror::Error;

use super::table::Table;
use crate::linux::regular;
use crate::linux::regular::Links;

/// How often a member looks for the others.
const LOOK: Duration = Duration::from_millis(1);
/// How often it looks whether they are alive.
const PULSE: Duration = Duration::from_millis(100);
const DECISION: &str = "decision";

/// The processes whose memory goes through a checkpoint together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOrder {
    /// Names the session, in the images of all of them.
    pub id: String,
    /// Absolute path of the directory where they meet, empty at first.
    pub directory: PathBuf,
    /// The same directory as seen from that of this process's image, which may be moved together.
    pub from_image: PathBuf,
    /// This process's name in it.
    pub name: String,
    /// All of them.
    pub members: Vec<Member>,
    /// How long the others may take to stop their queues, to write their images beyond this one's, or in a restore to
    /// make memory that this one needs, milliseconds.
    pub patience_ms: u64,
}

/// A process of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name: a plain file name.
    pub name: String,
    /// The directory of its image, as seen from the session's.
    pub image: PathBuf,
}

/// A session did not come about.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The directory cannot be used.
    #[error("Cannot {act} {} in the session's directory", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A member's file is not what it should be.
    #[error("{} is not what a member of this session writes", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        #[source]
        source: serde_json::Error,
    },
    /// A name that would lead out of the directory, or twice the same.
    #[error(
        "{name:?} is no name for a member of a session: plain file names, each once, and this process's among them"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Members did not come in time.
    #[error(
        "{} of the session did not {act} within {} ms; all members go on as before", missing.join(", "), waited.as_millis()
    )]
    Late {
        /// What they should have done.
        act: &'static str,
        /// Who.
        missing: Vec<String>,
        /// How long was waited.
        waited: Duration,
    },
    /// A member has died.
    #[error("{name} of the session has ended; the others go on as before")]
    Died {
        /// Who.
        name: String,
    },
    /// A member gave up.
    #[error("The session was given up: {reason}")]
    Aborted {
        /// By whom and why.
        reason: String,
    },
    /// The verb was stopped.
    #[error("The session was given up: {0}")]
    Stopped(#[source] Stopped),
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Decision {
    Commit,
    #[serde(rename = "give-up")]
    Abort(String),
}

/// A process among the others of its session.
#[derive(Debug)]
pub(crate) struct Barrier<'a> {
    order: &'a SessionOrder,
    /// Locked while this process takes part.
    _pulse: File,
}

fn io_error(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SessionError {
    let path = path.to_owned();
    move |source| SessionError::Io { act, path, source }
}

/// Writes a file under a name that appears with its contents complete.
pub(super) fn publish(path: &Path, contents: &[u8]) -> Result<File, SessionError> {
    let pending = path.with_extension("pending");
    let mut options = OpenOptions::new();
    let made = options.write(true).create(true).truncate(true).mode(0o600).open(&pending);
    let mut file = made.map_err(io_error("create", &pending))?;
    file.try_lock().map_err(|error| io_error("lock", &pending)(error.into()))?;
    file.write_all(contents).map_err(io_error("write", &pending))?;
    fs::rename(&pending, path).map_err(io_error("name", path))?;
    Ok(file)
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // Plain structs with string keys always have a JSON form.
    serde_json::to_vec(value).unwrap_or_default()
}

impl SessionOrder {
    /// Whether the names can be file names.
    fn check(&self) -> Result<(), SessionError> {
        let bad = |name: &str| SessionError::Name { name: name.to_owned() };
        let mut names: Vec<&str> = self.members.iter().map(|member| member.name.as_str()).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        if let Some(pair) = twice {
            return Err(bad(pair[0]));
        }
        let is_plain =
            |name: &str| Path::new(name).file_name().is_some_and(|file| file == name) && !name.contains('.');
        if let Some(name) = names.iter().find(|name| !is_plain(name)) {
            return Err(bad(name));
        }
        if names.contains(&self.name.as_str()) { Ok(()) } else { Err(bad(&self.name)) }
    }

    fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.directory.join(format!("{name}.{kind}"))
    }

    /// Has the session given up, unless it was decided already: for a member that failed before it could take part.
    pub(crate) fn abort(&self, reason: &str) {
        if let Err(error) = self.decide(&Decision::Abort(format!("{}: {reason}", self.name))) {
            tracing::warn!(target: "checkpoint", %error, "the other members are not told");
        }
    }

    fn decided(&self) -> Result<Option<Decision>, SessionError> {
        let path = self.directory.join(DECISION);
        match regular::read(&path, MAX_TABLE, Links::Refuse) {
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(io_error("read", &path)(io::Error::other(error))),
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|source| SessionError::Parse { path, source })
            }
        }
    }

    /// Makes a decision, or finds the one that was made.
    fn decide(&self, decision: &Decision) -> Result<Decision, SessionError> {
        let (path, own) = (self.directory.join(DECISION), self.file(&self.name, DECISION));
        publish(&own, &json(decision))?;
        match fs::hard_link(&own, &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(io_error("name", &path)(error)),
            _ => Ok(self.decided()?.unwrap_or_else(|| decision.clone())),
        }
    }

    /// Waits until every member has its file of this kind.
    fn await_all(&self, act: &'static str, kind: &str, limit: &Limit) -> Result<(), SessionError> {
        let started = Instant::now();
        let mut pulse = started;
        let has = |name: &str| self.file(name, kind).exists();
        let mut missing: Vec<&str> = self.members.iter().map(|member| member.name.as_str()).collect();
        loop {
            match self.decided()? {
                Some(Decision::Abort(reason)) => return Err(SessionError::Aborted { reason }),
                // Somebody saw all of them.
                Some(Decision::Commit) => return Ok(()),
                None => {}
            }
            missing.retain(|name| !has(name));
            if missing.is_empty() {
                return Ok(());
            }
            limit.check().map_err(SessionError::Stopped)?;
            let waited = started.elapsed();
            if waited >= Duration::from_millis(self.patience_ms) {
                let missing = missing.into_iter().map(str::to_owned).collect();
                return Err(SessionError::Late { act, missing, waited });
            }
            if pulse.elapsed() >= PULSE {
                pulse = Instant::now();
                if let Some(name) = missing.iter().find(|name| self.has_died(name)) {
                    return Err(SessionError::Died { name: (*name).to_owned() });
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether a member that has come is not there any more.
    fn has_died(&self, name: &str) -> bool {
        let Ok(table) = regular::open(&self.file(name, "table"), Links::Refuse) else { return false };
        // Ready ones let go of it.
        table.try_lock_shared().is_ok() && !self.file(name, "ready").exists()
    }
}

impl<'a> Barrier<'a> {
    /// Tells the others what this process holds, and learns what they do.
    ///
    /// # Errors
    /// [`SessionError`]; the session is given up then, for all.
    pub fn join(
        order: &'a SessionOrder,
        table: &Table,
        limit: &Limit,
    ) -> Result<(Self, Vec<Table>), SessionError> {
        order.check()?;
        let met = (|| {
            let pulse = publish(&order.file(&order.name, "table"), &json(table))?;
            order.await_all("stop its queues", "table", limit)?;
            let read = |member: &Member| {
                let path = order.file(&member.name, "table");
                let text = regular::read(&path, MAX_TABLE, Links::Refuse);
                let text = text.map_err(|error| io_error("read", &path)(io::Error::other(error)))?;
                serde_json::from_slice(&text).map_err(|source| SessionError::Parse { path, source })
            };
            let tables = order.members.iter().map(read).collect::<Result<_, _>>()?;
            Ok((Self { order, _pulse: pulse }, tables))
        })();
        met.inspect_err(|error: &SessionError| order.abort(&error.to_string()))
    }

    /// Says that this process is ready to let go, and waits for the decision. Nothing may fail between its `Ok` and
    /// letting go.
    ///
    /// # Errors
    /// [`SessionError`]: the session is given up, and nobody lets go.
    pub fn commit(self, limit: &Limit) -> Result<(), SessionError> {
        let order = self.order;
        let ready = publish(&order.file(&order.name, "ready"), b"{}")
            .and_then(|_| order.await_all("write its image", "ready", limit));
        let decision = match &ready {
            Ok(()) => Decision::Commit,
            Err(error) => Decision::Abort(format!("{}: {error}", order.name)),
        };
        match (order.decide(&decision)?, ready) {
            (Decision::Commit, _) => Ok(()),
            (Decision::Abort(_), Err(error)) => Err(error),
            (Decision::Abort(reason), Ok(())) => Err(SessionError::Aborted { reason }),
        }
    }

    /// Has the session given up because this process cannot take part any more.
    pub fn abort(self, reason: &str) {
        self.order.abort(reason);
    }
}

/// Longest table read, bytes: some hundred thousand buffers.
const MAX_TABLE: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn orders(directory: &Path, names: &[&str]) -> Vec<SessionOrder> {
        let members = names.iter().map(|name| Member { name: (*name).to_owned(), image: PathBuf::new() });
        let members: Vec<_> = members.collect();
        let order = |name: &&str| SessionOrder {
            id: "1".to_owned(),
            directory: directory.to_owned(),
            from_image: PathBuf::from("."),
            name: (*name).to_owned(),
            members: members.clone(),
            patience_ms: 60_000,
        };
        names.iter().map(order).collect()
    }

    fn table(name: &str) -> Table {
        Table { name: name.to_owned(), pid: 1, holdings: Vec::new() }
    }

    #[test]
    fn members_learn_of_each_other_and_all_commit() {
        let directory = tempfile::tempdir().unwrap();
        let orders = orders(directory.path(), &["a", "b", "c"]);
        std::thread::scope(|scope| {
            let part = |order: &SessionOrder| {
                let (barrier, tables) = Barrier::join(order, &table(&order.name), &Limit::none()).unwrap();
                assert_eq!(tables, ["a", "b", "c"].map(table));
                barrier.commit(&Limit::none()).unwrap();
            };
            orders.iter().for_each(|order| drop(scope.spawn(move || part(order))));
        });
    }

    #[test]
    fn one_that_leaves_or_fails_before_makes_all_give_up() {
        for early in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let orders = orders(directory.path(), &["a", "b"]);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let part = Barrier::join(&orders[0], &table("a"), &Limit::none())
                        .and_then(|(barrier, _)| barrier.commit(&Limit::none()));
                    let error = part.unwrap_err().to_string();
                    assert!(error.contains("b: it has no disk left"), "{error}");
                });
                match early {
                    true => orders[1].abort("it has no disk left"),
                    false => {
                        let (barrier, _) = Barrier::join(&orders[1], &table("b"), &Limit::none()).unwrap();
                        barrier.abort("it has no disk left");
                    }
                }
            });
        }
    }

    #[test]
    fn missing_and_dead_members_are_named_and_cancelling_ends_the_wait() {
        let directory = tempfile::tempdir().unwrap();
        let mut orders = orders(directory.path(), &["a", "b"]);
        orders[0].patience_ms = 20;
        let error = Barrier::join(&orders[0], &table("a"), &Limit::none()).unwrap_err();
        assert!(matches!(&error, SessionError::Late { missing, .. } if missing == &["b"]), "{error}");
        let error = Barrier::join(&orders[1], &table("b"), &Limit::none()).unwrap_err();
        assert!(matches!(error, SessionError::Aborted { .. }), "{error}");

        let directory = tempfile::tempdir().unwrap();
        let orders = self::orders(directory.path(), &["a", "b"]);
        // One that came and died: its table is there and not locked.
        fs::write(orders[1].file("b", "table"), json(&table("b"))).unwrap();
        let (barrier, _) = Barrier::join(&orders[0], &table("a"), &Limit::none()).unwrap();
        let error = barrier.commit(&Limit::none()).unwrap_err();
        assert!(matches!(&error, SessionError::Died { name } if name == "b"), "{error}");

        let directory = tempfile::tempdir().unwrap();
        let orders = self::orders(directory.path(), &["a", "b"]);
        let limit = Limit::cancellable(Duration::MAX, Arc::new(AtomicBool::new(true)));
        let error = Barrier::join(&orders[0], &table("a"), &limit).unwrap_err();
        assert!(matches!(error, SessionError::Stopped(_)), "{error}");
    }

    #[test]
    fn decision_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let orders = orders(directory.path(), &["a", "b"]);
        assert_eq!(orders[0].decide(&Decision::Commit).unwrap(), Decision::Commit);
        assert_eq!(orders[1].decide(&Decision::Abort("late".to_owned())).unwrap(), Decision::Commit);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        for names in [&["a", "../b"][..], &["a", "a"], &["a", ""], &["a", "b.table"]] {
            let orders = orders(directory.path(), names);
            assert!(matches!(orders[0].check(), Err(SessionError::Name { .. })), "{names:?}");
        }
        let mut order = orders(directory.path(), &["a", "b"]).remove(0);
        order.name = "c".to_owned();
        assert!(matches!(order.check(), Err(SessionError::Name { .. })));
    }
}
