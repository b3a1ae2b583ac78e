// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that belongs to one run of softgpud: its channels, and the pages lent to it.
//!
//! INVARIANT: each call has its own channel, so that a blocking call delays no other. When the device dies, every
//! channel is cut, so that no call hangs. A device is dead if it closes or refuses a connection. A device that does not
//! answer is alive: a process that was stopped may continue with all its state.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::Shutdown;
use nix::unistd::{Pid, getpid};
use parking_lot::Mutex;

use super::address::Address;
use super::channel::{Channel, ConnectError};
use super::local::{self, LocalDevice};
use super::remote::DoorbellMapping;
use super::start::{Start, Starting};
use super::userptr::{Forgotten, Lent};
use crate::linux;
use crate::transport::gate::{Gate, Inside};
use crate::transport::wire::{Reply, Request, WireError};
use crate::transport::{CallLimit, CloseError, OpenError};

/// Idle channels that are kept for later calls; further channels of a burst of threads are closed.
const MAX_IDLE: usize = 16;

/// How long an unused channel is kept while other calls are made. Without this limit a process would keep as many
/// channels as its busiest moment needed.
const MAX_UNUSED: Duration = Duration::from_secs(1);

/// TIMEOUT: how long a first connection may take if the caller set no limit. A user who starts a program wants to learn
/// that the device is stopped. A loaded machine may need more than 10 s to start softgpud.
const OPENING: Duration = Duration::from_secs(30);

/// TIMEOUT: for how long softgpud is started again when each process ends, or reports that it listens, and nobody
/// answers.
const IN_VAIN: Duration = Duration::from_secs(10);

/// How long a client waits before it connects again to a device whose clients are being frozen. It has no socket meanwhile, and
/// the connection takes a hundredth of this time.
const BUSY_NAP: Duration = Duration::from_millis(5);

/// How long a started softgpud has to bind its socket before another one is started.
const RESTART_AFTER: Duration = Duration::from_secs(2);

/// What happens to a channel after its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channels {
    /// A later call uses it.
    Kept,
    /// It is closed: between calls the process has no socket.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Live,
    Lost,
    Closed,
}

#[derive(Debug)]
struct State {
    status: Status,
    /// Idle channels; the one that was used last is at the end.
    idle: Vec<Idle>,
    busy: BTreeMap<u64, Arc<OwnedFd>>,
    /// Calls in progress, including those that are still connecting.
    calls: usize,
    next: u64,
}

#[derive(Debug)]
struct Idle {
    channel: Channel,
    since: Instant,
}

/// A connection to one run of softgpud.
#[derive(Debug)]
pub(super) struct Session {
    address: Address,
    /// The device that answers in place of softgpud.
    local: Option<Arc<dyn LocalDevice>>,
    owner: Pid,
    channels: Channels,
    state: Mutex<State>,
    /// Pages of USERPTR objects and of shared virtual memory.
    pub lent: Arc<Mutex<Lent>>,
    /// The device's gate, for a process that has no connections between calls.
    gate: OnceLock<Gate>,
    /// The generation of the gate at which the device was last told of the doorbells.
    told: AtomicU32,
    doorbells: Mutex<Vec<DoorbellMapping>>,
}

/// Why a call got no reply.
#[derive(Debug)]
pub(super) enum CallError {
    /// The device is gone.
    Lost,
    /// The session was closed, or belongs to the parent process.
    Closed,
    /// The message itself failed.
    Wire(WireError),
}

impl CallError {
    /// What an ioctl answers.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Lost | Self::Wire(WireError::Closed) => Errno::ENODEV,
            Self::Closed => Errno::EBADF,
            Self::Wire(WireError::TooLarge { .. } | WireError::TooManyFds { .. }) => Errno::EMSGSIZE,
            Self::Wire(WireError::LostFds) => Errno::EMFILE,
            Self::Wire(WireError::TimedOut) => Errno::ETIMEDOUT,
            Self::Wire(WireError::System { errno, .. }) => *errno,
            Self::Wire(WireError::Codec { .. } | WireError::UnexpectedReply) => Errno::EPROTO,
        }
    }
}

