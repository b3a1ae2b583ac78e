// SPDX-License-Identifier: MIT OR Apache-2.0
//! What controller and CRIU do to the process.
//!
//! INVARIANT: each may be killed before any of its steps; CRIU may also fail, or be vetoed, in any of them.

use stasis_protocol::State;

use super::process::Order;
use super::world::{Controller, Criu, World};

impl World {
    pub fn controller_steps(&self) -> Vec<Self> {
        use Controller::{AwaitsCheckpoint, AwaitsCriu, AwaitsResume, Begins, ClearsUp, Ended, StartsCriu};
        let process = &self.processes[0];
        let go = |to: Controller| self.with(|world| world.controller = to);
        let ordering = |to: Controller, order: Order| {
            self.with(|world| {
                world.controller = to;
                world.processes[0].order = Some(order);
                world.processes[0].answer = None;
            })
        };
        let mut next = match (self.controller, process.answer) {
            (Ended, _) => return Vec::new(),
            (Begins, _) => vec![ordering(AwaitsCheckpoint, Order::Checkpoint)],
            (AwaitsCheckpoint, Some(true)) => vec![go(StartsCriu)],
            (AwaitsCheckpoint, Some(false)) => vec![go(ClearsUp)],
            // `--no-dump`: CRIU is somebody else's affair.
            (StartsCriu, _) => vec![self.with(|world| {
                world.controller = if self.outlives_controller { Ended } else { AwaitsCriu };
                world.criu = Criu::Started;
            })],
            (AwaitsCriu, _) => match self.criu {
                Criu::Done if self.leave_running => {
                    vec![ordering(AwaitsResume { failed: false }, Order::Resume { with_files: true })]
                }
                Criu::Done => vec![go(Ended)],
                Criu::Failed => {
                    vec![ordering(AwaitsResume { failed: true }, Order::Resume { with_files: true })]
                }
                _ => Vec::new(),
            },
            (AwaitsResume { failed: false }, Some(_)) => vec![go(Ended)],
            (AwaitsResume { failed: true }, Some(true)) => vec![self.with(|world| {
                world.committed = false;
                world.controller = ClearsUp;
            })],
            (AwaitsResume { failed: true }, Some(false)) => vec![go(ClearsUp)],
            (AwaitsResume { .. }, None) if !process.alive => vec![go(Ended)],
            (ClearsUp, _) => vec![self.with(|world| {
                world.contents &= world.committed || process.alive && process.state != State::Running;
                world.controller = Ended;
            })],
            (AwaitsCheckpoint | AwaitsResume { .. }, None) => Vec::new(),
        };
        next.push(go(Ended));
        next
    }

    pub fn criu_steps(&self) -> Vec<Self> {
        let holding = |criu: Criu, traced: bool, stopped: bool| {
            self.with(|world| {
                world.criu = criu;
                (world.processes[0].traced, world.processes[0].stopped) = (traced, stopped);
            })
        };
        let lets_go = holding(Criu::Failed, false, false);
        match self.criu {
            Criu::Absent | Criu::Failed | Criu::Done => Vec::new(),
            Criu::Started => vec![holding(Criu::Seizes, true, false), lets_go],
            Criu::Seizes => vec![holding(Criu::Holds, true, true), lets_go],
            // It refuses a device file; and anything may fail, be vetoed, or kill it.
            Criu::Holds if self.processes[0].device.is_some() => vec![lets_go],
            Criu::Holds => {
                let mut commits = holding(Criu::Commits, true, true);
                commits.snapshot = Some(Box::new(self.processes[0].clone()));
                commits.committed = true;
                vec![commits, lets_go]
            }
            Criu::Commits => {
                let mut done = holding(Criu::Done, false, false);
                done.processes[0].alive = self.leave_running;
                // It may also kill the process and then fail to say so.
                let mut silent = done.clone();
                silent.criu = Criu::Failed;
                vec![done, silent, lets_go]
            }
        }
    }

    /// A copy of what CRIU wrote down, left to itself or told by `stasis restore` to run on.
    pub fn copies(&self) -> Vec<Self> {
        let Some(mut copy) = self.snapshot.as_deref().cloned() else { return Vec::new() };
        copy.incarnation += 1;
        // They are another process's.
        copy.keepers = false;
        (copy.traced, copy.stopped) = (false, false);
        let mut told = copy.clone();
        told.order = Some(Order::Resume { with_files: false });
        [copy, told].map(|copy| self.with(|world| world.processes.push(copy))).into()
    }
}
