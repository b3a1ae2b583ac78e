// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process: its agent's worker as `agent_thread/orders.rs` has it, its application, its time.
//!
//! INVARIANT: a process that CRIU holds takes no step.

use stasis_protocol::State;
use stasis_protocol::lease::{Next, Watch, Why};

use super::world::{Agent, Broken, Controller, Steps, World};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub incarnation: u8,
    pub alive: bool,
    pub state: State,
    /// The process that may unlock this one while it is locked.
    pub owner: Owner,
    /// The incarnation in which the device was opened, if it is open.
    pub device: Option<u8>,
    pub traced: bool,
    pub stopped: bool,
    pub at: At,
    pub order: Option<Order>,
    pub answer: Option<bool>,
    pub lease: Option<Lease>,
    /// The incarnation that the worker takes itself for.
    pub known: u8,
    /// Whether its keepers have the files that its device hangs on.
    pub keepers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Agent,
    Application,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    Checkpoint,
    /// Perhaps with the files that the controller holds.
    Resume {
        with_files: bool,
    },
}

/// Where the worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    Waits,
    TakesDown,
    /// Back from a checkpoint that failed.
    Undoes,
    Resumes {
        ordered: bool,
        with_files: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub with_controller: bool,
    pub time_up: bool,
    pub unfinished: bool,
    pub resting: bool,
    pub stranded: bool,
}

/// What a worker sees.
pub struct Look<'a> {
    process: &'a Process,
    lease: Lease,
    controller_gone: bool,
    is_to_end: bool,
}

impl Watch for Look<'_> {
    fn state(&self) -> State {
        self.process.state
    }

    fn is_unfinished(&self) -> bool {
        self.lease.unfinished
    }

    fn is_resting(&self) -> bool {
        self.lease.resting
    }

    fn is_copied(&self) -> bool {
        self.process.known != self.process.incarnation
    }

    fn is_stranded(&self) -> bool {
        self.lease.stranded
    }

    fn is_to_end(&self) -> bool {
        self.is_to_end
    }

    fn is_over(&self) -> Option<Why> {
        if self.lease.with_controller && self.controller_gone {
            return Some(Why::ControllerGone);
        }
        self.lease.time_up.then_some(Why::TimeUp)
    }

    fn is_traced(&self) -> bool {
        self.process.traced
    }
}

impl Process {
    pub fn new() -> Self {
        Self {
            incarnation: 0,
            alive: true,
            state: State::Running,
            owner: Owner::Agent,
            device: Some(0),
            traced: false,
            stopped: false,
            at: At::Waits,
            order: None,
            answer: None,
            lease: None,
            known: 0,
            keepers: false,
        }
    }

    fn is_free(&self) -> bool {
        self.alive && !self.stopped
    }

    fn answer(&mut self, done: bool) {
        self.at = At::Waits;
        self.answer = Some(done);
    }

    /// The time that passes at the end: a copy needs none of its lease, nor one whose controller has gone.
    pub fn rest(&mut self) {
        let copied = self.known != self.incarnation;
        if let Some(lease) = &mut self.lease {
            lease.resting = false;
            lease.time_up |= !lease.with_controller && !copied;
            lease.with_controller &= !copied;
        }
    }

    fn leave_shut(&mut self, agent: Agent) {
        if agent.leases_failures {
            self.lease = Some(Lease {
                with_controller: false,
                time_up: true,
                unfinished: true,
                resting: true,
                stranded: false,
            });
        }
    }
}

impl World {
    pub fn worker_steps(&self, n: usize, agent: Agent) -> Steps {
        let process = &self.processes[n];
        if !process.is_free() {
            return Ok(Vec::new());
        }
        match process.at {
            At::Waits => match process.order {
                Some(Order::Checkpoint) => Ok(self.begin_checkpoint(n)),
                Some(Order::Resume { with_files }) => Ok(vec![self.process(n, |p| {
                    p.order = None;
                    p.at = At::Resumes { ordered: true, with_files };
                })]),
                None => self.look_after(n, agent).map(Vec::from_iter),
            },
            At::TakesDown => Ok(self.take_down(n, agent)),
            At::Undoes => {
                let undone = self.process(n, |p| {
                    p.state = State::Running;
                    p.answer(false);
                });
                let left_shut = self.failing(n, |p| {
                    p.leave_shut(agent);
                    p.answer(false);
                });
                Ok(left_shut.into_iter().chain([undone]).collect())
            }
            At::Resumes { ordered, with_files } => self.resume(n, ordered, with_files),
        }
    }

    fn begin_checkpoint(&self, n: usize) -> Vec<Self> {
        let refused = |p: &mut Process| {
            p.order = None;
            p.answer(false);
        };
        if self.processes[n].state != State::Running {
            return vec![self.process(n, refused)];
        }
        let locked = self.process(n, |p| {
            p.order = None;
            (p.state, p.owner, p.at, p.known) = (State::Locked, Owner::Agent, At::TakesDown, p.incarnation);
        });
        self.failing(n, refused).into_iter().chain([locked]).collect()
    }

