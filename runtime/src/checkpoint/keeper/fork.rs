// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keepers themselves: forks that make only async-signal-safe calls, on memory prepared before.
//!
//! INVARIANT: a keeper serves once it has been told to begin, which is after all of them have said that they can. Until
//! then it ends when its caller closes the socket pair between them, so that a failure leaves nobody behind.
//!
//! ```text
//!   caller ────fork──► intermediate ──fork──► keeper 0          keeper 1
//!     │                  │ ───fork─────────────────────────────►│
//!     │                  x (its keepers are orphans)            │
//!     │◄────────────── (0, pid) ─────┤                          │
//!     │◄────────────────────────────────────────── (1, pid) ────┤
//!     │─ BEGIN, BEGIN ──────────────►│ serves                   │ serves
//! ```
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use kfd::forks;
use kfd::linux::{pidfd_open, poll, retry};
use nix::errno::Errno;
use queues::words::count;
// What the forks call is plain libc: async-signal-safe, and without an allocation that a wrapper may make.
use nix::libc;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::super::message::MAX_FILES;
use super::{COUNT, KeeperError, system};
use crate::linux::credentials::Peer;

/// Asks a keeper for its files.
pub(super) const GIVE: u8 = b'g';
/// Has a keeper end.
pub(super) const END: u8 = b'e';
/// Has a keeper begin to serve.
const BEGIN: u8 = b'b';

/// TIMEOUT: how long forks of a large process may take on a busy machine.
const BEGINNING: Duration = Duration::from_secs(20);
/// TIMEOUT, milliseconds: how long a keeper waits for the word to begin, should the caller's
/// end of the socket pair stay open in another fork, and for the next order of who is connected.
const PATIENCE: i32 = 60_000;
/// How many may wait to be served.
const BACKLOG: i32 = 4;

/// What is said of a keeper: which one, and its pid, or the negative errno of what failed.
type Report = [i32; 2];

