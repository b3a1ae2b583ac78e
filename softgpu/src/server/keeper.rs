// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a controller orders of an executor (`kfd::transport::control`): to pause, to give its state, to resume; and, of the
//! executor of a restored client, to take that state.
//!
//! INVARIANT: one controller at a time. A device that a controller has paused resumes when that connection ends, or when no
//! order comes for as long as the lease lasts.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kfd::linux;
use kfd::transport::control::{ExecutorAnswer, ExecutorOrder, NamedMemory};
use kfd::transport::wire::{self, MAX_FDS, ReceiveBuffer, WireError};
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::poll::{PollFd, PollFlags};

use super::broker::listen;
use super::error::ServeError;
use super::host::Host;
use super::peer::may_order;
use super::refusal::with_causes;
use super::saved::{GivenMemory, HostState};
use crate::persist::Memories;

/// Longest state that is taken, bytes: that of a million objects.
const MAX_STATE_BYTES: u64 = 256 << 20;
/// Longest lease, and longest deadline: a day.
const MAX_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// An order, and the descriptors beside it.
struct Ordered {
    order: ExecutorOrder,
    fds: Vec<OwnedFd>,
}

/// An answer, and the descriptors beside it.
type Answered = (ExecutorAnswer, Vec<OwnedFd>);

/// A controller's connection.
#[derive(Debug)]
struct Controller {
    socket: OwnedFd,
    buffer: ReceiveBuffer,
}

