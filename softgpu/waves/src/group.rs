// SPDX-License-Identifier: MIT OR Apache-2.0
//! A workgroup: its waves as coroutines over one LDS.
//!
//! INVARIANT: one worker runs a workgroup at a time, its waves round-robin; a wave at a barrier continues when every
//! wave that has not ended has reached it.

use std::time::Instant;

use parking_lot::RwLockReadGuard;
use queues::save_area::WaveRecord;

use crate::code::{Code, WaveStop, Waves};
use crate::control::Control;
use crate::env::{Env, Hot, Lds};
use crate::exception::{Cause, WaveException};
use crate::interp::run_waves;
use crate::launch::Plan;
use crate::observe::Watch;
use crate::trap;
use crate::vm::Map;
use crate::wave::{Wave, WaveStatus};

/// Steps a wave runs before the next one of its workgroup.
const QUANTUM: u32 = 20_000;

/// A workgroup that has started.
#[derive(Debug)]
pub(crate) struct Group {
    pub id: [u32; 3],
    pub waves: Vec<Wave>,
    pub lds: Box<Lds>,
    /// Its place in the scratch.
    pub slot: usize,
    /// Waves in `waves` that belong to this workgroup; the rest are left over from a larger one.
    live: usize,
}

/// How a turn of a workgroup ended.
#[derive(Debug)]
pub(crate) enum Turn {
    Done,
    /// The deadline has passed, and the workgroup needs another turn.
    Again,
    /// The control interrupted it.
    Interrupted,
    Exception(Box<WaveException>),
}

/// What a turn of a workgroup needs.
pub(crate) struct TurnOptions<'a, 'map, 'code> {
    pub plan: &'a Plan,
    /// The locked map of what the waves may access.
    pub map: &'a mut RwLockReadGuard<'map, Map>,
    pub code: &'a mut Code<'code>,
    pub hot: &'a mut Hot,
    pub control: &'a Control,
    /// When the turn ends.
    pub deadline: Instant,
    /// Counts the executed instructions.
    pub executed: &'a mut u64,
    /// The worker's part in an observation, if the dispatch is observed.
    pub watch: &'a mut Option<Watch<'code>>,
}

impl Group {
    /// Memory for a workgroup, without waves.
    pub(crate) fn new() -> Box<Group> {
        Box::new(Group { id: [0; 3], waves: Vec::new(), lds: Lds::new(), slot: 0, live: 0 })
    }

    fn make_room(&mut self, plan: &Plan, waves: usize) {
        let fits = |w: &Wave| w.halves == plan.shape.halves && w.vgprs() == plan.shape.vgprs;
        // All have the same shape.
        if !self.waves.first().is_some_and(fits) {
            self.waves.clear();
        }
        while self.waves.len() < waves {
            self.waves.push(Wave::new(plan.shape.halves * 32, plan.shape.vgprs));
        }
        self.live = waves;
    }

    /// How many waves it has.
    pub(crate) fn waves(&self) -> u64 {
        // CAST: usize to u64 on a 64-bit target.
        self.live as u64
    }

    /// Starts workgroup `id` in this memory.
    pub(crate) fn start(&mut self, plan: &Plan, id: [u32; 3], slot: usize) {
        let waves = plan.wave_count(id);
        self.make_room(plan, waves);
        self.id = id;
        self.slot = slot;
        self.lds[..plan.lds_bytes as usize / 4].fill(0);
        plan.start(&mut self.waves[..waves], id, slot);
    }

    /// Rebuilds a workgroup, in this memory, from the records of its waves that had not ended.
    pub(crate) fn restore(&mut self, plan: &Plan, records: &[WaveRecord]) {
        self.make_room(plan, records.len());
        for (w, r) in self.waves.iter_mut().zip(records) {
            w.restore(plan, r);
        }
        if let Some(lds) = records.first().and_then(|r| r.lds.as_ref()) {
            for (d, &x) in self.lds.iter_mut().zip(lds) {
                *d = x;
            }
        }
        if let Some(w) = self.waves.first() {
            self.id = w.group;
            self.slot = plan.place_of(w);
        }
    }

