// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker: accepts connections and hands each to the executor of the process that made it.
//!
//! The bound socket name is the lock that makes softgpud one per instance. KFD keeps a process's state until the
//! process is gone, not until it closes its files; so an executor lives as long as its client, and the broker, which
//! knows the device-wide ledger, as long as any executor and [`GRACE`] more.
//!
//! Executors do not end with the broker: their clients keep the connections that they have, and only new ones fail
//! (a new broker would start a new executor without the state of the old files).
//!
//! INVARIANT: the broker reads no byte that a client sent, and never waits for a client, an executor or a controller.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kfd::transport::control::{BrokerAnswer, BrokerOrder, executor_socket};
use kfd::transport::wire::{self, Reply};
use kfd::{errno, linux};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, setsockopt, socket, socketpair, sockopt,
};
use nix::unistd::{Pid, chdir, geteuid};

use super::devices::Devices;
use super::error::ServeError;
use super::executor::{Records, Seed};
use super::orders::Orders;
use super::peer::Peer;
use super::{log, peer, refusal, settings, sys, tree, window};
use crate::driver::Ledger;

/// How long the broker stays when its last executor is gone, for a client that finds it by its socket's name. One that is kept by
/// standard input does not: whoever holds that says when no client comes any more.
const GRACE: Duration = Duration::from_millis(200);
/// How long it stays when no client ever connected.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 256;
/// How long no client must have come before an executor is started for the next one: what the last one does at first needs the CPUs.
const QUIET: Duration = Duration::from_millis(20);
/// What goes to an executor with a connection. Any byte would do, but a message must not be empty.
const CONNECTION: u8 = 1;

/// The options of `softgpud serve`.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The targets, comma separated: `gfx1100,gfx1100`; or a topology file's name (`kfd::transport::machine`).
    pub devices: String,
    /// The abstract socket's name, without the leading NUL.
    pub socket: String,
    /// Whether to go on without clients until standard input is closed.
    pub while_stdin: bool,
    /// An empty directory for the files of the machine ([`super::write_tree`]).
    pub machine: Option<PathBuf>,
    /// A directory to remove at the end, with all that is in it.
    pub remove: Option<PathBuf>,
    /// What to record of the clients.
    pub records: Records,
    /// Whether to take a controller's orders (`kfd::transport::control`).
    pub controlled: bool,
}

/// An executor and its client.
#[derive(Debug)]
struct Executor {
    client: Peer,
    control: OwnedFd,
    child: Child,
    /// Readable when the child has ended.
    exit: OwnedFd,
    slot: usize,
}

/// A process that will be an executor.
#[derive(Debug)]
struct Started {
    control: OwnedFd,
    child: Child,
    /// Readable when the child has ended.
    exit: OwnedFd,
}

#[derive(Debug)]
struct Broker {
    devices: Devices,
    listener: OwnedFd,
    ledger: Ledger,
    executors: Vec<Executor>,
    /// One whose client has not come yet: starting a process takes a third of what a client waits for.
    ready: Option<Started>,
    /// When to start that one, if ever.
    ready_at: Option<Instant>,
    /// Whether one client came. Where a second comes, a third is likely.
    had_client: bool,
    /// When to end if there is no executor.
    deadline: Instant,
    /// How long to stay after the last executor.
    grace: Duration,
    /// What the broker stays for, with or without executors, until one is readable: a pipe whose other end is open, processes.
    kept: Vec<OwnedFd>,
    records: Records,
    /// Taken out while orders are carried out.
    orders: Option<Orders>,
    /// Whether executors take orders, too.
    controlled: bool,
    /// The socket for clients, by its name.
    socket: String,
}

