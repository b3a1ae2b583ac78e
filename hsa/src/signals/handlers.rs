// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of the program's that are called when a signal meets a condition, all by one thread.
//!
//! INVARIANT: no two of them run at once, and none runs under a lock of this library.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{OnceLock, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::Mutex;
use stasis::{Condition, WaitMode};

use super::{Signal, wait};
use crate::abi::declared::*;
use crate::abi::{Data, ERROR, INVALID_ARGUMENT, INVALID_SIGNAL, OUT_OF_RESOURCES, Outcome, export};
use crate::instance::{Instance, instance};
use crate::memory::status_of;

type Handler = unsafe extern "C" fn(hsa_signal_value_t, *mut c_void) -> bool;
type Function = unsafe extern "C" fn(*mut c_void);

/// TIMEOUT: how long `hsa_shut_down` waits for a function of the program's that is being called.
const LAST_CALL: Duration = Duration::from_secs(5);

/// What the thread is to do.
enum Task {
    Watch {
        signal: Signal,
        condition: Condition,
        handler: Handler,
        data: Data,
    },
    Call {
        function: Function,
        data: Data,
    },
    Run(Box<dyn FnOnce() + Send>),
    /// Watch nothing more, and say so.
    Forget(mpsc::Sender<()>),
}

/// What is to be called, and the signal that wakes the thread for it.
#[derive(Default)]
pub struct Handlers {
    pending: Mutex<Vec<Task>>,
    wake: OnceLock<Signal>,
    thread: OnceLock<ThreadId>,
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handlers").field("pending", &self.pending.lock().len()).finish_non_exhaustive()
    }
}

impl Handlers {
    fn add(&self, instance: &'static Instance, task: Task) -> Outcome {
        self.pending.lock().push(task);
        if self.wake.get().is_none() {
            self.start(instance)?;
        }
        if let Some(wake) = self.wake.get() {
            wake.of_runtime().add(1).map_err(|_| ERROR)?;
        }
        Ok(())
    }

    /// Has the thread run a closure of this library's.
    pub fn run(&self, instance: &'static Instance, closure: impl FnOnce() + Send + 'static) -> Outcome {
        self.add(instance, Task::Run(Box::new(closure)))
    }

    fn start(&self, instance: &'static Instance) -> Outcome {
        let signal = stasis::Signal::new(&instance.runtime, 0).map_err(status_of)?;
        let signal = Signal::new(signal);
        if self.wake.set(signal.clone()).is_ok() {
            let spawned = std::thread::Builder::new()
                .name("stasis-hsa-events".to_owned())
                .spawn(move || watch(instance, &signal));
            spawned.map_err(|_| OUT_OF_RESOURCES)?;
        }
        Ok(())
    }

    /// Forgets all that is watched. When it returns no function of the program's is being called, but the one that calls this.
    pub fn clear(&self) {
        let mut pending = self.pending.lock();
        pending.clear();
        let Some(wake) = self.wake.get() else { return };
        let (told, forgotten) = mpsc::channel();
        pending.push(Task::Forget(told));
        drop(pending);
        let is_own = self.thread.get() == Some(&std::thread::current().id());
        if wake.of_runtime().add(1).is_ok() && !is_own {
            let _ = forgotten.recv_timeout(LAST_CALL);
        }
    }
}

/// Something watched.
struct Watched {
    signal: Signal,
    condition: Condition,
    handler: Handler,
    data: Data,
}

impl Watched {
    /// Calls the function if the condition is met; whether it is to be watched on.
    fn look(&self) -> bool {
        let value = self.signal.slot().value().load(Ordering::Acquire);
        // SAFETY: the program's function, with what it gave for it.
        !self.condition.met(value) || unsafe { (self.handler)(value, self.data.0) }
    }
}

/// The thread.
fn watch(instance: &'static Instance, wake: &Signal) {
    let handlers = instance.signals.handlers();
    let _ = handlers.thread.set(std::thread::current().id());
    let mut watched: Vec<Watched> = Vec::new();
    loop {
        let seen = wake.slot().value().load(Ordering::Acquire);
        let tasks = std::mem::take(&mut *handlers.pending.lock());
        for task in tasks {
            match task {
                Task::Watch { signal, condition, handler, data } => {
                    watched.push(Watched { signal, condition, handler, data });
                }
                // SAFETY: the program's function, with what it gave for it.
                Task::Call { function, data } => unsafe { function(data.0) },
                Task::Run(closure) => closure(),
                Task::Forget(told) => {
                    watched.clear();
                    let _ = told.send(());
                }
            }
        }
        watched.retain(Watched::look);
        let conditions = watched.iter().map(|watched| (watched.signal.clone(), watched.condition));
        let all: Vec<_> = [(wake.clone(), Condition::NotEqual(seen))].into_iter().chain(conditions).collect();
        wait::wait_any(instance, &all, None, WaitMode::Auto);
    }
}

export! {
    /// Has a function called when a signal meets a condition, again and again while it says so.
    fn hsa_amd_signal_async_handler(
        signal: hsa_signal_t,
        cond: hsa_signal_condition_t,
        value: hsa_signal_value_t,
        handler: hsa_amd_signal_handler,
        arg: *mut c_void,
    ) {
        let instance = instance()?;
        let handler = handler.ok_or(INVALID_ARGUMENT)?;
        let signal = instance.signals.get(signal.handle).ok_or(INVALID_SIGNAL)?;
        let condition = wait::condition(cond, value).ok_or(INVALID_ARGUMENT)?;
        let task = Task::Watch { signal, condition, handler, data: Data(arg) };
        instance.signals.handlers.add(instance, task)
    }

    /// Has a function called once by the thread of handlers.
    fn hsa_amd_async_function(callback: Option<Function>, arg: *mut c_void) {
        let instance = instance()?;
        let function = callback.ok_or(INVALID_ARGUMENT)?;
        instance.signals.handlers.add(instance, Task::Call { function, data: Data(arg) })
    }
}