impl Session {
    /// Connects, starting softgpud if nobody listens.
    pub fn connect(address: &Address, channels: Channels) -> Result<Arc<Self>, OpenError> {
        let channel = first_channel(address)?;
        Ok(Self::with(address, None, channels, vec![Idle { channel, since: Instant::now() }]))
    }

    /// A session with a device in this process.
    pub fn local(address: &Address, device: Arc<dyn LocalDevice>) -> Arc<Self> {
        Self::with(address, Some(device), Channels::Kept, Vec::new())
    }

    fn with(
        address: &Address,
        local: Option<Arc<dyn LocalDevice>>,
        channels: Channels,
        idle: Vec<Idle>,
    ) -> Arc<Self> {
        let state = State { status: Status::Live, idle, busy: BTreeMap::new(), calls: 0, next: 0 };
        Arc::new(Self {
            address: address.clone(),
            local,
            owner: getpid(),
            channels,
            state: Mutex::new(state),
            lent: Arc::new(Mutex::new(match channels {
                Channels::Kept => Lent::default(),
                // A program whose calls are looked at.
                Channels::Closed => Lent::indexed(),
            })),
            gate: OnceLock::new(),
            told: AtomicU32::new(0),
            doorbells: Mutex::default(),
        })
    }

    /// Takes the gate over that came with the first open file.
    ///
    /// # Errors
    /// As [`Gate::map`].
    pub fn set_gate(&self, memory: &OwnedFd) -> Result<(), Errno> {
        if self.gate.get().is_none() {
            // Of two at once, both are the same.
            let _ = self.gate.set(Gate::map(memory.as_fd())?);
        }
        Ok(())
    }

    /// The gate, if there is one and this is no forked child, which does not have the mapping.
    pub fn gate(&self) -> Option<&Gate> {
        self.gate.get().filter(|_| self.is_ours())
    }

