// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that speaks with controllers.
//!
//! INVARIANT: nothing here waits for the device, for a lock that is held during a verb, or for a controller: one that
//! connects and says nothing costs a descriptor for a while, and the state is told while any verb is at work.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kfd::linux::poll;
use nix::poll::{PollFd, PollFlags};
use stasis_protocol::State;

use super::shared::{Order, Outcome, Shared, Task, lower, raise};
use super::sharing::Sharing;
use crate::checkpoint::contact::follow;
use crate::checkpoint::inbox::{Inbox, Message};
use crate::checkpoint::info::ProcessInfo;
use crate::checkpoint::machine::CheckpointMachine;
use crate::checkpoint::message;
use crate::checkpoint::options::RestoreOptions;
use crate::checkpoint::protocol::{Done, MAX_MESSAGE, Reply, Request};
use crate::context::Context;

/// How often the listener looks whether its runtime is still there.
const LOOK: Duration = Duration::from_millis(200);
/// How often an order whose controller has gone is told to give up, until it has.
const NAG: Duration = Duration::from_millis(2);
/// How long a controller may take to say its order, once there is a connection to it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most controllers that may be connected without having said anything; more cost the oldest its place.
const MAX_SILENT: usize = 16;
/// Most orders to resume that may wait for the one at work.
const MAX_WAITING: usize = 16;
/// What an order to resume is called.
const RESUME: &str = "resume";

pub(super) struct Listener {
    runtime: Weak<Context>,
    inbox: Inbox,
    silent: Vec<Silent>,
    serving: Option<Serving>,
    /// Orders to resume that came while another was at work, the oldest first. Each is carried out on its own terms,
    /// unless the process runs by then.
    waiting: VecDeque<(RestoreOptions, Caller)>,
    sharing: Sharing,
    shared: Arc<Shared>,
}

/// The sender of an order.
struct Caller {
    /// Where the answer goes. An order left in the inbox has none.
    peer: Option<OwnedFd>,
    pid: Option<i32>,
}

/// A controller that there is a connection to and that has not spoken.
struct Silent {
    peer: OwnedFd,
    pid: Option<i32>,
    until: Instant,
    /// It asks for shared memory, and may ask again.
    asks: bool,
}

impl From<Silent> for Caller {
    /// One that has spoken.
    fn from(Silent { peer, pid, .. }: Silent) -> Self {
        Self { peer: Some(peer), pid }
    }
}

/// The controller whose order the worker has.
struct Serving {
    peer: Option<OwnedFd>,
    what: &'static str,
    since: Instant,
    /// Whether the order ends with its controller.
    needs_controller: bool,
    abandoned: Arc<AtomicBool>,
}

