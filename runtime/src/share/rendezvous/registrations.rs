// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the coordinator of a rendezvous knows, without sockets: which participants have joined, and which memory is
//! there, being made, or waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{RendezvousError, io_error};
use super::wire::{Answer, Ask};
use crate::context::registry::state::DmabufId;
use crate::linux::process::Process;
use crate::linux::regular;
use crate::linux::regular::Links;

/// Longest record that is read, bytes.
const MAX_RECORD: u64 = 16 << 20;

/// A member that has all it wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finished {
    pub name: String,
    #[serde(flatten)]
    pub process: Process,
}

/// The participants that have finished, as a coordinator recorded them.
///
/// # Errors
/// [`RendezvousError::Io`].
pub(super) fn read_record(path: &Path) -> Result<Vec<Finished>, RendezvousError> {
    match regular::read(path, MAX_RECORD, Links::Refuse) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(io_error("read", path)(std::io::Error::other(error))),
        Ok(text) => serde_json::from_slice(&text).map_err(|error| io_error("read", path)(error.into())),
    }
}

/// A connection.
pub(super) type ParticipantId = u64;

/// Memory of the session.
#[derive(Debug)]
enum Memory<F> {
    /// A member is making it.
    Making(ParticipantId),
    Ready(F),
}

/// An answer to one member, with the memory beside it.
#[derive(Debug)]
pub(super) struct Reply<F> {
    pub participant: ParticipantId,
    pub answer: Answer,
    pub file: Option<F>,
}

/// The state of a rendezvous. `F` is a file: a DMABuf.
#[derive(Debug)]
pub(super) struct Registrations<F> {
    expected: BTreeSet<String>,
    participants: BTreeMap<ParticipantId, Finished>,
    memory: BTreeMap<DmabufId, Memory<F>>,
    waiting: Vec<(ParticipantId, DmabufId)>,
    finished: Vec<Finished>,
}

impl<F: Clone> Registrations<F> {
    pub fn new(members: &[String]) -> Self {
        Self {
            expected: members.iter().cloned().collect(),
            participants: BTreeMap::new(),
            memory: BTreeMap::new(),
            waiting: Vec::new(),
            finished: Vec::new(),
        }
    }

    /// The participants that have finished.
    pub fn finished(&self) -> &[Finished] {
        &self.finished
    }

    /// Whether nobody is expected any more.
    pub fn is_over(&self) -> bool {
        self.finished.len() == self.expected.len()
    }

    /// What a member asks, and a file it has sent; the answers to it and to others.
    pub fn handle(&mut self, participant: ParticipantId, ask: Ask, file: Option<F>) -> Vec<Reply<F>> {
        let reply = |answer| vec![Reply { participant, answer, file: None }];
        let refused = |reason: &str| reply(Answer::Refused(reason.to_owned()));
        if let Ask::Join { name, process } = ask {
            let known = |finished: &Finished| finished.name == name;
            if !self.expected.contains(&name) {
                return refused(&format!("{name} is no member"));
            }
            if self.participants.values().any(known) || self.finished.iter().any(known) {
                return refused(&format!("{name} has come already"));
            }
            self.participants.insert(participant, Finished { name, process });
            return reply(Answer::Granted);
        }
        if !self.participants.contains_key(&participant) {
            return refused("only members are served");
        }
        match ask {
            Ask::Join { .. } => refused("it has come already"),
            Ask::Claim(wanted) => {
                reply(Answer::Make(wanted.into_iter().map(|id| self.claim(participant, id)).collect()))
            }
            Ask::Put(dmabuf) => match (self.memory.get(&dmabuf), file) {
                (Some(Memory::Making(maker)), Some(file)) if *maker == participant => {
                    self.memory.insert(dmabuf, Memory::Ready(file));
                    let mut replies = reply(Answer::Granted);
                    replies.extend(self.serve(dmabuf));
                    replies
                }
                _ => refused("it is not to make that, or has sent no DMABuf"),
            },
            Ask::Fetch(dmabuf) => {
                self.waiting.push((participant, dmabuf));
                self.serve(dmabuf)
            }
            Ask::Done => {
                if let Some(member) = self.participants.remove(&participant) {
                    self.finished.push(member);
                }
                let mut replies = reply(Answer::Granted);
                // This participant has finished; another one has to make what it did not make.
                replies.extend(self.release(participant));
                replies
            }
        }
    }

    /// A connection has ended.
    pub fn disconnected(&mut self, participant: ParticipantId) -> Vec<Reply<F>> {
        self.participants.remove(&participant);
        self.release(participant)
    }

    fn claim(&mut self, participant: ParticipantId, dmabuf: DmabufId) -> bool {
        match self.memory.get(&dmabuf) {
            Some(Memory::Making(maker)) => *maker == participant,
            Some(Memory::Ready(_)) => false,
            None => {
                self.memory.insert(dmabuf, Memory::Making(participant));
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
        for (participant, _) in now {
            match &file {
                Some(file) => {
                    replies.push(Reply { participant, answer: Answer::Found, file: Some(file.clone()) });
                }
                None if self.claim(participant, dmabuf) => {
                    replies.push(Reply { participant, answer: Answer::Make(vec![true]), file: None });
                }
                None => self.waiting.push((participant, dmabuf)),
            }
        }
        replies
    }

    /// Forgets what a member wanted and was to make.
    fn release(&mut self, participant: ParticipantId) -> Vec<Reply<F>> {
        self.waiting.retain(|(waiting, _)| *waiting != participant);
        let unmade = |memory: &Memory<F>| matches!(memory, Memory::Making(maker) if *maker == participant);
        let unmade: Vec<_> =
            self.memory.iter().filter(|(_, memory)| unmade(memory)).map(|(id, _)| *id).collect();
        for dmabuf in &unmade {
            self.memory.remove(dmabuf);
        }
        unmade.into_iter().flat_map(|dmabuf| self.serve(dmabuf)).collect()
    }
}