    /// Writes records of the waves that have not ended over those that `all` has from the `first` on, or adds them. A wave at a
    /// barrier is saved with its PC at the barrier instruction, so that it executes the barrier again. Returns the number of
    /// records then.
    pub(crate) fn put_records(&self, all: &mut Vec<WaveRecord>, first: usize) -> usize {
        let mut next = first;
        for w in self.waves[..self.live].iter().filter(|w| w.state != WaveStatus::Ended) {
            let memory = all.get_mut(next).map(|old| std::mem::take(&mut old.vgprs)).unwrap_or_default();
            let mut r = w.record_in(memory);
            if w.state == WaveStatus::AtBarrier {
                r.pc = r.pc.wrapping_sub(4);
            }
            match all.get_mut(next) {
                Some(old) => *old = r,
                None => all.push(r),
            }
            next += 1;
        }
        let records = &mut all[first..next];
        let lds = self.waves.first().map_or(0, |w| w.lds_bytes as usize / 4);
        if let Some(first) = records.first_mut() {
            first.first_in_group = true;
            first.lds = (lds > 0).then(|| self.lds[..lds].to_vec());
        }
        if let Some(last) = records.last_mut() {
            last.last_in_group = true;
        }
        next
    }

    /// Runs until the workgroup is done or the deadline has passed. The map lock is offered to writers after every
    /// quantum.
    pub(crate) fn run(&mut self, options: &mut TurnOptions<'_, '_, '_>) -> Turn {
        let TurnOptions { plan, map, code, hot, control, deadline, executed, watch } = options;
        loop {
            let mut went_round = false;
            let mut k = 0;
            while k < self.live {
                if self.waves[k].state != WaveStatus::Ready {
                    k += 1;
                    continue;
                }
                let mut env = Env::new(map, &mut self.lds, hot, plan.identity);
                let mut waves = Waves { all: &mut self.waves[..self.live], current: k, is_group: true };
                let stop = match watch {
                    Some(watch) if watch.wants(waves.wave()) => {
                        watch.run(waves.wave(), &mut env, code, control, QUANTUM)
                    }
                    _ => run_waves(&mut waves, &mut env, code, control, QUANTUM),
                };
                k = waves.current;
                let w = &mut self.waves[k];
                let pc = w.pc;
                let halted = match stop {
                    WaveStop::Exception => trap::handle(w, &mut env, code),
                    _ => None,
                };
                **executed += env.executed;
                match stop {
                    WaveStop::Ended | WaveStop::Barrier => {}
                    WaveStop::Exception if let Some(cause) = halted => {
                        return Turn::Exception(Box::new(self.exception(k, cause, pc)));
                    }
                    WaveStop::Quantum | WaveStop::Exception => {
                        RwLockReadGuard::bump(map);
                        if Instant::now() >= *deadline {
                            return Turn::Again;
                        }
                    }
                    WaveStop::Round => {
                        went_round = true;
                        break;
                    }
                    WaveStop::Switched => continue,
                    WaveStop::Interrupted => return Turn::Interrupted,
                }
                k += 1;
            }
            if self.release() {
                return Turn::Done;
            }
            if went_round {
                RwLockReadGuard::bump(map);
                if Instant::now() >= *deadline {
                    return Turn::Again;
                }
            }
        }
    }

    /// Whether all waves have ended. If those that have not are all at the barrier, they go on.
    fn release(&mut self) -> bool {
        let waves = &mut self.waves[..self.live];
        let ended = waves.iter().filter(|w| w.state == WaveStatus::Ended).count();
        if waves.iter().all(|w| w.state != WaveStatus::Ready) {
            for w in waves.iter_mut().filter(|w| w.state == WaveStatus::AtBarrier) {
                w.state = WaveStatus::Ready;
            }
        }
        ended == self.live
    }

    fn exception(&self, k: usize, cause: Cause, pc: u64) -> WaveException {
        let w = &self.waves[k];
        let mut record = w.record();
        record.first_in_group = k == 0;
        record.last_in_group = k + 1 == self.live;
        WaveException { cause, pc, workgroup: self.id, wave_in_group: w.wave_in_group, record }
    }
}