impl Serving {
    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

/// What the listener was woken for.
struct Woken {
    inbox: bool,
    finished: bool,
    gone: bool,
    speaking: Vec<usize>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Listener {
    pub fn new(runtime: Weak<Context>, inbox: Inbox, shared: Arc<Shared>) -> Self {
        Self {
            runtime,
            inbox,
            silent: Vec::new(),
            serving: None,
            waiting: VecDeque::new(),
            sharing: Sharing::default(),
            shared,
        }
    }

    pub fn run(mut self) {
        loop {
            let woken = self.wait();
            let Some(runtime) = self.runtime.upgrade() else { return };
            // Before an answer that may cost the silent ones their place: these have spoken.
            let speaking: Vec<_> =
                woken.speaking.into_iter().rev().map(|index| self.silent.swap_remove(index)).collect();
            if woken.finished {
                self.answer(&runtime);
            }
            self.cancel_abandoned(&runtime, woken.gone);
            speaking.into_iter().for_each(|controller| self.receive(&runtime, controller));
            if woken.inbox {
                self.read_inbox(&runtime);
            }
            let now = Instant::now();
            self.silent.retain(|controller| controller.until > now);
        }
    }

    fn wait(&self) -> Woken {
        let (inbox, finished) = (&self.inbox, &self.shared.finished);
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![readable(inbox.as_fd()), readable(finished.as_fd())];
        fds.extend(self.silent.iter().map(|controller| readable(controller.peer.as_fd())));
        let abandoned = self.serving.as_ref().is_some_and(Serving::is_abandoned);
        let needed = self.serving.as_ref().filter(|serving| serving.needs_controller && !abandoned);
        if let Some(peer) = needed.and_then(|serving| serving.peer.as_ref()) {
            // No events asked for: it is only to be told of the other end's end.
            fds.push(PollFd::new(peer.as_fd(), PollFlags::empty()));
        }
        let limit = if abandoned { NAG } else { LOOK };
        let polled = poll(&mut fds, Some(limit));
        let is_ready = |at: usize| polled.is_ok() && fds.get(at).is_some_and(|fd| fd.any().unwrap_or(true));
        let silent = self.silent.len();
        Woken {
            inbox: is_ready(0),
            finished: is_ready(1),
            gone: is_ready(2 + silent),
            speaking: (0..silent).filter(|&n| is_ready(2 + n)).collect(),
        }
    }

    /// Tells the controller what became of its order, and lets go of it. The next order that waits is handed over.
    fn answer(&mut self, runtime: &Context) {
        lower(&self.shared.finished);
        let Some(Outcome { done, files }) = self.shared.outcome.lock().take() else { return };
        if CheckpointMachine::of(runtime).state() == State::Checkpointed {
            // CRIU cannot dump one end of a connection. Who comes now has the time until CRIU does.
            self.silent.clear();
        }
        if let Some(peer) = self.serving.take().and_then(|serving| serving.peer) {
            reply(runtime, &peer, done, &files);
        }
        if let Some((options, from)) = self.waiting.pop_front() {
            self.submit(runtime, Task::Resume(options), from);
        }
    }

    /// Has an order that nobody wants any more give up; again and again, for it may be between two verbs.
    fn cancel_abandoned(&self, runtime: &Context, gone: bool) {
        let Some(serving) = &self.serving else { return };
        if gone {
            serving.abandoned.store(true, Ordering::Relaxed);
        }
        if serving.is_abandoned() {
            CheckpointMachine::of(runtime).cancel();
        }
    }

    fn read_inbox(&mut self, runtime: &Arc<Context>) {
        for message in self.inbox.take() {
            match message {
                Message::Invitation(name) => self.connect(&name, false),
                // It is asked again: CRIU cannot dump half of a connection, and a controller needs its place.
                Message::Question(name) => {
                    if !runtime.gate.is_closed() && self.silent.len() < MAX_SILENT {
                        self.connect(&name, true);
                    }
                }
                // The inbox takes a resume only. A process that can write to it could resume this one by other means; a checkpoint
                // by the inbox would stop it without a controller.
                Message::Order(Request::Resume { directory, admission }) => {
                    let options = RestoreOptions { directory, admission, ..RestoreOptions::default() };
                    self.submit(runtime, Task::Resume(options), Caller { peer: None, pid: None });
                }
                Message::Order(_) => {
                    tracing::warn!(target: "checkpoint", "an order that needs a controller was left without one");
                }
            }
        }
    }

    /// Connects to a controller of our own user, or root's.
    fn connect(&mut self, name: &str, asks: bool) {
        // A controller that has ended is not waiting for an answer; a restored copy finds none of the earlier ones.
        let Ok((peer, who)) = follow(name) else { return };
        if !who.is_trusted_by(nix::unistd::geteuid().as_raw()) {
            tracing::warn!(target: "checkpoint", uid = who.uid, "a foreign user's order was not taken");
            return;
        }
        if self.silent.len() >= MAX_SILENT {
            // The connection that has been silent for longest is closed: a controller sends its order at once.
            let oldest = (0..self.silent.len()).min_by_key(|&n| (!self.silent[n].asks, self.silent[n].until));
            oldest.map(|n| self.silent.swap_remove(n));
        }
        self.silent.push(Silent { peer, pid: who.pid, until: Instant::now() + PATIENCE, asks });
    }

    fn receive(&mut self, runtime: &Arc<Context>, controller: Silent) {
        let mut text = vec![0; MAX_MESSAGE];
        let Ok((length, files)) = message::receive(&controller.peer, &mut text) else {
            return;
        };
        let done = match serde_json::from_slice::<Request>(&text[..length]) {
            Err(error) => Err(format!("the order is not understood: {error}")),
            Ok(Request::Status) => Ok(self.status(runtime)),
            Ok(Request::Info) => Ok(Done::Info(Box::new(ProcessInfo::of(runtime)))),
            Ok(Request::Share { number }) => match u128::from_str_radix(&number, 16) {
                Ok(number) => return self.sharing.answer(runtime, number, controller.peer),
                Err(error) => Err(format!("{number:?} is no number of a name: {error}")),
            },
            Ok(Request::Cancel) => Ok(Done::Cancelled { was_at_work: self.cancel(runtime) }),
            Ok(Request::Checkpoint(order)) => {
                return self.submit(runtime, Task::Checkpoint(order), controller.into());
            }
            Ok(Request::PreCopy(order)) => {
                return self.submit(runtime, Task::PreCopy(order), controller.into());
            }
            Ok(Request::Resume { directory, admission }) => {
                let files = files.into();
                let options = RestoreOptions { directory, admission, files, ..RestoreOptions::default() };
                return self.submit(runtime, Task::Resume(options), controller.into());
            }
        };
        reply(runtime, &controller.peer, done, &[]);
    }

    fn status(&self, runtime: &Context) -> Done {
        Done::Status {
            runtimes: 1,
            activity: CheckpointMachine::of(runtime).activity(),
            order: self.serving.as_ref().map(|order| order.what.to_owned()),
            order_ms: self
                .serving
                .as_ref()
                .map_or(0, |order| u64::try_from(order.since.elapsed().as_millis()).unwrap_or(u64::MAX)),
            last_error: self.shared.last_error.lock().clone(),
            copy_of: CheckpointMachine::of(runtime).copy_of(),
            lazy_bytes: runtime.arriving.left_bytes(),
        }
    }

    fn cancel(&self, runtime: &Context) -> bool {
        if let Some(order) = &self.serving {
            order.abandoned.store(true, Ordering::Relaxed);
        }
        CheckpointMachine::of(runtime).cancel() || self.serving.is_some()
    }

    /// Gives the worker an order. While another is at work an order to resume waits for one of its kind; all others are
    /// refused.
    fn submit(&mut self, runtime: &Context, task: Task, from: Caller) {
        let task = match (&self.serving, task) {
            (None, task) => task,
            (Some(at_work), Task::Resume(options))
                if at_work.what == RESUME && self.waiting.len() < MAX_WAITING =>
            {
                return self.waiting.push_back((options, from));
            }
            (Some(at_work), _) => {
                let text = format!(
                    "it is at work on another order, a {} since {} ms: wait for it, or cancel it (stasis cancel)",
                    at_work.what,
                    at_work.since.elapsed().as_millis()
                );
                if let Some(peer) = from.peer {
                    reply(runtime, &peer, Err(text), &[]);
                }
                return;
            }
        };
        let (what, needs_controller) = match &task {
            Task::Checkpoint(_) => ("checkpoint", true),
            Task::PreCopy(_) => ("pre-copy", true),
            Task::Resume(_) => (RESUME, false),
        };
        let abandoned = Arc::<AtomicBool>::default();
        let order = Order { task, controller: from.pid, abandoned: Arc::clone(&abandoned) };
        let since = Instant::now();
        self.serving = Some(Serving { peer: from.peer, what, since, needs_controller, abandoned });
        *self.shared.order.lock() = Some(order);
        raise(&self.shared.ordered);
    }
}

/// Answers a controller. One that has gone does not want the answer; the lease covers it.
pub(super) fn reply(runtime: &Context, peer: &OwnedFd, done: Result<Done, String>, files: &[OwnedFd]) {
    let message = Reply { state: CheckpointMachine::of(runtime).state(), done };
    if let Ok(text) = serde_json::to_vec(&message) {
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let _ = message::send(peer, &text, &files);
    }
}