impl Controller {
    /// The next controller that may give orders.
    fn accept(listener: &OwnedFd) -> Self {
        loop {
            let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            let accepted = linux::poll(&mut fds, None).and_then(|_| linux::accept(listener));
            let Ok(socket) = accepted else {
                // Out of descriptors, or a connection that was given up.
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            if may_order(socket.as_fd()) && wire::prepare_socket(socket.as_fd()).is_ok() {
                return Self { socket, buffer: ReceiveBuffer::new() };
            }
            tracing::warn!(target: "server", "controller refused");
        }
    }

    /// The next order, within `limit`; `None` if none came.
    fn receive(&mut self, limit: Option<Duration>) -> Result<Option<Ordered>, WireError> {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match linux::poll(&mut fds, limit) {
            Ok(0) | Err(Errno::EINTR) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(WireError::System { call: "poll", errno }),
        }
        let received = wire::receive::<ExecutorOrder>(self.socket.as_fd(), &mut self.buffer)?;
        Ok(Some(Ordered { order: received.message, fds: received.fds }))
    }

    fn answer(&self, (answer, fds): Answered) -> Result<(), WireError> {
        wire::send(self.socket.as_fd(), &answer, &wire::borrow_all(&fds))
    }
}

fn failed(message: impl Into<String>) -> Answered {
    (ExecutorAnswer::Failed { message: message.into() }, Vec::new())
}

fn done(answer: ExecutorAnswer) -> Answered {
    (answer, Vec::new())
}

/// The lease of a pause.
#[derive(Clone, Copy, Debug)]
struct Lease {
    duration: Duration,
    until: Instant,
}

impl Lease {
    fn new(milliseconds: u64) -> Self {
        let duration = Duration::from_millis(milliseconds).min(MAX_TIME);
        Self { duration, until: Instant::now() + duration }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// Takes orders on a socket.
#[derive(Debug)]
pub(super) struct Keeper {
    listener: OwnedFd,
}

impl Keeper {
    /// Listens on the abstract socket `name`.
    ///
    /// # Errors
    /// As [`listen`]; EADDRINUSE if somebody else has the name.
    pub(super) fn listen(name: &str) -> Result<Self, ServeError> {
        let taken = ServeError::System { what: "bind", errno: Errno::EADDRINUSE };
        Ok(Self { listener: listen(name)?.ok_or(taken)? })
    }

    /// Carries out orders for a device for ever.
    pub(super) fn serve(&self, host: &Host) -> ! {
        loop {
            Service {
                controller: Controller::accept(&self.listener),
                host,
                lease: None,
                memories: Memories::new(),
            }
            .run();
        }
    }

    /// Waits for a controller that gives the state of a restored client; answers the device, and goes on with the
    /// controller's orders on a thread.
    ///
    /// # Errors
    /// [`ServeError::Thread`].
    pub(super) fn restore(
        self,
        make: impl Fn(&HostState, Vec<GivenMemory>, i64) -> Result<Arc<Host>, String>,
    ) -> Result<Arc<Host>, ServeError> {
        loop {
            let mut controller = Controller::accept(&self.listener);
            let Some(host) = take_state(&mut controller, &make) else { continue };
            let of_thread = Arc::clone(&host);
            let spawned = std::thread::Builder::new().name("keeper".to_owned()).spawn(move || {
                // The state is of a paused device.
                let lease = Some(Lease::new(super::saved::RESTORE_LEASE_MS));
                Service { controller, host: &of_thread, lease, memories: Memories::new() }.run();
                self.serve(&of_thread)
            });
            spawned.map_err(ServeError::Thread)?;
            return Ok(host);
        }
    }
}

/// What a controller has given so far of a restored client.
#[derive(Debug, Default)]
struct Taking {
    state: Option<HostState>,
    given: Vec<GivenMemory>,
}

/// Follows a controller until the device is made; `None` if the connection ends before.
fn take_state(
    controller: &mut Controller,
    make: &impl Fn(&HostState, Vec<GivenMemory>, i64) -> Result<Arc<Host>, String>,
) -> Option<Arc<Host>> {
    let mut taking = Taking::default();
    loop {
        let Some(Ordered { order, fds }) = controller.receive(None).ok()? else { continue };
        let mut made = None;
        let answer = match order {
            ExecutorOrder::Take => taking.take(fds),
            ExecutorOrder::Give { memories } => taking.give(memories, fds),
            ExecutorOrder::Restore { clock_offset } => match &taking.state {
                None => failed("no state was given"),
                Some(state) => match make(state, std::mem::take(&mut taking.given), clock_offset) {
                    Ok(host) => {
                        made = Some(host);
                        done(ExecutorAnswer::Restored)
                    }
                    Err(message) => failed(message),
                },
            },
            _ => failed("the client of this executor is not restored yet"),
        };
        let answered = controller.answer(answer);
        match made {
            // Whether or not the controller still listens: if not, the device resumes.
            Some(host) => return Some(host),
            None => answered.ok()?,
        }
    }
}

impl Taking {
    fn take(&mut self, fds: Vec<OwnedFd>) -> Answered {
        let Some(fd) = fds.into_iter().next() else { return failed("no state came with the order") };
        let mut bytes = Vec::new();
        let read = File::from(fd).take(MAX_STATE_BYTES + 1).read_to_end(&mut bytes);
        if read.is_err() || bytes.len() as u64 > MAX_STATE_BYTES {
            return failed("the state cannot be read, or is too long");
        }
        match HostState::decode(&bytes) {
            Err(error) => failed(with_causes(&error)),
            Ok(state) => {
                let memories =
                    state.memories().map(|(name, bytes)| NamedMemory { name: name.to_owned(), bytes });
                let mut seen = BTreeSet::new();
                let memories = memories.filter(|memory| seen.insert(memory.name.clone())).collect();
                self.state = Some(state);
                done(ExecutorAnswer::Taken { memories })
            }
        }
    }

    fn give(&mut self, memories: Vec<(String, bool)>, fds: Vec<OwnedFd>) -> Answered {
        if memories.len() != fds.len() {
            return failed("there are not as many descriptors as names");
        }
        let given = memories.into_iter().zip(fds);
        self.given.extend(given.map(|((name, of_client), fd)| GivenMemory { name, of_client, fd }));
        done(ExecutorAnswer::Given)
    }
}

/// A controller at work on a device.
struct Service<'a> {
    controller: Controller,
    host: &'a Host,
    /// While the device is paused.
    lease: Option<Lease>,
    /// Those of the state that was given last.
    memories: Memories,
}

impl Service<'_> {
    fn run(mut self) {
        loop {
            match self.controller.receive(self.lease.map(|lease| lease.left())) {
                Ok(None) => {
                    if self.lease.is_some_and(|lease| lease.left().is_zero()) {
                        tracing::warn!(target: "server", "no order came for as long as the lease lasts: resuming");
                        self.resume();
                    }
                }
                Ok(Some(ordered)) => {
                    let answer = self.carry_out(ordered);
                    if let Some(lease) = &mut self.lease {
                        *lease = Lease { until: Instant::now() + lease.duration, ..*lease };
                    }
                    if self.controller.answer(answer).is_err() {
                        break;
                    }
                }
                Err(error) => {
                    tracing::debug!(target: "server", %error, "a controller has gone");
                    break;
                }
            }
        }
        self.resume();
    }

