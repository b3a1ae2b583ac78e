// SPDX-License-Identifier: MIT OR Apache-2.0
//! A difference that stands in the way, in words: the property, both values, the rule, and the switch.

use std::fmt;

use super::checks::Switch;
use super::identity::LinkKind;
use super::peers::PeerBuffers;
use super::rules::{Relation, Rule};

/// A value that was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, as sysfs shows it.
    Number(u64),
    /// A link, or none.
    Link(Option<LinkKind>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Link(Some(kind)) => write!(f, "{kind}"),
            Self::Link(None) => f.write_str("none"),
        }
    }
}

/// What a comparison was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The machine, or the process as a whole.
    Machine,
    /// An agent, in the place of one that is here.
    Agent {
        /// Index of the agent.
        index: usize,
        /// Its uuid.
        uuid: String,
        /// The uuid of the GPU here that fits best.
        place: String,
        /// The other agent, where the property is one of both.
        with: Option<usize>,
    },
    /// Buffers in one agent's memory that another maps.
    Buffers {
        /// Which ones.
        buffers: PeerBuffers,
        /// The agent in whose memory they are.
        owner: usize,
        /// The agent that maps them.
        peer: usize,
    },
}

/// One reason not to admit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What was compared.
    pub subject: Subject,
    /// The property.
    pub property: &'static str,
    /// What the process had.
    pub had: Value,
    /// What is here.
    pub here: Value,
    /// How it was compared.
    pub relation: Relation,
    /// What turns the comparison off.
    pub switch: Option<Switch>,
    /// Whether [`super::Admission::allow_staged`] turns it off.
    pub staged: bool,
}

impl Difference {
    pub(super) fn new(rule: Rule, subject: Subject, had: Value, here: Value) -> Self {
        let Rule { property, relation, switch, staged } = rule;
        Self { subject, property, had, here, relation, switch, staged }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { property, had, here, .. } = self;
        match &self.subject {
            Subject::Machine => write!(f, "the process had {property} {had}, here it is {here}")?,
            Subject::Agent { index, uuid, place, with } => {
                write!(f, "agent {index} ({uuid}) had {property} {had}")?;
                match (with, self.relation) {
                    (None, _) => {}
                    (Some(other), Relation::Together) => write!(f, " with agent {other}")?,
                    (Some(other), _) => write!(f, " to agent {other}")?,
                }
                match place == uuid {
                    true => write!(f, ", here it has {here}")?,
                    false => write!(f, ", {place} here has {here}")?,
                }
            }
            Subject::Buffers { buffers, owner, peer } => {
                let are = if buffers.more == 0 { "is" } else { "are" };
                write!(f, "{buffers} of agent {owner} {are} mapped to agent {peer}, ")?;
                write!(f, "which had {property} over {had}, here it has {here}")?;
            }
        }
        if let Subject::Buffers { .. } = self.subject {
            return f.write_str("; kernels may access it, so copies through the host cannot stand in");
        }
        f.write_str(match self.relation {
            Relation::Equal => "; the two must be equal",
            Relation::AtLeast => "; it must be at least what it was",
            Relation::Together => "; what was on one CPU node must stay together",
        })?;
        match (self.switch, self.staged) {
            (Some(switch), _) => write!(f, ": set {switch}=0 to go on anyway"),
            (None, true) => f.write_str(": give --allow-staged to copy through the host instead"),
            (None, false) => Ok(()),
        }
    }
}
