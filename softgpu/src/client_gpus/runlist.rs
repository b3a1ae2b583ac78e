// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queues of a process on one GPU, and which of them are on the hardware.
//!
//! A chip has places for so many compute queues (`num_cp_queues`). Those that find none wait, and every quantum the queue that
//! has been on the hardware longest is preempted for the one that has waited longest (`pm_calc_rlib_size` in
//! `kfd_packet_manager.c` calls such a list over-subscribed; the firmware takes turns by itself). Their waves go through
//! their save areas as in any other preemption. Copy queues have places of their own.
//!
//! INVARIANT: a queue is in one place: on the hardware, waiting, or held by the one thread that has the turn. The turn is never
//! held while interrupts are raised, and no caller waits for a quantum.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use parking_lot::{Condvar, Mutex};

use super::gpu::Gpu;
use super::queue::Queue;
use crate::hardware::{HwQueue, HwQueueKind, Mqd};
use crate::misbehaviour::Misbehaviour;

/// How long a queue stays on the hardware while others wait.
const QUANTUM: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
struct State {
    on_hardware: HashMap<u32, Queue>,
    /// The compute queues among them, the one that came first in front.
    turns: VecDeque<u32>,
    /// The compute queues that found no place.
    waiting: VecDeque<(HwQueue, Box<Mqd>)>,
    closing: bool,
}

#[derive(Debug)]
struct Shared {
    gpu: Arc<Gpu>,
    /// Held while a queue is in no list.
    turn: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

/// The queues of a process on one GPU. Dropping it abandons what they run.
#[derive(Debug)]
pub(super) struct Runlist {
    shared: Arc<Shared>,
    scheduler: Mutex<Option<JoinHandle<()>>>,
}

impl Runlist {
    pub(super) fn new(gpu: Arc<Gpu>) -> Self {
        let shared = Shared { gpu, turn: Mutex::default(), state: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), scheduler: Mutex::default() }
    }