    fn resume(&mut self) {
        self.memories = Memories::new();
        if self.lease.take().is_some() {
            self.host.resume();
        }
    }

    fn carry_out(&mut self, Ordered { order, fds: _ }: Ordered) -> Answered {
        match order {
            ExecutorOrder::Pause { .. } if self.lease.is_some() => failed("the device is paused already"),
            ExecutorOrder::Pause { deadline_ms, lease_ms } => {
                let deadline = Instant::now() + Duration::from_millis(deadline_ms).min(MAX_TIME);
                match self.host.pause(deadline) {
                    Ok(paused) => {
                        self.lease = Some(Lease::new(lease_ms));
                        done(paused)
                    }
                    Err(message) => failed(message),
                }
            }
            ExecutorOrder::Resume => match self.lease {
                None => failed("the device is not paused: no order came for as long as its lease lasted"),
                Some(_) => {
                    self.resume();
                    done(ExecutorAnswer::Resumed)
                }
            },
            ExecutorOrder::Status => {
                done(ExecutorAnswer::Status { queues: self.host.queues(), paused: self.lease.is_some() })
            }
            _ if self.lease.is_none() => {
                failed("the device is not paused: no order came for as long as its lease lasted")
            }
            ExecutorOrder::State => self.state(),
            ExecutorOrder::Memories { names } => self.give(&names),
            ExecutorOrder::Confirm => done(ExecutorAnswer::Confirmed),
            ExecutorOrder::Take | ExecutorOrder::Give { .. } | ExecutorOrder::Restore { .. } => {
                failed("the client has a device already")
            }
        }
    }

    fn state(&mut self) -> Answered {
        let (state, memories) = match self.host.save() {
            Ok(saved) => saved,
            Err(message) => return failed(message),
        };
        let written = state.encode().map_err(|error| with_causes(&error)).and_then(|bytes| {
            let memory =
                linux::memfd("softgpu-state", 0, SealFlag::empty()).map_err(|errno| errno.to_string())?;
            let mut file = File::from(memory);
            file.write_all(&bytes).map_err(|error| error.to_string())?;
            std::io::Seek::rewind(&mut file).map_err(|error| error.to_string())?;
            Ok((bytes.len() as u64, OwnedFd::from(file)))
        });
        match written {
            Err(message) => failed(format!("cannot write its state: {message}")),
            Ok((bytes, fd)) => {
                self.memories = memories;
                let named = self.memories.iter();
                let named =
                    named.map(|memory| NamedMemory { name: memory.name.clone(), bytes: memory.bytes });
                (ExecutorAnswer::State { bytes, memories: named.collect() }, vec![fd])
            }
        }
    }

    fn give(&self, names: &[String]) -> Answered {
        if names.len() > MAX_FDS {
            return failed(format!("{} memories do not fit one message, {MAX_FDS} do", names.len()));
        }
        let found = names.iter().map(|name| {
            let memory = self.memories.get(name).ok_or_else(|| format!("it has no memory {name:?}"))?;
            duplicate(memory.fd.as_fd())
        });
        match found.collect::<Result<Vec<_>, String>>() {
            Ok(fds) => (ExecutorAnswer::Memories, fds),
            Err(message) => failed(message),
        }
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, String> {
    linux::duplicate(fd).map_err(|errno| format!("no descriptor is left ({errno})"))
}
