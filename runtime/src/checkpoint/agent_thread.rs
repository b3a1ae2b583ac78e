// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that takes orders from outside, keeps the lease, and notices that it woke up as a restored copy.
//!
//! While the process is CHECKPOINTED this thread alone decides when it goes on: by an order, by the end of the lease
//! (the controller or CRIU died, the dump was vetoed), or because it finds itself in another incarnation.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    recv, send, socket_with, sockopt,
};

use super::incarnation::Incarnation;
use super::protocol::{Done, MAX_MESSAGE, Reply, Request, socket_name};
use super::{
    CheckpointError, CheckpointOptions, CheckpointReport, Mode, RestoreOptions, RestoreReport, State,
};
use crate::runtime::Inner;

/// How often the thread looks at lease and incarnation while the process is checkpointed.
const WATCH: Duration = Duration::from_millis(20);
/// How long an accepted controller may take to say its order, or to close afterwards.
const CONTROLLER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a failed attempt of our own waits before the next.
const RETRY: Duration = Duration::from_secs(1);

/// Starts the thread for a runtime; it ends when the runtime is dropped.
pub(crate) fn start(runtime: &Arc<Inner>) -> io::Result<()> {
    let listener = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let name = socket_name(rustix::process::getpid().as_raw_nonzero().get());
    bind(&listener, &SocketAddrUnix::new_abstract_name(&name)?)?;
    listen(&listener, 4)?;
    let agent = Agent {
        runtime: Arc::downgrade(runtime),
        listener,
        watch: None,
        last_error: None,
        resumed: None,
        incarnation: Incarnation::current()?,
    };
    std::thread::Builder::new().name("stasis-agent".into()).spawn(move || agent.run())?;
    Ok(())
}

/// What is watched while the process is checkpointed on a controller's order.
struct Watch {
    lease_ends: Instant,
    retry_at: Option<Instant>,
}

struct Agent {
    runtime: Weak<Inner>,
    listener: OwnedFd,
    watch: Option<Watch>,
    last_error: Option<String>,
    /// What a restore of our own accord moved, for the controller that asks next.
    resumed: Option<RestoreReport>,
    incarnation: Incarnation,
}

impl Agent {
    fn run(mut self) {
        loop {
            let pause = if self.watch.is_some() { WATCH } else { Duration::from_millis(200) };
            let ready = self.wait(pause);
            let Some(runtime) = self.runtime.upgrade() else { return };
            if ready && let Some(peer) = self.accept() {
                self.serve(&runtime, peer);
            }
            self.look_after(&runtime);
        }
    }

    fn wait(&self, limit: Duration) -> bool {
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        let limit = Timespec::try_from(limit).ok();
        matches!(poll(&mut fds, limit.as_ref()), Ok(n) if n > 0)
    }

    /// Accepts a controller of our own user, or root's.
    fn accept(&self) -> Option<OwnedFd> {
        let peer = accept_with(&self.listener, SocketFlags::CLOEXEC).ok()?;
        let credentials = sockopt::socket_peercred(&peer).ok()?;
        if credentials.uid.is_root() || credentials.uid == rustix::process::geteuid() {
            sockopt::set_socket_timeout(&peer, sockopt::Timeout::Recv, Some(CONTROLLER_PATIENCE)).ok()?;
            return Some(peer);
        }
        tracing::warn!(target: "checkpoint", uid = credentials.uid.as_raw(), "a foreign user's order was not taken");
        None
    }

    fn serve(&mut self, runtime: &Arc<Inner>, peer: OwnedFd) {
        let mut message = vec![0; MAX_MESSAGE];
        let Ok((length, _)) = rustix::io::retry_on_intr(|| recv(&peer, &mut message[..], RecvFlags::empty()))
        else {
            return;
        };
        let done = match serde_json::from_slice::<Request>(&message[..length]) {
            Err(error) => Err(format!("the order is not understood: {error}")),
            Ok(order) => self.obey(runtime, &order),
        };
        let reply = Reply { state: runtime.session().state(), done };
        if let Ok(text) = serde_json::to_vec(&reply) {
            // A controller that has gone does not want the answer; the lease covers it.
            let _ = send(peer.as_fd(), &text, SendFlags::NOSIGNAL);
        }
    }

