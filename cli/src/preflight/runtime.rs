// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the runtimes inside say: state, objects, and what they would refuse themselves.

use std::time::Duration;

use stasis::checkpoint::contact::has_agent;
use stasis::checkpoint::{CallError, Done, Preempt, ProcessInfo, Request, State, call};

use super::finding::{Finding, Severity};
use super::scene::Scene;
use super::tree::{Process, Runtime};

/// TIMEOUT: an agent at work on a verb answers after it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the agent of every process of the tree; one without a runtime has none.
pub fn ask(tree: &mut [Process]) {
    for process in tree {
        if !has_agent(process.pid) {
            continue;
        }
        process.runtime = match call(process.pid, &Request::Info, PATIENCE) {
            Ok((_, Done::Info(info))) => Some(Runtime::Known(info)),
            Ok(_) => Some(Runtime::Silent("its agent answered out of turn".to_owned())),
            Err(CallError::NoAgent { .. }) => None,
            Err(error) => Some(Runtime::Silent(error.to_string())),
        };
    }
}

impl Process {
    /// What its runtime says.
    pub fn info(&self) -> Option<&ProcessInfo> {
        match &self.runtime {
            Some(Runtime::Known(info)) => Some(info),
            _ => None,
        }
    }
}

/// Judges every runtime of the tree.
pub fn judge(scene: &Scene<'_>, preempt: bool, found: &mut Vec<Finding>) {
    for process in scene.tree {
        match &process.runtime {
            None => {}
            Some(Runtime::Silent(why)) => found.push(
                Finding::new(Severity::Warning, process.pid, "runtime", "silent")
                    .why(why.as_str())
                    .remedy("the rest is judged as if it will close its device"),
            ),
            Some(Runtime::Known(info)) => one(process.pid, info, preempt, found),
        }
    }
}

fn one(pid: i32, info: &ProcessInfo, preempt: bool, found: &mut Vec<Finding>) {
    let finding = |severity, what: String| Finding::new(severity, pid, "runtime", what);
    if info.state != State::Running {
        let remedy = match info.state {
            State::Checkpointed => "stasis resume takes its device back",
            _ => "unlock it, or let whoever locked it go on",
        };
        let what = format!("{} already", info.state);
        found.push(
            finding(Severity::Refused, what).why("a checkpoint begins with a running process").remedy(remedy),
        );
    }
    if let Some(lost) = &info.lost {
        found.push(finding(Severity::Refused, "lost".to_owned()).why(lost.as_str()));
    }
    let Some(objects) = &info.objects else {
        let what = "at work on a checkpoint or restore".to_owned();
        found.push(finding(Severity::Warning, what).why("its objects cannot be looked at meanwhile"));
        return;
    };
    if objects.hidden_count > 0 {
        let what = format!("the owner of {} buffers without CPU mapping", objects.hidden_count);
        found.push(
            finding(Severity::Refused, what)
                .why(format!("the bytes of {} cannot be saved yet", objects.hidden.join(", ")))
                .remedy("allocate them host-visible"),
        );
    }
    for queue in &objects.queues {
        if let Some(fault) = &queue.fault {
            let what = format!("the owner of queue {}, which has failed", queue.queue);
            found.push(finding(Severity::Warning, what).why(fault.as_str()));
        }
    }
    if preempt && let Preempt::Unavailable { reason } = &objects.preempt {
        found.push(finding(Severity::Refused, "without preemption".to_owned()).why(reason.as_str()));
    }
}