/// Serves until no executor is left. Returns at once when another instance has the socket's name: successfully, unless
/// the files of a machine were to be written, which are of one instance.
///
/// # Errors
/// [`ServeError`] for an unknown device, an invalid setting, an impossible name, or a lack of resources at
/// the start.
pub fn serve(options: &ServeOptions) -> Result<(), ServeError> {
    let devices =
        settings::check().map_err(ServeError::Setting).and_then(|()| Devices::parse(&options.devices));
    let devices = match devices {
        Ok(devices) => devices,
        Err(error) => {
            // Who holds standard input reads the error; nobody would come to the socket.
            if !options.while_stdin {
                refusal::tell(&options.socket, &options.devices, &error)?;
            }
            return Err(error);
        }
    };
    let Some(listener) = listen(&options.socket)? else {
        if options.machine.is_some() {
            return Err(ServeError::Taken { name: options.socket.clone() });
        }
        tracing::info!(target: "server", socket = options.socket, "another instance serves");
        return Ok(());
    };
    let ledger = devices.ledger()?;
    let orders = if options.controlled { Orders::listen(&options.socket)? } else { None };
    if let Some(directory) = &options.machine {
        tree::write(&devices, directory)?;
    }
    let kept = options.while_stdin.then(|| linux::duplicate(std::io::stdin())).transpose();
    let kept = kept.map_err(ServeError::system("fcntl(F_DUPFD_CLOEXEC)"))?;
    // The client that started softgpud waits for the end of its output, which means that it listens, or for its working
    // directory to be released.
    sys::null_stdio(log::is_wanted()).map_err(ServeError::system("dup2"))?;
    chdir("/").map_err(ServeError::system("chdir"))?;
    window::limit_stack()?;
    let deadline = Instant::now() + PATIENCE;
    let grace = if options.while_stdin { Duration::ZERO } else { GRACE };
    tracing::info!(target: "server", socket = options.socket, devices = options.devices, "serving");
    let mut broker = Broker {
        devices,
        listener,
        ledger,
        executors: Vec::new(),
        ready: None,
        // `stasis run`: a client is being started.
        ready_at: options.while_stdin.then(Instant::now),
        had_client: false,
        deadline,
        grace,
        kept: kept.into_iter().collect(),
        records: options.records.clone(),
        controlled: orders.is_some(),
        orders,
        socket: options.socket.clone(),
    };
    let served = broker.run();
    // While the names are bound: whoever finds them free may make the directory again.
    if let Some(directory) = &options.remove
        && let Err(error) = std::fs::remove_dir_all(directory)
    {
        tracing::warn!(target: "server", %error, directory = %directory.display(), "not removed");
    }
    served
}

/// A process of one of these users.
fn process_of(pid: i32, users: &[u32]) -> Result<Peer, ServeError> {
    let peer = Peer::of_process(Pid::from_raw(pid)).map_err(ServeError::system("pidfd_open"))?;
    match users.contains(&peer.uid) {
        true => Ok(peer),
        false => Err(ServeError::System { what: "an order for another user's process", errno: Errno::EPERM }),
    }
}

/// Binds the name; `None` when it is taken.
pub(super) fn listen(name: &str) -> Result<Option<OwnedFd>, ServeError> {
    let address = UnixAddr::new_abstract(name.as_bytes())
        .map_err(|errno| ServeError::SocketName { name: name.to_owned(), errno })?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(ServeError::system("socket"))?;
    // Set before any client connects: a first message may be sent before its connection is accepted.
    setsockopt(&listener, sockopt::PassCred, &true).map_err(ServeError::system("setsockopt(SO_PASSCRED)"))?;
    match bind(listener.as_raw_fd(), &address) {
        Err(Errno::EADDRINUSE) => return Ok(None),
        bound => bound.map_err(ServeError::system("bind"))?,
    }
    let backlog = Backlog::new(BACKLOG).map_err(ServeError::system("listen"))?;
    nix::sys::socket::listen(&listener, backlog).map_err(ServeError::system("listen"))?;
    Ok(Some(listener))
}

impl Broker {
    fn run(&mut self) -> Result<(), ServeError> {
        loop {
            self.sleep()?;
            self.bury_the_dead();
            self.take_orders();
            let accepted = self.accept_all();
            self.make_ready();
            let before = self.kept.len();
            self.kept.retain(|kept| !peer::is_readable(kept.as_fd()));
            if self.kept.len() < before {
                self.deadline = Instant::now();
            }
            if !self.is_kept() && !accepted && Instant::now() >= self.deadline {
                tracing::info!(target: "server", "nobody left");
                return Ok(());
            }
        }
    }

    /// Waits until a client connects, an executor ends, or the deadline passes.
    fn sleep(&self) -> Result<(), ServeError> {
        let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        fds.extend(
            self.executors.iter().map(|executor| PollFd::new(executor.exit.as_fd(), PollFlags::POLLIN)),
        );
        fds.extend(self.kept.iter().map(|kept| PollFd::new(kept.as_fd(), PollFlags::POLLIN)));
        fds.extend(self.ready.iter().map(|ready| PollFd::new(ready.exit.as_fd(), PollFlags::POLLIN)));
        fds.extend(self.orders.iter().flat_map(Orders::polled));
        let end = (!self.is_kept()).then_some(self.deadline);
        let next = self.ready_at.into_iter().chain(end).min();
        let left = next.map(|next| next.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        match linux::poll(&mut fds, left) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(ServeError::System { what: "poll", errno }),
        }
    }

    /// Whether somebody may still come, or is here.
    fn is_kept(&self) -> bool {
        let is_wanted = self.orders.as_ref().is_some_and(Orders::is_wanted);
        !self.kept.is_empty() || !self.executors.is_empty() || is_wanted
    }