    fn obey(&mut self, runtime: &Arc<Inner>, order: &Request) -> Result<Done, String> {
        let say = |error: CheckpointError| explain(&error);
        match order {
            Request::Status => Ok(Done::Status { runtimes: 1, last_error: self.last_error.clone() }),
            Request::Checkpoint { directory, deadline_ms, lease_ms, mode } => {
                let report = checkpoint(runtime, directory, *mode, Duration::from_millis(*deadline_ms))
                    .map_err(say)?;
                let lease_ends = Instant::now() + Duration::from_millis(*lease_ms);
                self.watch = Some(Watch { lease_ends, retry_at: None });
                Ok(Done::Checkpointed(report))
            }
            Request::Resume { directory } => {
                if runtime.session().state() == State::Running {
                    return Ok(Done::Running(self.resumed.take().unwrap_or_default()));
                }
                self.resume(runtime, directory.as_deref()).map(Done::Running).map_err(say)
            }
        }
    }

    fn resume(
        &mut self,
        runtime: &Arc<Inner>,
        directory: Option<&Path>,
    ) -> Result<RestoreReport, CheckpointError> {
        let report = resume(runtime, directory);
        match &report {
            Ok(_) => {
                self.watch = None;
                self.last_error = None;
                if let Ok(incarnation) = Incarnation::current() {
                    self.incarnation = incarnation;
                }
            }
            Err(error) => self.last_error = Some(explain(error)),
        }
        report
    }

    /// Goes on by itself when nobody else will see to it.
    fn look_after(&mut self, runtime: &Arc<Inner>) {
        let Some(watch) = &self.watch else { return };
        if runtime.session().state() != State::Checkpointed {
            self.watch = None;
            return;
        }
        let now = Instant::now();
        if watch.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let copied = Incarnation::current().is_ok_and(|now| now != self.incarnation);
        // The lease counts only while nobody is at work on this process.
        if !copied && (now < watch.lease_ends || is_traced()) {
            return;
        }
        if !copied {
            tracing::warn!(target: "checkpoint", "the lease is over, the process takes its device back");
        }
        match self.resume(runtime, None) {
            Ok(report) => self.resumed = Some(report),
            Err(error) => {
                tracing::error!(target: "checkpoint", error = explain(&error), "the device did not come back");
                if let Some(watch) = &mut self.watch {
                    watch.retry_at = Some(now + RETRY);
                }
            }
        }
    }
}

fn checkpoint(
    runtime: &Arc<Inner>,
    directory: &Path,
    mode: Mode,
    deadline: Duration,
) -> Result<CheckpointReport, CheckpointError> {
    let session = runtime.session();
    let lock = session.lock(runtime, mode, deadline)?;
    let report = session
        .checkpoint(runtime, directory, &CheckpointOptions::default())
        .map(|r| CheckpointReport { lock_ms: lock.as_secs_f64() * 1e3, ..r });
    report.inspect_err(|_| {
        if session.state() == State::Locked
            && let Err(error) = session.unlock(runtime)
        {
            tracing::error!(target: "checkpoint", error = explain(&error), "a failed checkpoint left the gate shut");
        }
    })
}

fn resume(runtime: &Arc<Inner>, directory: Option<&Path>) -> Result<RestoreReport, CheckpointError> {
    let session = runtime.session();
    let report = match session.state() {
        State::Checkpointed => session.restore(
            runtime,
            &RestoreOptions { directory: directory.map(Path::to_path_buf), ..RestoreOptions::default() },
        )?,
        _ => RestoreReport::default(),
    };
    if session.state() == State::Locked {
        session.unlock(runtime)?;
    }
    Ok(report)
}

/// Whether a debugger or CRIU holds this process.
fn is_traced() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map(|pid| pid.trim() != "0")
        })
        .unwrap_or(false)
}

/// An error with all its causes, in one line.
fn explain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
