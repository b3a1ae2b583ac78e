// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every order in which controller, CRIU, agent, application and copies can act, with the agent's own decision
//! ([`stasis_protocol::lease::decide`]): nothing is lost, nothing stays shut.
//!
//! INVARIANT: the search is exhaustive; each property is shown to be able to fail by an agent that gets it wrong.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod others;
mod process;
mod world;

use std::collections::{HashSet, VecDeque};

use stasis_protocol::State;
use stasis_protocol::lease::{Next, Watch, Why, decide};

use self::process::Look;
use self::world::{Agent, Broken, World};

const AGENT: Agent = Agent { decide: |look| decide(look), leases_failures: true };

/// Looks at every world that can be reached; how many there are, or the first that must not be.
fn explore(agent: Agent) -> Result<usize, (Broken, Box<World>)> {
    let mut seen = HashSet::new();
    let mut ahead = VecDeque::new();
    for leave_running in [false, true] {
        for outlives_controller in [false, true] {
            let start = World::new(leave_running, outlives_controller, 2);
            seen.insert(start.clone());
            ahead.push_back(start);
        }
    }
    while let Some(world) = ahead.pop_front() {
        let broken = |what| (what, Box::new(world.clone()));
        world.check().map_err(broken)?;
        world.end(agent).map_err(broken)?;
        for next in world.next(agent).map_err(broken)? {
            if seen.insert(next.clone()) {
                ahead.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

fn explore_deciding(decide: fn(&Look) -> Next) -> Broken {
    explore(Agent { decide, ..AGENT }).unwrap_err().0
}

#[test]
fn no_order_of_events_loses_or_wedges_a_process() {
    let worlds = explore(AGENT).unwrap_or_else(|(what, world)| panic!("{what}: {world:#?}"));
    eprintln!("model lease: {worlds} states");
    assert!(worlds > 10_000, "only {worlds} states: the model does not move");
}

#[test]
fn agent_that_does_not_look_for_a_tracer_is_found() {
    let rash = |look: &Look| match decide(look) {
        Next::Wait if look.state() == State::Checkpointed && !look.is_resting() && !look.is_stranded() => {
            look.is_over().map_or(Next::Wait, Next::GoOn)
        }
        next => next,
    };
    assert_eq!(explore_deciding(rash), "a dump under way was disturbed");
}

#[test]
fn agent_that_trusts_its_controller_to_live_is_found() {
    let trusting = |look: &Look| match decide(look) {
        Next::GoOn(Why::ControllerGone) => Next::Wait,
        next => next,
    };
    assert_eq!(explore_deciding(trusting), "a process whose controller has gone does not run on");
}

#[test]
fn copy_that_waits_for_an_order_is_found() {
    let patient = |look: &Look| match decide(look) {
        Next::GoOn(Why::Copied) => Next::Wait,
        next => next,
    };
    assert_eq!(explore_deciding(patient), "a process whose controller has gone does not run on");
}

#[test]
fn agent_that_forgets_its_lease_once_locked_is_found() {
    let forgetful = |look: &Look| match look.state() {
        State::Checkpointed => decide(look),
        _ => Next::Forget,
    };
    assert_eq!(explore_deciding(forgetful), "a process whose controller has gone does not run on");
}

#[test]
fn agent_that_unlocks_what_is_not_its_own_is_found() {
    let meddling = |look: &Look| match (look.state(), look.is_over()) {
        (State::Locked, Some(why)) if !look.is_resting() && !look.is_traced() => Next::GoOn(why),
        _ => decide(look),
    };
    assert_eq!(explore_deciding(meddling), "what the application had locked was unlocked");
}

#[test]
fn agent_that_leaves_a_failed_checkpoint_alone_is_found() {
    let failed = explore(Agent { leases_failures: false, ..AGENT });
    assert_eq!(failed.unwrap_err().0, "a process whose controller has gone does not run on");
}

#[test]
fn stranded_agent_that_tries_again_is_found() {
    let stubborn = |look: &Look| match (decide(look), look.is_over()) {
        (Next::Wait, Some(why)) if look.is_stranded() && !look.is_traced() => Next::GoOn(why),
        (next, _) => next,
    };
    assert_eq!(explore_deciding(stubborn), "a stranded process tries again without help");
}

#[test]
fn stranded_agent_that_ends_what_no_checkpoint_has_is_found() {
    let rash = |look: &Look| match decide(look) {
        Next::Wait if look.is_stranded() && !look.is_traced() => Next::End,
        next => next,
    };
    assert_eq!(explore_deciding(rash), "the process is gone, and no image of it is whole");
}

#[test]
fn stranded_agent_that_does_not_end_as_it_was_told_is_found() {
    let idle = |look: &Look| match decide(look) {
        Next::End => Next::Wait,
        next => next,
    };
    assert_eq!(explore_deciding(idle), "a stranded process does not end");
}
