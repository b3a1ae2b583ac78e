// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one wave instruction by instruction and records what it does.
//!
//! INVARIANT: as for the interpreter's loop: when it returns, `Wave::pc` names the next instruction, or the faulting
//! one. The counts are added to the observation when the watch is dropped.

use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::Observation;
use super::facts::Fact;
use super::tally::Tally;
use crate::code::{Code, WaveStop};
use crate::control::Control;
use crate::env::Env;
use crate::exception::Cause;
use crate::interp::execute;
use crate::program::Program;
use crate::step::{Flow, stop};
use crate::wave::Wave;

/// One worker's part in an observation.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    observation: &'a Observation,
    tally: Tally,
    /// This thread's CPU time when it began.
    began: Duration,
    known: Vec<(Arc<Program>, Arc<[Fact]>)>,
}

fn thread_time() -> Duration {
    // A thread has this clock.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

impl<'a> Watch<'a> {
    pub(super) fn new(observation: &'a Observation) -> Watch<'a> {
        Watch { observation, tally: Tally::default(), began: thread_time(), known: Vec::new() }
    }

    /// Whether the turn of `w` is to be watched.
    pub(crate) fn wants(&self, w: &Wave) -> bool {
        self.observation.counts() || self.observation.trace_of(w).is_some()
    }

    fn facts(&mut self, program: &Arc<Program>) -> Arc<[Fact]> {
        if let Some((_, facts)) = self.known.iter().find(|(known, _)| Arc::ptr_eq(known, program)) {
            return Arc::clone(facts);
        }
        let facts: Arc<[Fact]> = Fact::all(program).into();
        self.known.push((Arc::clone(program), Arc::clone(&facts)));
        facts
    }

    /// Runs `w` for at most `budget` instructions.
    pub(crate) fn run(
        &mut self,
        w: &mut Wave,
        env: &mut Env<'_>,
        code: &mut Code<'_>,
        control: &Control,
        budget: u32,
    ) -> WaveStop {
        if control.interrupts() {
            return WaveStop::Interrupted;
        }
        // This loop finds its place in a program by address; its hint would be stale for the next loop.
        w.hint = usize::MAX;
        let mut left = budget;
        loop {
            w.pc &= !3;
            let (program, _) = code.locate(env, w.pc, usize::MAX);
            let program = code.programs[program].clone();
            let Some(at) = program.ordinal_of(w.pc) else {
                stop(w, Cause::IllegalInstruction { words: Vec::new() });
                return WaveStop::Exception;
            };
            if let Some(stop) = self.run_program(w, env, &program, control, at, &mut left) {
                return stop;
            }
        }
    }

    /// Runs `w` from instruction `at` of `program`; `None` when it has left the program.
    fn run_program(
        &mut self,
        w: &mut Wave,
        env: &mut Env<'_>,
        program: &Arc<Program>,
        control: &Control,
        mut at: usize,
        left: &mut u32,
    ) -> Option<WaveStop> {
        let facts = self.facts(program);
        let observation = self.observation;
        let mut trace = observation.trace_of(w);
        loop {
            let fact = &facts[at];
            let steps = &program.steps[fact.steps.0..fact.steps.1];
            if let Some(trace) = trace.as_mut().and_then(|trace| trace.as_mut()) {
                trace.before(w, fact.pc, program.inst(at));
            }
            let (lanes, bytes) = (w.exec().count_ones(), fact.bytes(w, steps.first()));
            let flow = execute(w, env, steps);
            if let Some(guard) = &mut trace
                && guard.as_mut().is_some_and(|trace| trace.after(w, flow))
            {
                observation.end_trace(guard);
                trace = None;
            }
            if flow == Flow::Stop {
                w.pc = fact.pc;
                return Some(WaveStop::Exception);
            }
            env.executed += 1;
            self.tally.note(fact, lanes, bytes);
            let next = match flow {
                Flow::Jump => fact.target,
                Flow::Indirect => w.pc,
                _ => fact.next,
            };
            w.pc = next;
            *left = left.saturating_sub(1);
            let over = control.is_over(!steps.is_empty());
            match flow {
                Flow::Barrier => return Some(WaveStop::Barrier),
                Flow::End => {
                    self.tally.note_end(w);
                    return Some(WaveStop::Ended);
                }
                _ if over => return Some(WaveStop::Interrupted),
                Flow::Yield => return Some(WaveStop::Quantum),
                _ if *left == 0 => return Some(WaveStop::Quantum),
                _ => {}
            }
            let follows = facts.get(at + 1).is_some_and(|fact| fact.pc == next);
            at = if follows { at + 1 } else { program.ordinal_of(next)? };
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.tally.cpu = thread_time().saturating_sub(self.began);
        self.observation.sum.lock().add(&self.tally);
    }
}