    fn take_orders(&mut self) {
        let Some(mut orders) = self.orders.take() else { return };
        orders.attend(|order| self.carry_out(order));
        self.orders = Some(orders);
    }

    fn carry_out(&mut self, order: BrokerOrder) -> BrokerAnswer {
        match order {
            BrokerOrder::Clients => {
                let living = self.executors.iter().filter(|executor| !executor.client.is_gone());
                let mut clients: Vec<i32> = living.map(|executor| executor.client.pid.as_raw()).collect();
                clients.sort_unstable();
                BrokerAnswer::Clients(clients)
            }
            BrokerOrder::Hold => {
                // A controller that ends softgpud knows of executors with clients only.
                self.ready_at = None;
                self.ready.take().into_iter().for_each(Started::end);
                BrokerAnswer::Held
            }
            BrokerOrder::Start { client } => match self.start_restored(client) {
                Ok(()) => BrokerAnswer::Started,
                Err(error) => BrokerAnswer::Failed { message: refusal::with_causes(&error) },
            },
            BrokerOrder::Stay { process } => match process_of(process, &[0, geteuid().as_raw()]) {
                Ok(peer) => {
                    self.kept.push(peer.pidfd);
                    BrokerAnswer::Stays
                }
                Err(error) => BrokerAnswer::Failed { message: refusal::with_causes(&error) },
            },
        }
    }

    /// Starts an executor for a client that does not connect by itself yet.
    fn start_restored(&mut self, client: i32) -> Result<(), ServeError> {
        let peer = process_of(client, &[geteuid().as_raw()])?;
        let is_known = |executor: &Executor| executor.client.pid == peer.pid && !executor.client.is_gone();
        if self.executors.iter().any(is_known) {
            return Err(ServeError::System {
                what: "a second executor of one process",
                errno: Errno::EEXIST,
            });
        }
        let executor = self.start(peer, true)?;
        self.executors.push(executor);
        Ok(())
    }

    /// Starts an executor for a client that has not come yet, when it is time.
    fn make_ready(&mut self) {
        if self.ready_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.ready_at = None;
        if self.ready.is_some() || self.orders.as_ref().is_some_and(Orders::holds) {
            return;
        }
        match start(None) {
            Ok(started) => self.ready = Some(started),
            // The next client has one started, or hears why not.
            Err(error) => tracing::warn!(target: "server", %error, "no executor is ready"),
        }
    }

    /// Reaps executors that have ended and gives their share of the device back.
    fn bury_the_dead(&mut self) {
        let ledger = &self.ledger;
        let before = self.executors.len();
        self.executors.retain_mut(|executor| match executor.child.try_wait() {
            Ok(None) => true,
            outcome => {
                tracing::info!(target: "server", client = %executor.client.pid, ?outcome, "executor gone");
                if let Err(error) = ledger.clear(executor.slot) {
                    tracing::error!(target: "server", %error, slot = executor.slot, "slot not cleared");
                }
                false
            }
        });
        self.ready.take_if(|ready| !matches!(ready.child.try_wait(), Ok(None)));
        if before > 0 && self.executors.is_empty() {
            self.deadline = Instant::now() + self.grace;
        }
    }

    /// Takes every connection that waits; whether there was any.
    fn accept_all(&mut self) -> bool {
        let mut any = false;
        loop {
            match linux::accept(&self.listener) {
                Ok(connection) => {
                    any = true;
                    self.route(connection);
                }
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(Errno::EAGAIN) => return any,
                Err(error) => {
                    tracing::error!(target: "server", %error, "accept");
                    // Probably out of descriptors; the connection stays in the backlog.
                    std::thread::sleep(Duration::from_millis(10));
                    return any;
                }
            }
        }
    }

