// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that look for programs' generated code in files, and generate it, while waves are interpreted.
//!
//! INVARIANT: a cache of programs has at most one of each kind. They start with the address space, since a worker would take
//! longer to start one than to run a short kernel, or with the first job; they end once the cache and its programs are gone.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use crate::priority;
use crate::store::Store;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// What programs of one cache share for their generated code.
#[derive(Debug, Default)]
pub(crate) struct Compiler {
    /// Where it is kept from process to process.
    pub store: Option<Arc<Store>>,
    /// Runs only where no other thread wants to.
    pub idle: Thread,
    /// Has the priority of a worker.
    pub prompt: Thread,
}

impl Compiler {
    pub(crate) fn with_store(store: Option<Arc<Store>>) -> Compiler {
        Compiler { store, idle: Thread { gives_way: true, ..Thread::default() }, prompt: Thread::default() }
    }

    /// Starts both threads.
    pub(crate) fn start(&self) {
        self.idle.start();
        self.prompt.start();
    }
}

/// A thread that does one job after the other.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    gives_way: bool,
    /// None if there is no thread to be had.
    jobs: OnceLock<Option<Sender<Job>>>,
}

impl Thread {
    fn start(&self) -> Option<&Sender<Job>> {
        let gives_way = self.gives_way;
        let jobs = self.jobs.get_or_init(|| {
            let (send, receive) = channel::<Job>();
            let work = move || {
                if gives_way {
                    priority::give_way();
                }
                receive.into_iter().for_each(|job| job());
            };
            let name = if gives_way { "compiler-idle" } else { "compiler" };
            let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
            started.is_ok().then_some(send)
        });
        jobs.as_ref()
    }

    /// Has the thread do `job` behind those before. Nothing waits for it, and an idle thread may never do it. `false` if there is no
    /// such thread.
    pub(crate) fn ask(&self, job: impl FnOnce() + Send + 'static) -> bool {
        // Sending fails only after a panic in a job.
        self.start().is_some_and(|jobs| jobs.send(Box::new(job)).is_ok())
    }
}
