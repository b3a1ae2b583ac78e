// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor: a process that holds the whole device state of one client process.
//!
//! It takes connections from the broker and answers each on a thread of its own, so that a call that blocks
//! blocks no other connection. It ends when the client process is gone (`pidfd`), whatever is running; not when the client closes
//! its connections, and not when the broker ends.
//!
//! INVARIANT: the client's window of addresses (16 to 80 TiB) holds nothing but the client's buffers (`window`).

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use kfd::linux;
use kfd::transport::wire::{self, ReceiveBuffer, WireError};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::channel::Channel;
use super::devices::{Devices, Source};
use super::error::ServeError;
use super::host::Host;
use super::keeper::Keeper;
use super::peer;
use super::{layout, sys, window};
use crate::driver::Ledger;
use crate::reaper;

/// Connections that one client may have at a time.
const MAX_CHANNELS: usize = 1024;

/// Runs an executor whose client has not come yet: the broker, at the other end of stdin, says which process it is.
///
/// # Errors
/// As [`execute`]. That the broker ends before a client comes is none.
pub fn execute_when_wanted() -> Result<(), ServeError> {
    let client = wire::receive::<i32>(std::io::stdin().as_fd(), &mut ReceiveBuffer::new());
    match client {
        Ok(client) => execute(client.message, 0),
        Err(WireError::Closed) => Ok(()),
        Err(error) => Err(ServeError::Control(error)),
    }
}

/// Runs an executor to the end of its client, the process `client`. The broker is at the other end of stdin. `tries` says how
/// often it has executed itself again for the sake of its addresses.
///
/// # Errors
/// [`ServeError`] when the broker's first message or the device it describes is invalid.
pub fn execute(client: i32, tries: u32) -> Result<(), ServeError> {
    layout::settle(Pid::from_raw(client), tries)?;
    tell_name(client);
    let control = linux::duplicate(std::io::stdin()).map_err(ServeError::system("fcntl(F_DUPFD_CLOEXEC)"))?;
    sys::null_stdio(super::log::is_wanted()).map_err(ServeError::system("dup2"))?;
    window::check()?;
    raise_descriptor_limit();
    let mut buffer = ReceiveBuffer::new();
    let seed = wire::receive::<Seed>(control.as_fd(), &mut buffer).map_err(ServeError::Control)?;
    let Seed { slot, source, records, control: orders, restored } = seed.message;
    let [pidfd, ledger] =
        <[OwnedFd; 2]>::try_from(seed.fds).map_err(|fds| ServeError::Seed { found: fds.len() })?;
    let client = pid_of(&pidfd).map_err(ServeError::system("reading the client's pidfd"))?;
    let ledger = Ledger::open(ledger).map_err(ServeError::Ledger)?;
    let share = ledger.slot(slot).map_err(ServeError::Ledger)?;
    let trace = records.trace.as_deref().map(append_to).transpose()?;
    let report = records.report.as_deref().map(append_to).transpose()?;
    let devices = Devices::again(source)?;
    reaper::turn_on();
    let keeper = orders.map(|name| Keeper::listen(&name)).transpose()?;
    let made: Arc<OnceLock<Arc<Host>>> = Arc::default();
    let watched = Arc::clone(&made);
    let end_with_client = move || {
        peer::wait_gone(pidfd.as_fd());
        if let (Some(report), Some(host)) = (report, watched.get()) {
            tell(report, host);
        }
        tracing::info!(target: "server", %client, "client gone");
        // What still runs belongs to a client that has ended; the kernel cleans up.
        sys::end_all_threads();
    };
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    thread("client").spawn(end_with_client).map_err(ServeError::Thread)?;
    let host = match keeper {
        Some(keeper) if restored => keeper.restore(|state, given, clock_offset| {
            let trace = trace.as_ref().map(File::try_clone).transpose().map_err(|error| error.to_string())?;
            Host::restore(&devices, share.clone(), client, trace, state, given, clock_offset).map(Arc::new)
        })?,
        keeper => {
            let host = Arc::new(Host::new(&devices, share, client, trace)?);
            if let Some(keeper) = keeper {
                let of_keeper = Arc::clone(&host);
                thread("keeper").spawn(move || keeper.serve(&of_keeper)).map_err(ServeError::Thread)?;
            }
            host
        }
    };
    // Nobody else sets it.
    let _ = made.set(Arc::clone(&host));
    take_connections(&control, &mut buffer, &host);
    // The other thread ends the process when the client is gone.
    loop {
        std::thread::park();
    }
}

