// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that looks for programs' generated code in files, and generates it, while waves are interpreted.
//!
//! INVARIANT: there is at most one such thread for a cache of programs. It starts with the address space, since a worker would take
//! longer to start it than to run a short kernel, or with the first job; it ends once the cache and its programs are gone.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

#[cfg(target_arch = "x86_64")]
use crate::jit;
use crate::store::Store;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// What programs of one cache share for their generated code.
#[derive(Debug, Default)]
pub(crate) struct Compiler {
    /// Where it is kept from process to process.
    pub store: Option<Arc<Store>>,
    /// None if there is no thread to be had.
    jobs: OnceLock<Option<Sender<Job>>>,
}

impl Compiler {
    pub(crate) fn with_store(store: Option<Arc<Store>>) -> Compiler {
        Compiler { store, jobs: OnceLock::new() }
    }

    /// Starts the thread.
    pub(crate) fn start(&self) -> Option<&Sender<Job>> {
        let jobs = self.jobs.get_or_init(|| {
            let (send, receive) = channel::<Job>();
            let work = move || {
                #[cfg(target_arch = "x86_64")]
                jit::give_way();
                receive.into_iter().for_each(|job| job());
            };
            let started = std::thread::Builder::new().name("compiler".to_owned()).spawn(work);
            started.is_ok().then_some(send)
        });
        jobs.as_ref()
    }

    /// Has the thread do `job` behind those before. Nothing waits for it, and it may never be done.
    pub(crate) fn ask(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(jobs) = self.start() {
            // It fails only after a panic in a job.
            let _ = jobs.send(Box::new(job));
        }
    }
}