    /// Waits until calls may be made; none is waited for where there is no gate.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let gate = self.gate()?;
        let inside = gate.enter();
        let generation = gate.generation();
        // ORDERING: Relaxed: one thread tells the device, and no other depends on it.
        if self.told.swap(generation, Ordering::Relaxed) != generation {
            self.doorbells.lock().iter().for_each(DoorbellMapping::tell_again);
        }
        Some(inside)
    }

    /// Notes doorbells of which the device has to be told again after a restore.
    pub fn note_doorbells(&self, mapping: DoorbellMapping) {
        self.doorbells.lock().push(mapping);
    }

    /// Whether calls may be made: the device lives and this is not a forked child.
    pub fn is_usable(&self) -> bool {
        self.is_ours() && self.state.lock().status == Status::Live
    }

    /// Whether this process is the one that began it, and no child of that.
    pub fn is_ours(&self) -> bool {
        getpid() == self.owner
    }

    /// Sends one request and waits for the reply.
    pub fn exchange(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        if let Some(device) = &self.local {
            return self.call(device, request, fds);
        }
        let (key, mut channel) = self.take()?;
        let outcome = channel.exchange(request, fds);
        let keep = match &outcome {
            // The datagram was not sent, or was read as a whole, so that requests and replies on the channel still
            // match.
            Ok(_)
            | Err(
                WireError::TooLarge { .. }
                | WireError::TooManyFds { .. }
                | WireError::LostFds
                | WireError::Codec { .. }
                | WireError::UnexpectedReply,
            ) => Some(channel),
            Err(_) => None,
        };
        self.put_back(key, keep);
        match outcome {
            Ok(received) => Ok((received.message, received.fds)),
            Err(WireError::Closed) => {
                self.lose();
                Err(CallError::Lost)
            }
            Err(source) => Err(CallError::Wire(source)),
        }
    }

    /// As [`Session::exchange`], with a device in this process.
    fn call(
        &self,
        device: &Arc<dyn LocalDevice>,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), CallError> {
        self.begin()?;
        let outcome = local::call(device, request, fds);
        self.state.lock().calls -= 1;
        if matches!(outcome, Err(CallError::Lost)) {
            self.lose();
        }
        outcome
    }

    /// Tells the device of lent pages that are no longer mapped. The caller has `lent` locked, so that no other object gets one of
    /// the handles, and no other range one of the addresses, meanwhile.
    pub fn tell_gone(&self, forgotten: &Forgotten) {
        for lost in forgotten.lost_pages() {
            match self.exchange(&Request::PagesGone(lost), &[]) {
                Ok((Reply::PagesAreGone, _)) => {}
                // A device that is gone has no pages.
                outcome => {
                    tracing::warn!(target: "kfd", ?lost, ?outcome, "pages that are gone stay mapped");
                }
            }
        }
    }

    /// Counts a call in progress, if calls may be made; the idle channel that was used last, if there is one.
    fn begin(&self) -> Result<Option<Idle>, CallError> {
        if !self.is_ours() {
            return Err(CallError::Closed);
        }
        let mut state = self.state.lock();
        match state.status {
            Status::Live => {}
            Status::Lost => return Err(CallError::Lost),
            Status::Closed => return Err(CallError::Closed),
        }
        state.calls += 1;
        Ok(state.idle.pop())
    }

    fn take(&self) -> Result<(u64, Channel), CallError> {
        let idle = self.begin()?;
        let connected = match idle {
            Some(idle) => Ok(idle.channel),
            None => Channel::connect(&self.address, &CallLimit::current()),
        };
        match connected {
            Ok(channel) => self.register(channel),
            Err(error) => {
                self.state.lock().calls -= 1;
                tracing::debug!(target: "kfd", ?error, "no further channel to softgpud");
                match error {
                    ConnectError::Local(errno) => {
                        Err(CallError::Wire(WireError::System { call: "socket", errno }))
                    }
                    ConnectError::TimedOut | ConnectError::Busy => Err(CallError::Wire(WireError::TimedOut)),
                    // The device is alive, but has too much to do for another channel.
                    ConnectError::Final(OpenError::Refused { errno, .. }) => {
                        Err(CallError::Wire(WireError::System { call: "connect", errno }))
                    }
                    // The device closes a new connection at once when it has no descriptor or thread left. It is alive
                    // if the other connections are intact.
                    ConnectError::Nobody(Errno::ECONNRESET) if self.is_connected() => {
                        Err(CallError::Wire(WireError::System { call: "connect", errno: Errno::EMFILE }))
                    }
                    ConnectError::Nobody(_) | ConnectError::Final(_) => {
                        self.lose();
                        Err(CallError::Lost)
                    }
                }
            }
        }
    }

    /// Whether a connection of a call in progress is intact: all connections end with the device.
    fn is_connected(&self) -> bool {
        let stands = |socket: &Arc<OwnedFd>| {
            let mut fds = [PollFd::new(socket.as_fd(), PollFlags::empty())];
            linux::poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|ended| ended == 0)
        };
        self.state.lock().busy.values().any(stands)
    }

    fn register(&self, channel: Channel) -> Result<(u64, Channel), CallError> {
        let mut state = self.state.lock();
        // If the device was lost while this channel was made, no later call would cut the channel.
        if state.status != Status::Live {
            state.calls -= 1;
            return Err(CallError::Lost);
        }
        let key = state.next;
        state.next += 1;
        state.busy.insert(key, Arc::clone(channel.socket()));
        Ok((key, channel))
    }

    fn put_back(&self, key: u64, channel: Option<Channel>) {
        let mut state = self.state.lock();
        state.busy.remove(&key);
        state.calls -= 1;
        if let Some(channel) = channel.filter(|_| self.channels == Channels::Kept)
            && state.status == Status::Live
            && state.idle.len() < MAX_IDLE
        {
            let now = Instant::now();
            state.idle.push(Idle { channel, since: now });
            state.idle.retain(|idle| now.duration_since(idle.since) < MAX_UNUSED);
        }
    }

    /// Marks the device as gone and cuts every channel, so that blocked calls return.
    fn lose(&self) {
        let mut state = self.state.lock();
        if state.status == Status::Live {
            tracing::warn!(target: "kfd", socket = %self.address.name, "softgpud is gone");
            state.status = Status::Lost;
        }
        state.idle.clear();
        for socket in state.busy.values() {
            // The only failure is a socket that is cut already.
            let _ = nix::sys::socket::shutdown(socket.as_raw_fd(), Shutdown::Both);
        }
    }

    /// Closes every socket and takes back lent pages; refused while calls are in progress.
    pub fn close(&self) -> Result<(), CloseError> {
        if !self.is_ours() {
            self.abandon();
            return Ok(());
        }
        // Lock order: `lent`, then `state`, as in a call that lends pages. Such a call holds the first lock.
        let Some(mut lent) = self.lent.try_lock() else {
            return Err(CloseError::Busy { calls: 1 });
        };
        let mut state = self.state.lock();
        if state.calls > 0 {
            return Err(CloseError::Busy { calls: state.calls });
        }
        lent.take_back_all()?;
        state.status = Status::Closed;
        state.idle.clear();
        Ok(())
    }

    /// Drops this process' idle sockets of a session that is no longer used, and makes lent pages its own. In a forked
    /// child, a thread of the parent may have held a lock. Then what the lock guards stays: sockets are close-on-exec,
    /// and pages stay shared with the parent.
    pub fn abandon(&self) {
        if let Some(mut lent) = self.lent.try_lock()
            && let Err(error) = lent.take_back_all()
        {
            tracing::warn!(target: "kfd", %error, "pages stay shared");
        }
        if let Some(mut state) = self.state.try_lock() {
            state.idle.clear();
        }
    }
}

