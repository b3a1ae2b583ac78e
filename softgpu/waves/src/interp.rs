// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loop that runs one wave's steps until something stops it.
//!
//! INVARIANT: when `run_wave` returns, `Wave::pc` names the next instruction (or the faulting one) and all state is in
//! the wave; a wave is only left between instructions.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::engine::Engine;
use crate::env::Env;
use crate::grid::Grid;
use crate::level::Level;
use crate::predecode::Shape;
use crate::program::{Cache, Program};
use crate::step::{Flow, Step};
use crate::wave::Wave;

/// Bits of a control's state: nothing set means run.
const PAUSE: u8 = 1;
const ABORT: u8 = 2;
const COUNTING: u8 = 4;
const DEAF: u8 = 8;

#[derive(Debug, Default)]
struct Wish {
    state: AtomicU8,
    /// Instructions until a pause, while counting.
    left: AtomicI64,
    grid: Mutex<Weak<Grid>>,
}

/// What another thread wants of a running grid; waves look at it on every backward branch.
#[derive(Clone, Debug, Default)]
pub struct Control {
    wish: Arc<Wish>,
}

/// State of a [`Control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Go on.
    Run,
    /// Stop at the next instruction boundary and keep the state.
    Pause,
    /// Stop and drop everything.
    Abort,
}

impl Control {
    /// A control that says run.
    pub fn new() -> Control {
        Control::default()
    }

    /// A control that no wave looks at, to measure what looking costs. Such a grid ends only by itself.
    pub fn deaf() -> Control {
        let control = Control::default();
        control.wish.state.store(DEAF, Ordering::Release);
        control
    }

    /// Sets the command; a count that was under way is over.
    pub fn set(&self, command: Command) {
        let value = match command {
            Command::Run => 0,
            Command::Pause => PAUSE,
            Command::Abort => ABORT,
        };
        if self.wish.state.swap(value, Ordering::AcqRel) == value {
            return;
        }
        let grid = self.wish.grid.lock().upgrade();
        if let Some(grid) = grid {
            grid.nudge();
        }
    }

    /// Runs on, and pauses after exactly this many instructions of all waves together (0: before the first).
    pub fn pause_after(&self, instructions: u64) {
        self.wish.left.store(i64::try_from(instructions).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.wish.state.store(if instructions == 0 { PAUSE } else { COUNTING }, Ordering::Release);
    }

    /// Says whom to nudge when the command changes.
    pub(crate) fn attach(&self, grid: &Arc<Grid>) {
        *self.wish.grid.lock() = Arc::downgrade(grid);
    }

    /// Asks for a pause.
    pub fn pause(&self) {
        self.set(Command::Pause);
    }

    /// Asks for an abort.
    pub fn abort(&self) {
        self.set(Command::Abort);
    }

    /// The command in force.
    pub fn command(&self) -> Command {
        match self.wish.state.load(Ordering::Acquire) & (PAUSE | ABORT) {
            0 => Command::Run,
            PAUSE => Command::Pause,
            _ => Command::Abort,
        }
    }

    /// The state byte, for generated code: a set bit among the lowest two asks the wave to stop.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn flag(&self) -> &AtomicU8 {
        static NEVER: AtomicU8 = AtomicU8::new(0);
        if self.has(DEAF) { &NEVER } else { &self.wish.state }
    }

    #[inline(always)]
    pub(crate) fn interrupts(&self) -> bool {
        // ORDERING: only a hint; whoever acts on it reads `command` with acquire.
        self.wish.state.load(Ordering::Relaxed) & (PAUSE | ABORT) != 0
    }

    fn has(&self, bit: u8) -> bool {
        self.wish.state.load(Ordering::Relaxed) & bit != 0
    }

    /// Whether the wave has to stop behind an instruction; counts it if instructions are counted and it is one with an
    /// effect.
    pub(crate) fn is_over(&self, has_effect: bool) -> bool {
        if has_effect && self.has(COUNTING) { self.count() } else { !self.has(DEAF) && self.interrupts() }
    }

    /// Counts one instruction; whether the wave has to stop behind it.
    fn count(&self) -> bool {
        if self.wish.left.fetch_sub(1, Ordering::Relaxed) > 1 {
            return self.interrupts();
        }
        // A command given meanwhile stays.
        let _ = self.wish.state.compare_exchange(COUNTING, PAUSE, Ordering::AcqRel, Ordering::Relaxed);
        true
    }
}

/// Why `run_wave` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaveStop {
    Ended,
    Barrier,
    /// Its share of steps is used up, or it gave way.
    Quantum,
    /// The control says something else than run.
    Interrupted,
    /// `Wave::cause` is set.
    Exception,
}

/// Code a worker has at hand: the kernel's program and those of other entries it jumped to.
pub(crate) struct Code<'a> {
    pub cache: &'a Cache,
    pub level: Level,
    pub shape: Shape,
    pub programs: Vec<Arc<Program>>,
    pub hot: crate::env::Hot,
    pub engine: Engine,
}

impl Code<'_> {
    /// Where `pc` is: which program, predecoded if none at hand has it, and which of its steps.
    pub(crate) fn locate(&mut self, env: &Env<'_>, pc: u64, hint: usize) -> (usize, usize) {
        if let Some(main) = self.programs.first() {
            if main.starts_at(hint, pc) {
                return (0, hint);
            }
            if main.entry.0 == pc {
                return (0, main.entry.1);
            }
        }
        let known = self.programs.iter().enumerate().find_map(|(k, p)| Some((k, p.index_of(pc)?)));
        known.unwrap_or_else(|| {
            let program = self.cache.get(env.map, self.level, self.shape, pc);
            let index = program.index_of(pc & !3).unwrap_or(program.steps.len() - 1);
            self.programs.push(program);
            (self.programs.len() - 1, index)
        })
    }
}

