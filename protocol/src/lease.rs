// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a process that was checkpointed by a controller resumes without an order.
//!
//! INVARIANT: an original process resumes only while it is not traced, so a dump in progress is never disturbed; and it
//! does resume once its lease is over and it is not traced. A restored copy resumes at once. A process that was locked by
//! itself or by another controller is left alone. A stranded process, which cannot reopen its device by anything that it
//! could do itself, does not try again: it waits for help, or ends if it was told to and a complete checkpoint exists.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::state::State;

/// The facts that the decision depends on. Later methods are called only if the earlier ones do not decide: the last ones
/// read files of `/proc`.
pub trait Watch {
    /// The state of the process.
    fn state(&self) -> State;
    /// Whether its gate is closed because an attempt to resume failed, or to undo a checkpoint that failed.
    fn is_unfinished(&self) -> bool;
    /// Whether such an attempt is too recent for another.
    fn is_resting(&self) -> bool;
    /// Whether this process is a restored copy of the one that was checkpointed.
    fn is_copied(&self) -> bool;
    /// Whether it cannot reopen its device: no process holds the files any more that this needs.
    fn is_stranded(&self) -> bool;
    /// Of a stranded process: whether it is to end ([`OnStranded::Exit`]), it has waited long enough for help, and a
    /// complete checkpoint of it exists.
    fn is_to_end(&self) -> bool;
    /// Why the lease is over, if it is.
    fn is_over(&self) -> Option<Why>;
    /// Whether a debugger or CRIU holds the process.
    fn is_traced(&self) -> bool;
}

/// What the agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Waits and decides again.
    Wait,
    /// Drops the lease: the process was resumed by something else.
    Forget,
    /// Restores the device and opens the gate.
    GoOn(Why),
    /// Ends the process, so that a copy can take its place.
    End,
}

/// What a process does that cannot reopen its device by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnStranded {
    /// It stays CHECKPOINTED, with its gate closed, until it is given the files, dumped or killed.
    #[default]
    Wait,
    /// It ends, if a complete checkpoint of it exists; else it waits.
    Exit,
}

/// Why a process resumes without an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is a restored copy.
    Copied,
    /// The controller that ordered the checkpoint has ended.
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
        // An attempt of this agent was left unfinished, and only the agent can finish it.
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