fn first_channel(address: &Address) -> Result<Channel, OpenError> {
    let begun = Instant::now();
    let limit = Some(CallLimit::current()).filter(CallLimit::is_some);
    let limit = limit.unwrap_or_else(|| CallLimit::until(begun + OPENING));
    let mut started: Option<(Instant, Starting)> = None;
    let mut pause = Duration::from_millis(1);
    loop {
        let errno = match Channel::connect(address, &limit) {
            Ok(channel) => return Ok(channel),
            Err(ConnectError::Final(error)) => return Err(error),
            Err(ConnectError::Local(errno)) => {
                let source = WireError::System { call: "socket", errno };
                return Err(OpenError::Wire { what: "the connection", source });
            }
            Err(ConnectError::TimedOut) => Errno::ETIMEDOUT,
            Err(ConnectError::Nobody(errno)) => errno,
            Err(ConnectError::Busy) if !limit.is_over() => {
                std::thread::sleep(BUSY_NAP);
                continue;
            }
            Err(ConnectError::Busy) => Errno::EBUSY,
        };
        let has_ended = started.as_ref().is_some_and(|(_, starting)| starting.is_over());
        let is_in_vain = has_ended && begun.elapsed() >= IN_VAIN;
        if address.start == Start::Never || errno == Errno::ETIMEDOUT || is_in_vain || limit.is_over() {
            let seconds = begun.elapsed().as_secs();
            return Err(OpenError::Unreachable { name: address.name.clone(), seconds, errno });
        }
        // If two softgpud are started at the same time, the one that binds the name first stays and the other exits.
        if started.as_ref().is_none_or(|(at, _)| at.elapsed() >= RESTART_AFTER) {
            let starting = super::start::start(address)
                .map_err(|source| OpenError::Start { devices: address.devices.clone(), source })?;
            started = Some((Instant::now(), starting));
        }
        match &mut started {
            Some((_, starting)) => starting.wait(pause),
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