    fn route(&mut self, connection: OwnedFd) {
        let peer = match Peer::of(connection.as_fd()) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::info!(target: "server", %error, "peer is gone");
                return;
            }
        };
        if peer.uid != geteuid().as_raw() {
            tracing::warn!(target: "server", uid = peer.uid, pid = %peer.pid, "connection of another user refused");
            refuse(&connection, Errno::EPERM, "softgpud serves its own user only");
            return;
        }
        let pid = peer.pid;
        let is_known = self.executors.iter().any(|executor| executor.client.pid == pid);
        if !is_known && self.orders.as_ref().is_some_and(Orders::holds) {
            // Whoever is gone needs no answer.
            let _ = wire::send(connection.as_fd(), &Reply::Busy, &[]);
            return;
        }
        let index = match self.executor_of(peer) {
            Ok(index) => index,
            Err(error) => {
                tracing::error!(target: "server", %error, %pid, "no executor");
                refuse(&connection, error.errno(), &refusal::with_causes(&error));
                return;
            }
        };
        if let Err(error) =
            wire::send(self.executors[index].control.as_fd(), &CONNECTION, &[connection.as_fd()])
        {
            tracing::error!(target: "server", %error, %pid, "executor does not take connections");
            refuse(&connection, Errno::EIO, "the executor is gone or overwhelmed");
        }
    }

    /// The executor of a process, started if need be. A pid alone does not name a process, so one whose client has
    /// ended is never chosen.
    fn executor_of(&mut self, peer: Peer) -> Result<usize, ServeError> {
        let known = |executor: &Executor| executor.client.pid == peer.pid && !executor.client.is_gone();
        if let Some(index) = self.executors.iter().position(known) {
            return Ok(index);
        }
        let executor = self.start(peer, false)?;
        self.executors.push(executor);
        Ok(self.executors.len() - 1)
    }

    fn start(&mut self, client: Peer, restored: bool) -> Result<Executor, ServeError> {
        // CAST: a pid is positive.
        let slot =
            self.ledger.claim(client.pid.as_raw().cast_unsigned()).map_err(ServeError::Ledger)?.index();
        let seed = Seed {
            slot,
            source: self.devices.source().clone(),
            records: self.records.clone(),
            control: self.controlled.then(|| executor_socket(&self.socket, client.pid.as_raw())),
            restored,
        };
        let executor = self.give(client, &seed);
        if executor.is_err()
            && let Err(error) = self.ledger.clear(slot)
        {
            tracing::error!(target: "server", %error, slot, "slot not cleared");
        }
        if std::mem::replace(&mut self.had_client, true) {
            self.ready_at = Some(Instant::now() + QUIET);
        }
        executor
    }

    /// Gives a client to the executor that is ready, or to a new one.
    fn give(&mut self, client: Peer, seed: &Seed) -> Result<Executor, ServeError> {
        let fds = [client.pidfd.as_fd(), self.ledger.as_fd()];
        let give = |started: &Started| {
            let sent = wire::send(started.control.as_fd(), seed, &fds).map_err(ServeError::Control);
            sent.and_then(|()| {
                linux::set_nonblocking(&started.control, true).map_err(ServeError::system("fcntl(F_SETFL)"))
            })
        };
        let of_ready = self.ready.take().map(|ready| {
            let named = wire::send(ready.control.as_fd(), &client.pid.as_raw(), &[]);
            let given = named.map_err(ServeError::Control).and_then(|()| give(&ready));
            given_or_ended(ready, given)
        });
        let started = match of_ready {
            Some(Ok(ready)) => ready,
            // One that was killed: a new one takes its place.
            None | Some(Err(_)) => {
                let started = start(Some(client.pid))?;
                let given = give(&started);
                given_or_ended(started, given)?
            }
        };
        let Started { control, child, exit } = started;
        let slot = seed.slot;
        tracing::info!(target: "server", client = %client.pid, executor = child.id(), slot, "executor started");
        Ok(Executor { client, control, child, exit, slot })
    }
}

/// Starts an executor: for this client, or for one that it will be told.
fn start(client: Option<Pid>) -> Result<Started, ServeError> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (control, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
        .map_err(ServeError::system("socketpair"))?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("softgpud")
        .arg("executor")
        .args(client.map(|client| client.to_string()))
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .map_err(ServeError::Spawn)?;
    match pidfd_of(&child) {
        Ok(exit) => Ok(Started { control, child, exit }),
        Err(errno) => {
            end(&mut child);
            Err(ServeError::System { what: "pidfd_open", errno })
        }
    }
}

impl Started {
    fn end(mut self) {
        end(&mut self.child);
    }
}

/// The executor, or its end if it was not given its client.
fn given_or_ended(started: Started, given: Result<(), ServeError>) -> Result<Started, ServeError> {
    match given {
        Ok(()) => Ok(started),
        Err(error) => {
            started.end();
            Err(error)
        }
    }
}

/// Ends a process that was just started; it also ends by itself when its control socket closes.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn pidfd_of(child: &Child) -> Result<OwnedFd, Errno> {
    linux::pidfd_open(Pid::from_raw(child.id().cast_signed()))
}

/// Answers the client's first request before it is read, and closes.
pub(super) fn refuse(connection: &OwnedFd, errno: Errno, message: &str) {
    let reply = Reply::Error { errno: errno::to_raw(errno), message: message.to_owned() };
    if let Err(error) = wire::send(connection.as_fd(), &reply, &[] as &[BorrowedFd<'_>]) {
        tracing::debug!(target: "server", %error, "refusal not delivered");
    }
}