    /// The GPU.
    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.shared.gpu
    }

    /// Puts a queue on the hardware, or lets it wait for a place.
    ///
    /// # Errors
    /// `EBUSY` when its id is there already; as [`Queue::new`]; `ENOMEM` when no thread can be had that takes turns.
    pub(super) fn start(&self, queue: &HwQueue, mqd: &Mqd) -> Result<(), Errno> {
        let _turn = self.shared.turn.lock();
        let mut state = self.shared.state.lock();
        let waits = |state: &State| state.waiting.iter().any(|(other, _)| other.id == queue.id);
        if state.on_hardware.contains_key(&queue.id) || waits(&state) {
            return Err(Errno::EBUSY);
        }
        if Misbehaviour::ManyQueues.is_on() && state.on_hardware.len() >= 4 {
            return Err(Errno::ENOMEM);
        }
        if queue.kind != HwQueueKind::Sdma && state.turns.len() >= self.shared.gpu.chip.compute_queues {
            self.schedule()?;
            state.waiting.push_back((*queue, Box::new(mqd.clone())));
            self.shared.changed.notify_all();
            return Ok(());
        }
        self.shared.put_on(&mut state, *queue, mqd)
    }

    /// Takes a queue off the hardware and saves it. Of an id that is not there, `None`.
    ///
    /// # Errors
    /// As [`Queue::save`]; the queue is lost.
    pub(super) fn stop(&self, id: u32) -> Result<Option<Box<Mqd>>, Errno> {
        let _turn = self.shared.turn.lock();
        match self.shared.take(id) {
            Some(Taken::Waiting(mqd)) => Ok(Some(mqd)),
            Some(Taken::OnHardware(queue)) => {
                let saved = queue.save();
                self.shared.fill();
                saved.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Abandons a queue.
    pub(super) fn destroy(&self, id: u32) {
        let _turn = self.shared.turn.lock();
        if let Some(Taken::OnHardware(queue)) = self.shared.take(id) {
            drop(queue);
            self.shared.fill();
        }
    }

    /// Starts the thread that takes turns, at the first queue that has to wait.
    fn schedule(&self) -> Result<(), Errno> {
        let mut scheduler = self.scheduler.lock();
        if scheduler.is_none() {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("runlist".to_owned());
            *scheduler = Some(thread.spawn(move || shared.take_turns()).map_err(|_| Errno::ENOMEM)?);
        }
        Ok(())
    }
}

impl Drop for Runlist {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.scheduler.lock().take()
            && thread.join().is_err()
        {
            tracing::error!(target: "processor", gpu = self.shared.gpu.index, "runlist thread panicked");
        }
        let _turn = self.shared.turn.lock();
        let queues = std::mem::take(&mut *self.shared.state.lock());
        drop(queues);
    }
}

/// Where a queue was.
enum Taken {
    OnHardware(Queue),
    Waiting(Box<Mqd>),
}

impl Shared {
    fn take(&self, id: u32) -> Option<Taken> {
        let mut state = self.state.lock();
        if let Some(queue) = state.on_hardware.remove(&id) {
            state.turns.retain(|&other| other != id);
            return Some(Taken::OnHardware(queue));
        }
        let at = state.waiting.iter().position(|(queue, _)| queue.id == id)?;
        state.waiting.remove(at).map(|(_, mqd)| Taken::Waiting(mqd))
    }

    fn put_on(&self, state: &mut State, queue: HwQueue, mqd: &Mqd) -> Result<(), Errno> {
        let started = Queue::new(Arc::clone(&self.gpu), queue, mqd)?;
        state.on_hardware.insert(queue.id, started);
        if queue.kind != HwQueueKind::Sdma {
            state.turns.push_back(queue.id);
        }
        Ok(())
    }

    /// Gives free places to the queues that wait. One that cannot be put on the hardware waits on behind the others: what it
    /// needs (memory, a thread) may be there later, and the driver can still stop or destroy it.
    fn fill(&self) {
        let mut state = self.state.lock();
        for _ in 0..state.waiting.len() {
            if state.turns.len() >= self.gpu.chip.compute_queues {
                return;
            }
            let Some((queue, mqd)) = state.waiting.pop_front() else { return };
            if let Err(errno) = self.put_on(&mut state, queue, &mqd) {
                tracing::warn!(target: "processor", queue = queue.id, %errno, "a queue gets no turn");
                state.waiting.push_back((queue, mqd));
            }
        }
    }

    fn take_turns(&self) {
        loop {
            {
                let mut state = self.state.lock();
                while state.waiting.is_empty() && !state.closing {
                    self.changed.wait(&mut state);
                }
                // Ends early only to close.
                if !state.closing {
                    let _ = self.changed.wait_while_for(&mut state, |state| !state.closing, QUANTUM);
                }
                if state.closing {
                    return;
                }
            }
            if Misbehaviour::OverSubscribed.is_on() {
                continue;
            }
            let hangs = {
                let _turn = self.turn.lock();
                self.rotate().is_err()
            };
            if hangs && let Some(interrupts) = self.gpu.interrupts() {
                interrupts.hang(self.gpu.index);
            }
        }
    }

    /// Preempts the queue that came first, if another one waits.
    fn rotate(&self) -> Result<(), Errno> {
        let (queue, config) = {
            let mut state = self.state.lock();
            if state.waiting.is_empty() {
                return Ok(());
            }
            let Some(id) = state.turns.pop_front() else {
                drop(state);
                self.fill();
                return Ok(());
            };
            let Some(queue) = state.on_hardware.remove(&id) else { return Ok(()) };
            let config = *queue.config();
            (queue, config)
        };
        let saved = queue.save();
        if let Ok(mqd) = &saved {
            // Behind those that wait, and before any that comes later.
            self.state.lock().waiting.push_back((config, mqd.clone()));
        }
        self.fill();
        saved.map(drop)
    }
}
