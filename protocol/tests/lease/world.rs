// SPDX-License-Identifier: MIT OR Apache-2.0
//! The actors of a dump as a transition system: a controller, CRIU, the process with its agent and its application, and
//! restored copies of it.
//!
//! INVARIANT: whatever an actor does alone between two messages is one step; every order of steps is possible, every step
//! of the process's may fail as long as `failures` lasts, and controller and CRIU may be killed before each of theirs.
//! What the agent does by itself is decided by the function under test.

use stasis_protocol::State;
use stasis_protocol::lease::Next;

use super::process::{Look, Order, Owner, Process};

/// The decision under test, and how the agent behaves around it.
#[derive(Clone, Copy)]
pub struct Agent {
    pub decide: fn(&Look) -> Next,
    /// Whether a process that a failed checkpoint left shut gets a lease.
    pub leases_failures: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub controller: Controller,
    pub criu: Criu,
    /// Whether the manifest says that the images are a whole checkpoint.
    pub committed: bool,
    /// The contents in our own files.
    pub contents: bool,
    /// What CRIU wrote down.
    pub snapshot: Option<Box<Process>>,
    pub processes: Vec<Process>,
    pub failures: u8,
    pub leave_running: bool,
    pub outlives_controller: bool,
    /// What the process was told to do when nobody has the files any more that its device hangs on: chosen when that
    /// comes about.
    pub exits_when_stranded: bool,
}

/// `stasis checkpoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Controller {
    Begins,
    /// Has ordered the checkpoint.
    AwaitsCheckpoint,
    StartsCriu,
    AwaitsCriu,
    /// Has ordered the process to run on, after a dump that failed or not.
    AwaitsResume {
        failed: bool,
    },
    /// Looks whether the images are of use.
    ClearsUp,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Criu {
    Absent,
    Started,
    /// Traces the first threads; the others run.
    Seizes,
    /// All stand still; it looks and writes.
    Holds,
    /// The images are whole.
    Commits,
    Failed,
    Done,
}

/// Something that must not be.
pub type Broken = &'static str;
pub type Steps = Result<Vec<World>, Broken>;

impl World {
    pub fn new(leave_running: bool, outlives_controller: bool, failures: u8) -> Self {
        Self {
            controller: Controller::Begins,
            criu: Criu::Absent,
            committed: false,
            contents: false,
            snapshot: None,
            processes: vec![Process::new()],
            failures,
            leave_running,
            outlives_controller,
            exits_when_stranded: false,
        }
    }

    /// Whether a copy can be made of the process.
    pub fn is_whole(&self) -> bool {
        self.committed && self.contents && self.snapshot.is_some()
    }

    pub fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    pub fn process(&self, n: usize, change: impl FnOnce(&mut Process)) -> Self {
        self.with(|world| change(&mut world.processes[n]))
    }

    /// The same step failing, if there are failures left.
    pub fn failing(&self, n: usize, change: impl FnOnce(&mut Process)) -> Option<Self> {
        self.failures.checked_sub(1).map(|failures| Self { failures, ..self.process(n, change) })
    }

    /// Every world that is one step away.
    ///
    /// A restore waits until the checkpoint's controller has ended, by itself or not; from then on original
    /// and copies have nothing in common that changes, so one copy by itself stands for any number of them.
    pub fn next(&self, agent: Agent) -> Steps {
        let last = self.processes.len() - 1;
        let mut next = self.worker_steps(last, agent)?;
        next.extend(self.application_steps(last));
        next.extend(self.time_steps(last));
        if last == 0 {
            next.extend(self.keepers_killed());
            next.extend(self.controller_steps());
            next.extend(self.criu_steps());
            if self.committed && self.controller == Controller::Ended {
                next.extend(self.copies());
            }
        }
        Ok(next)
    }

    /// What must hold in every world.
    pub fn check(&self) -> Result<(), Broken> {
        for process in self.processes.iter().filter(|process| process.alive) {
            match process.state {
                State::Running | State::Locked if process.device.is_none() => {
                    return Err("calls pass, or soon will, to a device that is closed");
                }
                State::Checkpointed if process.device.is_some() => {
                    return Err("a checkpointed process holds its device");
                }
                State::Checkpointed if !self.contents => {
                    return Err("contents are gone that a process needs");
                }
                _ => {}
            }
        }
        if !self.is_whole() && !self.processes[0].alive {
            return Err("the process is gone, and no image of it is whole");
        }
        Ok(())
    }

    /// A worker alone is deterministic; it does its few steps and comes to rest.
    fn settle(mut self, n: usize, agent: Agent) -> Result<Self, Broken> {
        for _ in 0..16 {
            self.processes[n].rest();
            let Some(next) = self.worker_steps(n, agent)?.pop() else { return Ok(self) };
            self = next;
        }
        Err("a process comes to no rest")
    }

    /// The end that nobody prevents: everybody else has gone, nothing fails any more, and time passes only where the
    /// process has nothing else to go by.
    pub fn end(&self, agent: Agent) -> Result<(), Broken> {
        let mut world = self.clone();
        world.controller = Controller::Ended;
        world.failures = 0;
        for n in 0..world.processes.len() {
            let process = &mut world.processes[n];
            (process.traced, process.stopped) = (false, false);
            if process.state == State::Locked && process.owner == Owner::Application {
                (process.state, process.owner) = (State::Running, Owner::Agent);
            }
            world = world.settle(n, agent)?;
            let process = &world.processes[n];
            let is_stranded = process.lease.is_some_and(|lease| lease.stranded);
            if process.alive && is_stranded {
                if world.exits_when_stranded && world.is_whole() {
                    return Err("a stranded process does not end");
                }
                // Help that comes late is still help.
                let helped = world.process(n, |p| p.order = Some(Order::Resume { with_files: true }));
                world = helped.settle(n, agent)?;
            }
            if world.processes[n].alive && world.processes[n].state != State::Running {
                return Err("a process whose controller has gone does not run on");
            }
        }
        Ok(())
    }
}