    fn take_down(&self, n: usize, agent: Agent) -> Vec<Self> {
        let lease = Lease {
            with_controller: !self.outlives_controller,
            time_up: false,
            unfinished: false,
            resting: false,
            stranded: false,
        };
        let mut down = self.process(n, |p| {
            (p.state, p.device, p.lease) = (State::Checkpointed, None, Some(lease));
            p.keepers = true;
            p.answer(true);
        });
        down.contents = true;
        let untouched = self.failing(n, |p| p.at = At::Undoes);
        let stuck = self.failing(n, |p| {
            (p.state, p.device, p.keepers) = (State::Checkpointed, None, true);
            p.leave_shut(agent);
            p.answer(false);
        });
        let stuck = stuck.map(|stuck| Self { contents: true, ..stuck });
        [Some(down), untouched, stuck].into_iter().flatten().collect()
    }

    fn look_after(&self, n: usize, agent: Agent) -> Result<Option<Self>, Broken> {
        let process = &self.processes[n];
        let Some(lease) = process.lease else { return Ok(None) };
        let controller_gone = self.controller == Controller::Ended;
        let is_to_end = self.exits_when_stranded && self.is_whole();
        let look = Look { process, lease, controller_gone, is_to_end };
        let (copied, applications) = (look.is_copied(), process.owner == Owner::Application);
        match (agent.decide)(&look) {
            Next::Wait => Ok(None),
            Next::Forget => Ok(Some(self.process(n, |p| p.lease = None))),
            Next::GoOn(_) if process.traced && !copied => Err("a dump under way was disturbed"),
            Next::GoOn(_) if process.state == State::Locked && applications && !lease.unfinished => {
                Err("what the application had locked was unlocked")
            }
            Next::GoOn(_) if lease.stranded && !copied => Err("a stranded process tries again without help"),
            Next::GoOn(_) => {
                Ok(Some(self.process(n, |p| p.at = At::Resumes { ordered: false, with_files: false })))
            }
            Next::End if process.traced => Err("a dump under way was disturbed"),
            Next::End if copied => Err("a copy ended, which can have a device"),
            Next::End => Ok(Some(self.process(n, |p| p.alive = false))),
        }
    }

    /// One round of the session's `resume`.
    fn resume(&self, n: usize, ordered: bool, with_files: bool) -> Steps {
        let process = &self.processes[n];
        let is_copy = process.known != process.incarnation;
        if process.state == State::Checkpointed && !is_copy && !process.keepers && !with_files {
            return Ok(vec![self.process(n, |p| {
                if let Some(lease) = &mut p.lease {
                    (lease.unfinished, lease.resting, lease.stranded) = (true, false, true);
                }
                p.at = At::Waits;
                p.answer = if ordered { Some(false) } else { p.answer };
            })]);
        }
        let failed = self.failing(n, |p| {
            if let Some(lease) = &mut p.lease {
                (lease.unfinished, lease.resting, lease.stranded) = (true, true, false);
            }
            p.at = At::Waits;
            p.answer = if ordered { Some(false) } else { p.answer };
        });
        let went = match process.state {
            State::Checkpointed if !self.contents => {
                return Err("a process waits for contents that are gone");
            }
            State::Checkpointed => self.process(n, |p| {
                (p.state, p.owner, p.device) = (State::Locked, Owner::Agent, Some(p.incarnation));
                p.keepers = false;
            }),
            State::Locked if process.device != Some(process.incarnation) => {
                return Err("a gate was opened before a device of this life");
            }
            State::Locked => self.process(n, |p| p.state = State::Running),
            State::Running => self.process(n, |p| {
                (p.lease, p.known, p.at) = (None, p.incarnation, At::Waits);
                p.answer = if ordered { Some(true) } else { p.answer };
            }),
        };
        Ok(failed.into_iter().filter(|_| process.state != State::Running).chain([went]).collect())
    }

    /// The application locks and unlocks, and may bring the device back itself.
    pub fn application_steps(&self, n: usize) -> Vec<Self> {
        let process = &self.processes[n];
        let busy = matches!(process.at, At::TakesDown | At::Undoes);
        if !process.is_free() || busy {
            return Vec::new();
        }
        match (process.state, process.owner) {
            (State::Running, _) => vec![self.process(n, |p| {
                (p.state, p.owner) = (State::Locked, Owner::Application);
            })],
            (State::Locked, Owner::Application) => vec![self.process(n, |p| {
                p.state = State::Running;
                p.owner = Owner::Agent;
            })],
            (State::Checkpointed, _)
                if self.contents && (process.keepers || process.known != process.incarnation) =>
            {
                vec![self.process(n, |p| {
                    (p.state, p.owner, p.device) = (State::Locked, Owner::Application, Some(p.incarnation));
                    p.keepers = false;
                })]
            }
            _ => Vec::new(),
        }
    }

    /// Both keepers of the original are killed.
    pub fn keepers_killed(&self) -> Vec<Self> {
        if !self.processes[0].keepers {
            return Vec::new();
        }
        let killed = self.process(0, |p| p.keepers = false);
        [false, true].map(|exits_when_stranded| Self { exits_when_stranded, ..killed.clone() }).into()
    }

    pub fn time_steps(&self, n: usize) -> Vec<Self> {
        let Some(lease) = self.processes[n].lease.filter(|_| self.processes[n].alive) else {
            return Vec::new();
        };
        let becomes = |lease: Lease| self.process(n, |p| p.lease = Some(lease));
        let mut next = Vec::new();
        if !lease.time_up {
            next.push(becomes(Lease { time_up: true, ..lease }));
        }
        if lease.resting {
            next.push(becomes(Lease { resting: false, ..lease }));
        }
        next
    }
}
