// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hardware queue: one thread, a wish that the driver states, and the context that lives between two runs.
//!
//! Invariant: the context is in the queue's state exactly while the thread does not touch the client's memory
//! ("off the hardware"). The driver waits for that, the thread never waits for the driver.
//!
//! ```text
//!            start              stop: pause waves, wake the thread
//!   off ───────────────► on ───────────────────────────────────────► off (context back)
//!    ▲                   │ exception
//!    └── halted for ever ◄──┘          destroy: abort waves, join the thread
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use queues::aql::ExceptionCode;
use rustix::io::Errno;
use softgpu_waves::{Command, Control};

use super::gpu::Gpu;
use super::raised::Raised;
use super::save;
use super::session::{Context, Exit, Session};
use crate::hardware::{HwQueue, SavedWaves};

/// What the driver wants of a queue.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Run(HwQueue),
    Stop,
    Destroy,
}

#[derive(Debug)]
struct State {
    wish: Wish,
    /// As last started; names the save area.
    config: HwQueue,
    /// `None` while the thread has it.
    context: Option<Context>,
    halted: Option<Raised>,
}

/// What the driver's side and the queue's thread share.
#[derive(Debug)]
pub(super) struct Core {
    /// The GPU it belongs to.
    pub(super) gpu: Arc<Gpu>,
    /// Process-wide queue id.
    pub(super) id: u32,
    /// Seen by running waves.
    pub(super) control: Control,
    /// Whether the wish is to run; what the thread looks at between packets.
    running: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Core {
    /// Whether the thread must get off the hardware.
    pub(super) fn must_leave(&self) -> bool {
        !self.running.load(Ordering::SeqCst)
    }

    fn set(&self, state: &mut State, wish: Wish) {
        state.wish = wish;
        match wish {
            Wish::Run(_) => self.control.set(Command::Run),
            Wish::Stop => self.control.pause(),
            Wish::Destroy => self.control.abort(),
        }
        self.running.store(matches!(wish, Wish::Run(_)), Ordering::SeqCst);
        self.changed.notify_all();
        if self.must_leave() {
            // It may sleep on a doorbell or a signal.
            self.gpu.doorbells.wake_all();
            self.gpu.bell.strike();
        }
    }

    /// One stay on the hardware. A defect of ours costs this queue, not the process.
    fn stay(&self, config: HwQueue, context: &mut Context) -> Exit {
        let stay = std::panic::AssertUnwindSafe(|| Session::new(self, config, context).run());
        std::panic::catch_unwind(stay).unwrap_or_else(|_| {
            tracing::error!(target: "processor", queue = self.id, "command processor panicked");
            Exit::Raised(Box::new(Raised::packet(ExceptionCode::PreemptionError)))
        })
    }

    /// The thread: on the hardware whenever the driver wishes it, off it in between.
    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            let (config, mut context) = loop {
                match state.wish {
                    Wish::Destroy => return,
                    Wish::Run(config) if state.halted.is_none() => {
                        if let Some(context) = state.context.take() {
                            break (config, context);
                        }
                        return;
                    }
                    Wish::Run(_) | Wish::Stop => self.changed.wait(&mut state),
                }
            };
            drop(state);
            let exit = self.stay(config, &mut context);
            let mut state = self.state.lock();
            state.context = Some(context);
            if let Exit::Raised(raised) = exit {
                // Off the hardware first: the driver may stop or destroy this queue from within the interrupt.
                let report = Raised { waves: Vec::new(), ..*raised };
                state.halted = Some(*raised);
                drop(state);
                self.changed.notify_all();
                report.report(&self.gpu, self.id);
            } else {
                self.changed.notify_all();
            }
        }
    }
}

/// The driver's side of a queue. Dropping it destroys the queue.
#[derive(Debug)]
pub(super) struct Queue {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    /// Makes a queue and puts it on the hardware at packet 0.
    ///
    /// # Errors
    /// `ENOMEM` when no thread can be had.
    pub(super) fn new(gpu: Arc<Gpu>, config: HwQueue) -> Result<Self, Errno> {
        // The slot may hold what an earlier queue rang.
        gpu.doorbells.reset(config.doorbell_offset);
        let state = State { wish: Wish::Stop, config, context: Some(Context::default()), halted: None };
        let core = Arc::new(Core {
            gpu,
            id: config.id,
            control: Control::new(),
            running: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let thread = std::thread::Builder::new()
            .name(format!("queue {}", config.id))
            .spawn({
                let core = Arc::clone(&core);
                move || core.work()
            })
            .map_err(|_| Errno::NOMEM)?;
        let queue = Self { core, thread: Some(thread) };
        queue.start(config);
        Ok(queue)
    }

    /// Puts the queue (back) on the hardware, where it left off. A halted queue stays halted.
    pub(super) fn start(&self, config: HwQueue) {
        self.stop();
        let mut state = self.core.state.lock();
        state.config = config;
        self.core.set(&mut state, Wish::Run(config));
    }

    /// Takes the queue off the hardware and waits until it is off.
    pub(super) fn stop(&self) {
        self.leave(Wish::Stop);
    }

    /// Takes the queue off the hardware for good: what it was running is abandoned.
    pub(super) fn destroy(&self) {
        self.leave(Wish::Destroy);
    }

    fn leave(&self, wish: Wish) {
        let mut state = self.core.state.lock();
        self.core.set(&mut state, wish);
        while state.context.is_none() && !self.is_current_thread() {
            self.core.changed.wait(&mut state);
        }
    }

    /// Writes what the stopped queue holds into its save area.
    pub(super) fn save(&self) -> SavedWaves {
        let state = self.core.state.lock();
        let waves = match (&state.halted, &state.context) {
            (Some(raised), _) => raised.waves.clone(),
            (None, Some(context)) => context.waves(),
            (None, None) => Vec::new(),
        };
        save::save(&self.core.gpu.vm, &state.config, &waves)
    }

    fn is_current_thread(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.destroy();
        if self.is_current_thread() {
            // Destroyed from within its own interrupt: it is off the hardware, and ends when the interrupt returns.
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(target: "processor", queue = self.core.id, "queue thread panicked");
        }
    }
}
