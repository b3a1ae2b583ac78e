// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the leader of a meeting knows, without sockets: who has come, and which memory is there, being made, or waited
//! for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::wire::{Answer, Ask};
use super::{RendezvousError, io_error};
use crate::context::registry::state::DmabufId;
use crate::linux::process::Process;
use crate::linux::regular;
use crate::linux::regular::Links;

/// Longest record that is read, bytes.
const MAX_RECORD: u64 = 16 << 20;

/// A member that has all it wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gone {
    pub name: String,
    #[serde(flatten)]
    pub process: Process,
}

/// Who has gone on, as a leader left word.
///
/// # Errors
/// [`RendezvousError::Io`].
pub(super) fn read_record(path: &Path) -> Result<Vec<Gone>, RendezvousError> {
    match regular::read(path, MAX_RECORD, Links::Refuse) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(io_error("read", path)(std::io::Error::other(error))),
        Ok(text) => serde_json::from_slice(&text).map_err(|error| io_error("read", path)(error.into())),
    }
}

/// A connection.
pub(super) type Seat = u64;

/// Memory of the session.
#[derive(Debug)]
enum Memory<F> {
    /// A member is making it.
    Making(Seat),
    Ready(F),
}

/// An answer to one member, with the memory beside it.
#[derive(Debug)]
pub(super) struct Reply<F> {
    pub seat: Seat,
    pub answer: Answer,
    pub file: Option<F>,
}

/// The state of a meeting. `F` is a file: a DMABuf.
#[derive(Debug)]
pub(super) struct Hall<F> {
    expected: BTreeSet<String>,
    seats: BTreeMap<Seat, Gone>,
    memory: BTreeMap<DmabufId, Memory<F>>,
    waiting: Vec<(Seat, DmabufId)>,
    gone: Vec<Gone>,
}

impl<F: Clone> Hall<F> {
    pub fn new(members: &[String]) -> Self {
        Self {
            expected: members.iter().cloned().collect(),
            seats: BTreeMap::new(),
            memory: BTreeMap::new(),
            waiting: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// Who has gone on.
    pub fn gone(&self) -> &[Gone] {
        &self.gone
    }

    /// Whether nobody is expected any more.
    pub fn is_over(&self) -> bool {
        self.gone.len() == self.expected.len()
    }

    /// What a member asks, and a file it has sent; the answers to it and to others.
    pub fn hear(&mut self, seat: Seat, ask: Ask, file: Option<F>) -> Vec<Reply<F>> {
        let reply = |answer| vec![Reply { seat, answer, file: None }];
        let refused = |reason: &str| reply(Answer::Refused(reason.to_owned()));
        if let Ask::Join { name, process } = ask {
            let known = |gone: &Gone| gone.name == name;
            if !self.expected.contains(&name) {
                return refused(&format!("{name} is no member"));
            }
            if self.seats.values().any(known) || self.gone.iter().any(known) {
                return refused(&format!("{name} has come already"));
            }
            self.seats.insert(seat, Gone { name, process });
            return reply(Answer::Granted);
        }
        if !self.seats.contains_key(&seat) {
            return refused("only members are served");
        }
        match ask {
            Ask::Join { .. } => refused("it has come already"),
            Ask::Claim(wanted) => {
                reply(Answer::Make(wanted.into_iter().map(|id| self.claim(seat, id)).collect()))
            }
            Ask::Put(dmabuf) => match (self.memory.get(&dmabuf), file) {
                (Some(Memory::Making(maker)), Some(file)) if *maker == seat => {
                    self.memory.insert(dmabuf, Memory::Ready(file));
                    let mut replies = reply(Answer::Granted);
                    replies.extend(self.serve(dmabuf));
                    replies
                }
                _ => refused("it is not to make that, or has sent no DMABuf"),
            },
            Ask::Fetch(dmabuf) => {
                self.waiting.push((seat, dmabuf));
                self.serve(dmabuf)
            }
            Ask::Done => {
                if let Some(member) = self.seats.remove(&seat) {
                    self.gone.push(member);
                }
                let mut replies = reply(Answer::Granted);
                // It is gone; what it did not make somebody else has to.
                replies.extend(self.release(seat));
                replies
            }
        }
    }

    /// A connection has ended.
    pub fn left(&mut self, seat: Seat) -> Vec<Reply<F>> {
        self.seats.remove(&seat);
        self.release(seat)
    }

    fn claim(&mut self, seat: Seat, dmabuf: DmabufId) -> bool {
        match self.memory.get(&dmabuf) {
            Some(Memory::Making(maker)) => *maker == seat,
            Some(Memory::Ready(_)) => false,
            None => {
                self.memory.insert(dmabuf, Memory::Making(seat));
                true
            }
        }
    }

    /// Answers those who wait for some memory, if it is there; else the first of them is to make it if nobody does.
    fn serve(&mut self, dmabuf: DmabufId) -> Vec<Reply<F>> {
        let file = match self.memory.get(&dmabuf) {
            Some(Memory::Making(_)) => return Vec::new(),
            Some(Memory::Ready(file)) => Some(file.clone()),
            None => None,
        };
        let (now, later): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|(_, id)| *id == dmabuf);
        self.waiting = later;
        let mut replies = Vec::new();
        for (seat, _) in now {
            match &file {
                Some(file) => {
                    replies.push(Reply { seat, answer: Answer::Found, file: Some(file.clone()) });
                }
                None if self.claim(seat, dmabuf) => {
                    replies.push(Reply { seat, answer: Answer::Make(vec![true]), file: None });
                }
                None => self.waiting.push((seat, dmabuf)),
            }
        }
        replies
    }

    /// Forgets what a member wanted and was to make.
    fn release(&mut self, seat: Seat) -> Vec<Reply<F>> {
        self.waiting.retain(|(waiting, _)| *waiting != seat);
        let unmade = |memory: &Memory<F>| matches!(memory, Memory::Making(maker) if *maker == seat);
        let unmade: Vec<_> =
            self.memory.iter().filter(|(_, memory)| unmade(memory)).map(|(id, _)| *id).collect();
        for dmabuf in &unmade {
            self.memory.remove(dmabuf);
        }
        unmade.into_iter().flat_map(|dmabuf| self.serve(dmabuf)).collect()
    }
}