/// Executes the steps of one instruction, which are a program's that was predecoded for the level in use.
pub(crate) fn execute(w: &mut Wave, env: &mut Env<'_>, steps: &[Step]) -> Flow {
    for s in steps {
        // SAFETY: programs get their handlers from the tables for a level that this CPU has (`Level::current`).
        let flow = unsafe { (s.run)(w, env, s) };
        if flow != Flow::Next {
            return flow;
        }
    }
    Flow::Next
}

/// Runs `w` for about `budget` steps.
pub(crate) fn run_wave(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    if control.interrupts() {
        return WaveStop::Interrupted;
    }
    if control.has(COUNTING) {
        return run_counting(w, env, code, control, budget);
    }
    let before = env.executed;
    let stop = run_with_engine(w, env, code, control, budget);
    if let Some(program) = code.programs.first() {
        program.add_heat(env.executed - before);
    }
    stop
}

fn run_with_engine(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    #[cfg(target_arch = "x86_64")]
    if code.programs.first().is_some_and(|p| code.engine.compiles(p.heat()))
        && let Some(stop) = crate::jit::run(w, env, code, control, budget)
    {
        return stop;
    }
    interpret_wave(w, env, code, control, budget)
}

/// Runs `w` for about `budget` steps in the interpreter.
pub(crate) fn interpret_wave(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    if control.has(DEAF) {
        return run_heeding::<false>(w, env, code, control, budget);
    }
    run_heeding::<true>(w, env, code, control, budget)
}

/// Runs `w` looking at the control behind every instruction.
fn run_counting(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    let mut left = budget;
    loop {
        let (program, mut ip) = code.locate(env, w.pc, w.hint);
        let steps = &code.programs[program].steps[..];
        loop {
            let s = &steps[ip];
            // SAFETY: programs get their handlers from the tables for a level that this CPU has (`Level::current`).
            let flow = unsafe { (s.run)(w, env, s) };
            if flow == Flow::Next && steps[ip + 1].pc == s.pc {
                // The other half of one instruction.
                ip += 1;
                continue;
            }
            env.executed += 1;
            let over = control.count();
            let next = match flow {
                Flow::Next => ip + 1,
                Flow::Jump => s.target as usize,
                Flow::Indirect if over => return WaveStop::Interrupted,
                Flow::Indirect => break,
                Flow::Stop => {
                    w.pc = s.pc;
                    return WaveStop::Exception;
                }
                Flow::Barrier | Flow::Yield | Flow::End => ip + 1,
            };
            w.pc = if next == ip + 1 { s.next_pc() } else { steps[next].pc };
            w.hint = next;
            match flow {
                Flow::Barrier => return WaveStop::Barrier,
                Flow::End => return WaveStop::Ended,
                _ if over => return WaveStop::Interrupted,
                Flow::Yield => return WaveStop::Quantum,
                _ => {}
            }
            left = left.saturating_sub(1);
            if left == 0 {
                return WaveStop::Quantum;
            }
            ip = next;
        }
    }
}

/// Runs `w` looking at the control on backward branches, or not at all.
fn run_heeding<const HEED: bool>(
    w: &mut Wave,
    env: &mut Env<'_>,
    code: &mut Code<'_>,
    control: &Control,
    budget: u32,
) -> WaveStop {
    let mut left = i64::from(budget);
    loop {
        let (program, start) = code.locate(env, w.pc, w.hint);
        let steps = &code.programs[program].steps[..];
        let mut ip = start;
        let mut from = start;
        let stop = loop {
            let s = &steps[ip];
            // SAFETY: handlers come from the tables for `code.level`, which is at most what this CPU was found to have.
            let flow = unsafe { (s.run)(w, env, s) };
            if flow == Flow::Next {
                ip += 1;
                continue;
            }
            env.executed += u64::from(s.ordinal - steps[from].ordinal) + 1;
            left -= (ip - from) as i64 + 1;
            match flow {
                Flow::Jump => {
                    let target = s.target as usize;
                    if target <= ip && (left < 0 || HEED && control.interrupts()) {
                        w.pc = steps[target].pc;
                        w.hint = target;
                        break if left < 0 { WaveStop::Quantum } else { WaveStop::Interrupted };
                    }
                    ip = target;
                    from = target;
                    continue;
                }
                Flow::Indirect if left >= 0 && !control.interrupts() => break WaveStop::Ended,
                Flow::Indirect => break if left < 0 { WaveStop::Quantum } else { WaveStop::Interrupted },
                Flow::Stop => {
                    w.pc = s.pc;
                    return WaveStop::Exception;
                }
                _ => {
                    w.pc = s.next_pc();
                    w.hint = ip + 1;
                    return match flow {
                        Flow::Barrier => WaveStop::Barrier,
                        Flow::End => WaveStop::Ended,
                        _ => WaveStop::Quantum,
                    };
                }
            }
        };
        // `Ended` out of the inner loop means an indirect jump: find its program and go on.
        if stop != WaveStop::Ended {
            return stop;
        }
    }
}
