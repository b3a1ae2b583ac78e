// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same order to several agents at once: the processes of a session wait for each other, so nobody may be told after
//! another has answered.
//!
//! INVARIANT: when a function here returns every agent has answered or is given up on: no order is under way.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use stasis::checkpoint::{
    Admission, CallError, CheckpointOrder, CheckpointReport, Done, PreCopyOrder, PreCopyReport, Request,
    RestoreReport, State, call, call_with,
};

use super::resume::resume;

/// How often orders that have become needless are cancelled, until they have given up: one may not have begun yet.
const NAG: Duration = Duration::from_millis(100);
/// TIMEOUT: how long an agent may take to hear of a cancellation.
const CANCEL: Duration = Duration::from_secs(5);

/// A process that has let go of its device.
#[derive(Debug)]
pub(super) struct Evacuated {
    pub report: CheckpointReport,
    /// What its device hangs on, which it cannot hold itself meanwhile.
    pub files: Vec<OwnedFd>,
}

/// A process to resume.
#[derive(Clone, Debug)]
pub(super) struct Return {
    pub pid: i32,
    /// What it gave this program to hold.
    pub files: Arc<[OwnedFd]>,
    /// Where its image is now, if it was moved.
    pub directory: Option<PathBuf>,
    pub admission: Option<Admission>,
}

/// What the agents of `orders` answered, in the same order. As soon as one fails the others are cancelled.
pub(super) fn checkpoint_all(
    orders: &[(i32, CheckpointOrder)],
    patience: Duration,
) -> Vec<Result<Evacuated>> {
    all(orders, |pid, order| order_checkpoint(pid, order, patience))
}

/// Has processes copy their contents while they run, as [`checkpoint_all`].
pub(super) fn pre_copy_all(orders: &[(i32, PreCopyOrder)], patience: Duration) -> Vec<Result<PreCopyReport>> {
    all(orders, |pid, order| match call_with(pid, &Request::PreCopy(order.clone()), &[], patience)? {
        (State::Running, Done::PreCopied(report), _) => Ok(report),
        (state, ..) => Err(out_of_turn(pid, state)),
    })
}

/// What `send` answers for each order, all sent at the same time. As soon as one fails the others are cancelled.
fn all<O: Sync, T: Send>(orders: &[(i32, O)], send: impl Fn(i32, &O) -> Result<T> + Sync) -> Vec<Result<T>> {
    let mut answers: Vec<Option<Result<T>>> = orders.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let (answered, inbox) = channel();
        let mut has_failed = false;
        for (index, (pid, order)) in orders.iter().enumerate() {
            let (answered, send) = (answered.clone(), &send);
            let ordering = move || {
                // The receiver outlives this thread.
                let _ = answered.send((index, send(*pid, order)));
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, ordering) {
                answers[index] = Some(Err(no_thread(*pid, error)));
                has_failed = true;
            }
        }
        drop(answered);
        loop {
            match inbox.recv_timeout(NAG) {
                Ok((index, answer)) => {
                    has_failed |= answer.is_err();
                    answers[index] = Some(answer);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if has_failed {
                let waiting = orders.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
                for ((pid, _), _) in waiting {
                    // An agent that does not hear of it ends the session by its own limits.
                    let _ = call(*pid, &Request::Cancel, CANCEL);
                }
            }
        }
    });
    let unanswered = |pid: i32| anyhow!("The order to process {pid} was never carried out");
    orders.iter().zip(answers).map(|((pid, _), a)| a.unwrap_or_else(|| Err(unanswered(*pid)))).collect()
}

fn out_of_turn(pid: i32, state: State) -> Error {
    anyhow!("the agent of process {pid} answered out of turn: it is {state}")
}

fn no_thread(pid: i32, error: io::Error) -> Error {
    Error::new(error).context(format!("Cannot start a thread for the order to process {pid}"))
}

fn order_checkpoint(pid: i32, order: &CheckpointOrder, patience: Duration) -> Result<Evacuated> {
    match call_with(pid, &Request::Checkpoint(order.clone()), &[], patience)? {
        (State::Checkpointed, Done::Checkpointed(report), files) => Ok(Evacuated { report, files }),
        (state, ..) => Err(out_of_turn(pid, state)),
    }
}

/// The failure that the others follow from: one that does not only say that another gave the session up, or that it was
/// cancelled, as those are that have not answered when one fails.
pub(super) fn cause(failures: Vec<Error>) -> Option<Error> {
    // As `SessionError::GivenUp` and `SessionError::Stopped` begin; as `Stopped::Cancelled` does, wherever it struck.
    const FOLLOWERS: [&str; 2] = ["session was given up", "it was cancelled after"];
    let follows = |error: &Error| match error.downcast_ref() {
        Some(CallError::Refused { message, .. }) => FOLLOWERS.iter().any(|text| message.contains(text)),
        _ => false,
    };
    let mut failures = failures;
    let first = failures.iter().position(|error| !follows(error)).unwrap_or(0);
    (first < failures.len()).then(|| failures.swap_remove(first))
}

/// Has processes take their devices back, all at the same time: they meet again.
pub(super) fn resume_all(processes: &[Return], patience: Duration) -> Vec<Result<RestoreReport>> {
    if let [Return { pid, files, directory, admission }] = processes {
        return vec![resume(*pid, files, directory.clone(), admission.clone(), patience)];
    }
    thread::scope(|scope| {
        let order = |process: &Return| {
            let Return { pid, files, directory, admission } = process.clone();
            let order = move || resume(pid, &files, directory, admission, patience);
            (pid, thread::Builder::new().spawn_scoped(scope, order))
        };
        let orders: Vec<_> = processes.iter().map(order).collect();
        let answer = |(pid, thread): (i32, io::Result<thread::ScopedJoinHandle<'_, _>>)| {
            let joined = thread.map(thread::ScopedJoinHandle::join).map_err(|error| no_thread(pid, error))?;
            joined.unwrap_or_else(|_| Err(anyhow!("The order to process {pid} was never carried out")))
        };
        orders.into_iter().map(answer).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(pid: i32, message: &str) -> Error {
        CallError::Refused { pid, state: State::Running, message: message.to_owned() }.into()
    }

    #[test]
    fn cause_is_the_failure_that_blames_nobody_else() {
        let follower = || refused(1, "The session was given up: 2: no disk left");
        let found = cause(vec![follower(), refused(2, "no disk left")]).unwrap();
        assert!(found.to_string().contains("process 2"), "{found}");
        let cancelled = refused(3, "The checkpoint was given up: it was cancelled after 0 ms");
        let found = cause(vec![cancelled, follower(), refused(2, "no disk left")]).unwrap();
        assert!(found.to_string().contains("process 2"), "{found}");
        let found = cause(vec![follower()]).unwrap();
        assert!(found.to_string().contains("process 1"), "{found}");
        assert!(cause(Vec::new()).is_none());
    }

    #[test]
    fn nobody_is_waited_for_who_does_not_exist() {
        let order = CheckpointOrder::into_directory("/nowhere".into());
        let answers =
            checkpoint_all(&[(i32::MAX, order.clone()), (i32::MAX - 1, order)], Duration::from_secs(60));
        assert!(answers.iter().all(Result::is_err) && answers.len() == 2);
        let process = Return { pid: i32::MAX, files: Arc::default(), directory: None, admission: None };
        assert!(resume_all(&[process], Duration::from_secs(60))[0].is_err());
    }
}