/// Has `ps` and `/proc/PID/comm` say whose executor this is: it may have been started before its client.
fn tell_name(client: i32) {
    // At most 14 bytes, of the 15 that there is room for.
    if let Some(name) = CString::new(format!("client {client}")).ok()
        && let Err(errno) = nix::sys::prctl::set_name(&name)
    {
        tracing::debug!(target: "server", %errno, "the process has no name");
    }
}

/// What the broker tells a new executor first.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Seed {
    /// Its slot in the ledger.
    pub(super) slot: usize,
    /// Its machine.
    pub(super) source: Source,
    /// Where it tells what its client did.
    pub(super) records: Records,
    /// The abstract socket on which it takes a controller's orders.
    pub(super) control: Option<String>,
    /// Whether a controller gives it the state of a restored client.
    pub(super) restored: bool,
}

/// Files to which executors append what their clients did; none where nobody wants to know.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Records {
    /// A line of JSON for each client, at its end ([`crate::journal::Summary`]).
    pub report: Option<PathBuf>,
    /// A line of JSON for each ioctl and dispatch.
    pub trace: Option<PathBuf>,
}

fn append_to(path: &Path) -> Result<File, ServeError> {
    let file = File::options().append(true).create(true).open(path);
    file.map_err(|source| ServeError::Record { path: path.to_owned(), source })
}

/// Writes the client's line, at once, so that lines of several executors do not mix.
fn tell(mut report: File, host: &Host) {
    let line = serde_json::to_string(&host.summary()).map_err(std::io::Error::other);
    if let Err(error) = line.and_then(|line| report.write_all(format!("{line}\n").as_bytes())) {
        tracing::warn!(target: "server", %error, "what the client did is not reported");
    }
}

/// Allows as many open files as the user may have: each buffer is one here, and one more while it is checkpointed.
fn raise_descriptor_limit() {
    let files = Resource::RLIMIT_NOFILE;
    if let Err(errno) = getrlimit(files).and_then(|(_, most)| setrlimit(files, most, most)) {
        tracing::warn!(target: "server", %errno, "limit of open files not raised");
    }
}

/// Accepts connections until the broker has ended.
fn take_connections(control: &OwnedFd, buffer: &mut ReceiveBuffer, host: &Arc<Host>) {
    let channels = Arc::new(AtomicUsize::new(0));
    loop {
        match wire::receive::<u8>(control.as_fd(), buffer) {
            Ok(received) => {
                for connection in received.fds {
                    start_channel(connection, host, &channels);
                }
            }
            Err(WireError::LostFds) => {
                tracing::error!(target: "server", "connection lost: out of descriptors")
            }
            Err(error) => {
                tracing::warn!(target: "server", %error, "broker gone; no new connections");
                return;
            }
        }
    }
}

fn start_channel(connection: OwnedFd, host: &Arc<Host>, channels: &Arc<AtomicUsize>) {
    if channels.fetch_add(1, Ordering::Relaxed) >= MAX_CHANNELS {
        channels.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(target: "server", "more than {MAX_CHANNELS} connections");
        return;
    }
    let (host, count) = (Arc::clone(host), Arc::clone(channels));
    let spawned = std::thread::Builder::new().name("channel".to_owned()).spawn(move || {
        let _left = Left(count);
        if let Some(channel) = Channel::new(connection, host) {
            channel.run();
        }
    });
    if let Err(error) = spawned {
        channels.fetch_sub(1, Ordering::Relaxed);
        tracing::error!(target: "server", %error, "no thread for a connection");
    }
}

/// Counts a channel out, also when its thread panics.
struct Left(Arc<AtomicUsize>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The process that a pidfd names (`/proc/self/fdinfo`, field `Pid`).
fn pid_of(pidfd: &OwnedFd) -> Result<Pid, Errno> {
    use std::os::fd::AsRawFd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))
        .map_err(|_| Errno::ESRCH)?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
    pid.filter(|pid| *pid > 0).map(Pid::from_raw).ok_or(Errno::ESRCH)
}
