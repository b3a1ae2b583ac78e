// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime's handle: the process's one context, and its agents.

use std::fmt;
use std::sync::Arc;

use kfd::topology::Node;

use crate::agent::Agent;
use crate::context::agent::agents::link_matrix;
use crate::context::agent::info::AgentInfo;
use crate::context::agent::links::LinkMatrix;
use crate::context::agent::select::LeftOut;
use crate::context::error::AllocError;
use crate::context::hostcall::output::{OUTPUT, Printed, start_writing};
use crate::context::{Context, Submitter};

/// A handle on the process's runtime. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    context: Arc<Context>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("transport", &self.context.transport_name())
            .field("agents", &self.agents())
            .finish()
    }
}

impl Runtime {
    pub(crate) fn from_context(context: &Arc<Context>) -> Self {
        Runtime { context: Arc::clone(context) }
    }

    /// Its context.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// `kfd` or `soft:` and the targets. A copy that was restored on another device has that one's name.
    pub fn transport_name(&self) -> Arc<str> {
        self.context.transport_name()
    }

    /// What executes waves on a software device, as `key value` lines: `engine`, `cpu` (the vector extension in use), `cpu_best`
    /// and `workers`; `None` on hardware.
    ///
    /// # Errors
    /// [`AllocError::Lost`].
    pub fn engine(&self) -> Result<Option<String>, AllocError> {
        let pass = self.context.gate.enter()?;
        Ok(self.context.device_or_lost(&pass)?.transport().engine())
    }

    /// What this process has had a software device do so far, as `key value` lines: `dispatches` that were begun, `waves` that have
    /// ended, `instructions` that they have executed, and `copied_bytes` of copy engines; `None` on hardware.
    ///
    /// # Errors
    /// [`AllocError::Lost`].
    pub fn counts(&self) -> Result<Option<String>, AllocError> {
        let pass = self.context.gate.enter()?;
        Ok(self.context.device_or_lost(&pass)?.transport().counts())
    }

    /// The agents, in the order of the list that selected them.
    pub fn agents(&self) -> Vec<Agent> {
        let agent =
            |info: &Arc<AgentInfo>| Agent { context: Arc::clone(&self.context), info: Arc::clone(info) };
        self.context.agents.iter().map(agent).collect()
    }

    /// The agent at `index`.
    pub fn agent(&self, index: usize) -> Option<Agent> {
        let info = self.context.agents.get(index)?;
        Some(Agent { context: Arc::clone(&self.context), info: Arc::clone(info) })
    }

    /// The GPUs that were here when the runtime was opened and are none of its agents, with the reason.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.context.left_out
    }

    /// Has threads held back from now on that use device memory by pointers while the process is locked, checkpointed or restored:
    /// for programs that cannot hold a [`HostGuard`](crate::HostGuard) meanwhile, since they were written against another runtime. What
    /// they touch is there when they go on. It takes the process's handler of SIGSEGV, which hands other faults on to the one
    /// before, at each lock; a thread that blocks the signal is not held back, nor is a system call, which fails with EFAULT.
    pub fn hold_pointers(&self) {
        self.context.guard.enable();
    }

    /// Has what kernels print (printf, and what is made of it) be kept for [`Runtime::take_prints`] from now on, or, as at first, be
    /// written to the process's standard output and error. Text that is kept already goes the new way. No more than 16 MiB are kept;
    /// what was dropped is said where it would have been.
    ///
    /// Text that is kept is there when the kernel that printed it has completed. A thread writes the other, and the end of the process
    /// waits for it, a second at most without progress: a reader that does not read holds nothing up.
    pub fn keep_prints(&self, keep: bool) {
        OUTPUT.keep(keep);
        if !keep {
            start_writing();
        }
    }

    /// Takes what kernels have printed since the last call, in the order in which they did.
    pub fn take_prints(&self) -> Vec<Printed> {
        OUTPUT.take()
    }

    /// Has a layer in front of the runtime know of locks; the first one that is set stays.
    pub fn set_submitter(&self, submitter: impl Submitter + 'static) {
        if self.context.submitter.set(Box::new(submitter)).is_err() {
            tracing::warn!(target: "checkpoint", "there is a submitter already");
        }
    }

    /// The processors of the host, as the topology had them when the runtime was opened.
    pub fn hosts(&self) -> &[Node] {
        &self.context.hosts
    }

    /// Who reaches whose memory, on the GPUs the agents have now.
    pub fn links(&self) -> LinkMatrix {
        link_matrix(&self.context)
    }
}