/// Forks a keeper a listener, which answers `owner`, and nobody else but root, until that is gone. Says their pids.
/// `is_new`: nobody listens yet.
///
/// # Errors
/// [`KeeperError`]: none of them is left.
pub(super) fn fork_keepers(
    listeners: &[BorrowedFd<'_>],
    files: &[BorrowedFd<'_>],
    owner: Pid,
    is_new: bool,
) -> Result<Vec<i32>, KeeperError> {
    if files.len() > MAX_FILES {
        return Err(KeeperError::TooMany { count: files.len() });
    }
    let original = pidfd_open(owner).map_err(system("watch the process of"))?;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(system("make a socket pair for"))?;
    let common = Common { original: original.as_raw_fd(), pair: theirs.as_raw_fd(), owner, is_new };
    let mut setups: Vec<_> =
        (0..).zip(listeners).map(|(at, listener)| Setup::new(at, *listener, files, &common)).collect();
    // SAFETY: the child runs `divide` only, which keeps to async-signal-safe calls on prepared memory.
    let intermediate = forks::own(|| unsafe { libc::fork() });
    match intermediate {
        -1 => return Err(KeeperError::Fork(io::Error::last_os_error())),
        0 => divide(&mut setups),
        _ => {}
    }
    drop(theirs);
    let reported = reports(&ours, setups.len());
    if matches!(reported, Err(KeeperError::Silent { .. })) {
        // A child that was not waited for is there.
        let _ = kill(Pid::from_raw(intermediate), Signal::SIGKILL);
    }
    // It ends at once. Any other failure: somebody else reaped it (SIGCHLD ignored), and it is gone all the same.
    let _ = retry(|| waitpid(Pid::from_raw(intermediate), None));
    let pids = reported?;
    for _ in &pids {
        retry(|| send(ours.as_raw_fd(), &[BEGIN], MsgFlags::MSG_NOSIGNAL))
            .map_err(system("give the word to"))?;
    }
    Ok(pids)
}

/// The pids of all keepers, once each has said that it can serve.
fn reports(ours: &OwnedFd, count: usize) -> Result<Vec<i32>, KeeperError> {
    let started = Instant::now();
    let mut pids = vec![None; count];
    while pids.contains(&None) {
        let left = BEGINNING.saturating_sub(started.elapsed());
        let mut fds = [PollFd::new(ours.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, Some(left)) {
            Ok(0) => return Err(KeeperError::Silent { waited: started.elapsed() }),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(system("wait for")(error)),
        }
        let mut bytes = [0u8; size_of::<Report>()];
        let length = retry(|| recv(ours.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT))
            .map_err(system("hear from"))?;
        if length < bytes.len() {
            return Err(KeeperError::Ended);
        }
        let [at, value] = [0, 4].map(|from| {
            let mut word = [0u8; 4];
            word.copy_from_slice(&bytes[from..from + 4]);
            i32::from_ne_bytes(word)
        });
        if value < 0 {
            return Err(KeeperError::Fork(io::Error::from_raw_os_error(-value)));
        }
        if let Some(pid) = usize::try_from(at).ok().and_then(|at| pids.get_mut(at)) {
            *pid = Some(value);
        }
    }
    Ok(pids.into_iter().flatten().collect())
}

/// Runs in the first fork: leaves the session and forks the keepers, all or none.
fn divide(setups: &mut [Setup]) -> ! {
    // SAFETY: async-signal-safe calls only, on locals and memory prepared before the fork.
    unsafe {
        // The signal handlers are the application's, and not for a keeper to run.
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        // A directory that its caller is in can be unmounted.
        libc::chdir(c"/".as_ptr());
        let mut forked = [0; COUNT];
        for at in 0..setups.len().min(COUNT) {
            match libc::fork() {
                0 => setups[at].serve(),
                -1 => {
                    let errno = *libc::__errno_location();
                    // The sockets and files that these hold must be free for the next attempt.
                    for &pid in &forked[..at] {
                        libc::kill(pid, libc::SIGKILL);
                        libc::waitpid(pid, std::ptr::null_mut(), 0);
                    }
                    setups[at].report(-errno);
                    libc::_exit(1)
                }
                pid => forked[at] = pid,
            }
        }
        libc::_exit(0)
    }
}

/// What is the same for all keepers.
struct Common {
    original: RawFd,
    pair: RawFd,
    owner: Pid,
    is_new: bool,
}

/// What a keeper needs, laid out before it is forked.
struct Setup {
    at: i32,
    listener: RawFd,
    original: RawFd,
    pair: RawFd,
    owner: i32,
    is_new: bool,
    kept: [RawFd; MAX_FILES + 3],
    count: usize,
    control: [u64; 64],
    control_bytes: usize,
}

impl Setup {
    fn new(at: i32, listener: BorrowedFd<'_>, files: &[BorrowedFd<'_>], common: &Common) -> Self {
        let mut kept = [RawFd::MAX; MAX_FILES + 3];
        [kept[0], kept[1], kept[2]] = [listener.as_raw_fd(), common.original, common.pair];
        for (slot, file) in kept[3..].iter_mut().zip(files) {
            *slot = file.as_raw_fd();
        }
        kept.sort_unstable();
        // `fork_keepers` has seen to it that they are at most MAX_FILES.
        let fd_bytes = count(files.len() * size_of::<RawFd>());
        let mut control = [0u64; 64];
        // SAFETY: CMSG_LEN/CMSG_SPACE compute sizes; `control` (512 B, 8-byte aligned) holds a header and 64 fds.
        let control_bytes = unsafe {
            let header = control.as_mut_ptr().cast::<libc::cmsghdr>();
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(fd_bytes) as usize;
            let mut data = libc::CMSG_DATA(header).cast::<RawFd>();
            for file in files {
                data.write_unaligned(file.as_raw_fd());
                data = data.add(1);
            }
            libc::CMSG_SPACE(fd_bytes) as usize
        };
        let Common { original, pair, owner, is_new } = *common;
        let (listener, owner) = (listener.as_raw_fd(), owner.as_raw());
        let count = files.len() + 3;
        Self { at, listener, original, pair, owner, is_new, kept, count, control, control_bytes }
    }

    /// # Safety
    /// Must run in a fork that does nothing else.
    unsafe fn serve(&mut self) -> ! {
        // SAFETY: every call is async-signal-safe and works on memory prepared before the fork; descriptors are ours.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, c"stasis-keeper".as_ptr());
            self.close_others();
            // The socket's credentials become this process's, by which the owner knows it.
            if self.is_new && libc::listen(self.listener, BACKLOG) != 0 {
                self.report(-*libc::__errno_location());
                libc::_exit(1);
            }
            if !self.report(libc::getpid()) {
                libc::_exit(1);
            }
            let mut word = 0;
            if !self.hear(self.pair, &mut word) || word != BEGIN {
                libc::_exit(1);
            }
            libc::close(self.pair);
            loop {
                if !self.wait(self.listener, -1) {
                    continue;
                }
                let peer = libc::accept4(
                    self.listener,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    libc::SOCK_CLOEXEC,
                );
                if peer >= 0 {
                    self.attend(peer);
                    libc::close(peer);
                }
            }
        }
    }

    /// # Safety
    /// As [`Setup::serve`].
    unsafe fn close_others(&self) {
        let mut from: u32 = 0;
        for &fd in &self.kept[..self.count] {
            // An open descriptor is not negative.
            let fd = fd.cast_unsigned();
            if fd > from {
                // SAFETY: plain system call; nobody in this process uses those descriptors.
                unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
            }
            from = fd + 1;
        }
        // SAFETY: plain system call; nobody in this process uses the descriptors behind the last that is kept.
        unsafe { libc::syscall(libc::SYS_close_range, from, u32::MAX, 0) };
    }

    /// Tells the caller of this keeper; says whether it was there.
    ///
    /// # Safety
    /// As [`Setup::serve`].
    unsafe fn report(&self, value: i32) -> bool {
        let report: Report = [self.at, value];
        let length = size_of::<Report>();
        // SAFETY: reads a local of that length.
        let sent = unsafe { libc::send(self.pair, report.as_ptr().cast(), length, libc::MSG_NOSIGNAL) };
        // CAST: eight bytes.
        sent == length as isize
    }

    /// Waits until `fd` is readable or at its end, for so many milliseconds; does not return once the owner is gone.
    ///
    /// # Safety
    /// As [`Setup::serve`].
    unsafe fn wait(&self, fd: RawFd, limit: i32) -> bool {
        let mut fds = [
            libc::pollfd { fd: self.original, events: libc::POLLIN, revents: 0 },
            libc::pollfd { fd, events: libc::POLLIN, revents: 0 },
        ];
        // SAFETY: two locals.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, limit) };
        if ready > 0 && fds[0].revents != 0 {
            // SAFETY: async-signal-safe.
            unsafe { libc::_exit(0) }
        }
        ready > 0
    }

    /// The next message of one byte from `fd`; `false` if none comes.
    ///
    /// # Safety
    /// As [`Setup::serve`].
    unsafe fn hear(&self, fd: RawFd, byte: &mut u8) -> bool {
        // SAFETY: as this function's; one byte is written at most.
        unsafe {
            while self.wait(fd, PATIENCE) {
                match libc::recv(fd, std::ptr::from_mut(byte).cast(), 1, libc::MSG_DONTWAIT) {
                    // The other keeper, which reads from the same end, was faster.
                    -1 if *libc::__errno_location() == libc::EAGAIN => {}
                    length => return length == 1,
                }
            }
            false
        }
    }

    /// Carries out the orders of who has connected, if it is entitled to give any.
    ///
    /// # Safety
    /// `peer` is an open socket; as [`Setup::serve`].
    unsafe fn attend(&mut self, peer: RawFd) {
        // SAFETY: as this function's.
        unsafe {
            let is_entitled = Peer::of(BorrowedFd::borrow_raw(peer))
                .is_ok_and(|who| who.pid == Some(self.owner) || who.uid == 0);
            let mut order = 0;
            while is_entitled && self.hear(peer, &mut order) {
                match order {
                    GIVE if self.give(peer) => {}
                    END => libc::_exit(0),
                    _ => return,
                }
            }
        }
    }

    /// # Safety
    /// As [`Setup::attend`].
    unsafe fn give(&mut self, peer: RawFd) -> bool {
        let mut byte = 1u8;
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: msghdr is plain data; all pointers name locals or `self` and outlive the call.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = self.control.as_mut_ptr().cast();
            message.msg_controllen = self.control_bytes;
            libc::sendmsg(peer, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) == 1
        }
    }
}
