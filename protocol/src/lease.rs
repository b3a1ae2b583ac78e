// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a process that was checkpointed on an order goes on by itself.
//!
//! INVARIANT: an original goes on only while nobody traces it, so a dump under way is never disturbed; and it goes on for
//! certain once its lease is over and nobody does. A copy goes on at once. What the process itself, or another
//! controller, has locked is left alone. A process that is stranded, whose device cannot come back by anything that it
//! could do itself, does not try again: it waits for somebody who can help, or ends if it was told to and nothing is
//! lost by it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::state::State;

/// What the decision is made on. Later methods are asked only if the earlier ones leave it open: the last ones read files
/// of `/proc`.
pub trait Watch {
    /// Where the process is.
    fn state(&self) -> State;
    /// Whether it is shut because an attempt to go on failed, or to go back from a checkpoint that failed.
    fn is_unfinished(&self) -> bool;
    /// Whether such an attempt is too recent for another.
    fn is_resting(&self) -> bool;
    /// Whether this is another incarnation than that which was checkpointed.
    fn is_copied(&self) -> bool;
    /// Whether its device cannot come back: nobody has the files any more that it hangs on.
    fn is_stranded(&self) -> bool;
    /// Of a stranded process: whether it is to end ([`OnStranded::Exit`]), has waited long enough for help, and a complete
    /// checkpoint of it exists.
    fn is_to_end(&self) -> bool;
    /// Why nobody will freeze the process any more, if so.
    fn is_over(&self) -> Option<Why>;
    /// Whether a debugger or CRIU holds the process.
    fn is_traced(&self) -> bool;
}

/// What the agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Waits and looks again.
    Wait,
    /// Forgets the lease: somebody else has seen to the process.
    Forget,
    /// Takes the device back and opens the gate.
    GoOn(Why),
    /// Ends the process, so that a copy can take its place.
    End,
}

/// What a process does whose device cannot come back in this life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnStranded {
    /// It stays CHECKPOINTED, its gate shut, until somebody brings the files, dumps it or ends it.
    #[default]
    Wait,
    /// It ends, if a complete checkpoint of it exists; else it waits.
    Exit,
}

/// Why a process goes on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is a restored copy.
    Copied,
    /// Who gave the order has ended.
    ControllerGone,
    /// Its lease has run out.
    TimeUp,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copied => "it is a restored copy",
            Self::ControllerGone => "the controller has gone",
            Self::TimeUp => "its time is up",
        })
    }
}

/// What the agent of a process that holds a lease does now.
pub fn decide(watch: &impl Watch) -> Next {
    match watch.state() {
        State::Checkpointed => {}
        // Half of an attempt of our own; nobody else would do the other half.
        State::Locked if watch.is_unfinished() => {}
        State::Running | State::Locked => return Next::Forget,
    }
    if watch.is_resting() {
        return Next::Wait;
    }
    if watch.is_copied() {
        return Next::GoOn(Why::Copied);
    }
    if watch.is_stranded() {
        return if watch.is_to_end() && !watch.is_traced() { Next::End } else { Next::Wait };
    }
    match watch.is_over() {
        Some(why) if !watch.is_traced() => Next::GoOn(why),
        _ => Next::Wait,
    }
}
