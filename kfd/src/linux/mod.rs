// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls that the workspace makes and `nix` does not wrap, or not for the purpose.
//!
//! | Function | Why not `nix` |
//! |---|---|
//! | [`ioctl`] | `nix` makes one function for each number; here the number is a value of the ioctl table |
//! | [`pread`], [`pwrite`] | the memory is given by its address, and may be shared or not mapped at all |
//! | [`duplicate_number`] | the number may name no descriptor, which a `BorrowedFd` must |
//! | [`receive_message`] | `nix` gives up the descriptors of a message that is cut off, and allocates for the others |
//! | [`accept`] | `nix` answers a number that nothing owns |
//! | [`wake_futex`], [`wait_futex`] | no wrapper |
//! | [`pidfd_open`], [`pidfd_getfd`], [`pidfd_kill`] | no wrapper |
//! | [`wait_any`] | `nix` fails with EINVAL, and has lost the child, when a real-time signal ended it |
//! | [`socket_domain`], [`socket_protocol`] | no wrapper |
//! | [`has_attribute`], [`attribute`], [`set_attribute`], [`has_writer`] | no wrapper |
//! | [`cached_pages`], [`close_range_on_exec`], [`exit_now`], [`random`], [`statx`] | no wrapper |
//! | [`peek_offset`], [`set_peek_offset`] | no wrapper |
//!
//! The other functions are shorthands of calls that `nix` wraps: [`retry`], [`poll`], [`send_message`],
//! [`set_nonblocking`], [`closes_on_exec`], [`set_close_on_exec`], [`memfd`], [`seals`], [`duplicate`],
//! [`set_receive_timeout`] and [`set_send_timeout`].
//!
//! INVARIANT: no function here but [`retry`] repeats an interrupted call.
#![allow(unsafe_code)]

mod file;

use std::ffi::{c_int, c_void};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, ppoll};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, setsockopt, sockopt};
use nix::sys::time::{TimeSpec, TimeVal};
use nix::unistd::Pid;

pub use self::file::{
    SealFlag, attribute, cached_pages, has_attribute, has_writer, memfd, seals, set_attribute, statx,
};

/// Most descriptors that Linux sends with one message (`SCM_MAX_FD`).
pub const MAX_MESSAGE_FDS: usize = 253;

const CREDENTIALS_BYTES: usize = control_bytes(size_of::<libc::ucred>());
const MAX_CONTROL_BYTES: usize = control_bytes(MAX_MESSAGE_FDS * size_of::<RawFd>()) + CREDENTIALS_BYTES;

/// Calls ioctl(2) and answers its result, which is not negative.
///
/// # Errors
/// The driver's errno; see [`crate::errno`] for numbers that Linux does not export.
///
/// # Safety
/// The driver may access the memory at `arg` as the command says, and the memory that pointers in there name.
pub unsafe fn ioctl(fd: BorrowedFd<'_>, command: u32, arg: *mut c_void) -> Result<u32, Errno> {
    // SAFETY: the caller vouches for the memory that the driver accesses.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(command), arg) };
    u32::try_from(result).map_err(|_| crate::errno::from_raw(Errno::last_raw()))
}

/// Reads up to `bytes` bytes of a file from `offset` into memory; answers how many.
///
/// # Errors
/// The errno of pread(2), EFAULT where the memory cannot be written, EOVERFLOW if `offset` exceeds `i64`.
///
/// # Safety
/// Where there is memory in `into..into + bytes`, the caller lets the kernel write it, and no reference to it exists.
pub unsafe fn pread(fd: BorrowedFd<'_>, into: *mut u8, bytes: usize, offset: u64) -> Result<usize, Errno> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the caller lets the kernel write the memory; the kernel answers EFAULT where there is none.
    moved(unsafe { libc::pread(fd.as_raw_fd(), into.cast(), bytes, offset) })
}

/// Writes up to `bytes` bytes of memory from the address `from` to a file at `offset`; answers how many.
///
/// # Errors
/// The errno of pwrite(2), EFAULT where the memory cannot be read, EOVERFLOW if `offset` exceeds `i64`.
pub fn pwrite(fd: BorrowedFd<'_>, from: usize, bytes: usize, offset: u64) -> Result<usize, Errno> {
    let from = std::ptr::with_exposed_provenance(from);
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the kernel only reads the memory, and answers EFAULT where there is none.
    moved(unsafe { libc::pwrite(fd.as_raw_fd(), from, bytes, offset) })
}

/// Copies up to `bytes` bytes of this process's memory from the address `from`; answers how many.
///
/// # Errors
/// EFAULT where the memory cannot be read or written, else the errno of process_vm_readv(2).
///
/// # Safety
/// As for [`pread`].
pub unsafe fn copy_from_self(from: usize, into: *mut u8, bytes: usize) -> Result<usize, Errno> {
    let local = libc::iovec { iov_base: into.cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(from), iov_len: bytes };
    // SAFETY: the caller lets the kernel write `into`; it only reads the other memory, and answers EFAULT where there is
    // none.
    moved(unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) })
}

/// Has the calling thread, and those that it starts from now on, run where nothing else wants the core (SCHED_IDLE).
///
/// # Errors
/// The errno of sched_setscheduler(2).
pub fn be_idle() -> Result<(), Errno> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: of the thread itself (0); the call reads `none`.
    Errno::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) }).map(drop)
}

fn moved(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno::last())
}

/// A close-on-exec duplicate of the descriptor with this number.
///
/// # Errors
/// EBADF if the number names no descriptor, EMFILE if the process has no descriptor left.
pub fn duplicate_number(number: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: the call has no pointer; it fails for a number that names no descriptor.
    let fd = Errno::result(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the call made the descriptor just now, so that nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What [`receive_message`] got.
#[derive(Debug)]
pub struct Message {
    /// Bytes of the message in the caller's memory.
    pub bytes: usize,
    /// MSG_TRUNC if bytes were cut off, MSG_CTRUNC if descriptors were.
    pub flags: MsgFlags,
    /// The descriptors beside it, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// The sender, if the socket has SO_PASSCRED.
    pub credentials: Option<UnixCredentials>,
}

/// Aligned as the headers in it.
#[repr(C)]
struct Control {
    _aligned: [libc::cmsghdr; 0],
    bytes: [MaybeUninit<u8>; MAX_CONTROL_BYTES],
}

const fn control_bytes(data: usize) -> usize {
    // SAFETY: the call only computes a size.
    unsafe { libc::CMSG_SPACE(queues::words::count(data)) as usize }
}

/// Receives one message with at most `most_fds` descriptors, no more than [`MAX_MESSAGE_FDS`]; further ones are closed.
///
/// # Errors
/// The errno of recvmsg(2).
pub fn receive_message(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    most_fds: usize,
    flags: MsgFlags,
) -> Result<Message, Errno> {
    let mut control = Control { _aligned: [], bytes: [MaybeUninit::uninit(); MAX_CONTROL_BYTES] };
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: zero is a value of each of the struct's fields.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.bytes.as_mut_ptr().cast();
    header.msg_controllen =
        control_bytes(most_fds.min(MAX_MESSAGE_FDS) * size_of::<RawFd>()) + CREDENTIALS_BYTES;
    let flags = (flags | MsgFlags::MSG_CMSG_CLOEXEC).bits();
    // SAFETY: `header` names `into`, which is borrowed mutably, and `control`, with no more bytes than they have.
    let bytes = moved(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    let mut fds = Vec::new();
    let mut credentials = None;
    // SAFETY: the kernel filled `msg_controllen` bytes of `control`, which is aligned, with headers and their data.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    // SAFETY: the pointer is null or that of a header that the kernel wrote.
    while let Some(item) = unsafe { next.as_ref() } {
        // SAFETY: `item` is a header that the kernel wrote; its data follow it.
        let data = unsafe { libc::CMSG_DATA(item) };
        // SAFETY: the call only computes a size.
        let length = item.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        match (item.cmsg_level, item.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => fds.extend((0..length / size_of::<RawFd>()).map(|at| {
                // SAFETY: the data have `length` bytes, numbers of descriptors that the kernel made for this process
                // just now, so that nothing else owns them.
                unsafe { OwnedFd::from_raw_fd(data.cast::<RawFd>().add(at).read_unaligned()) }
            })),
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<libc::ucred>() => {
                // SAFETY: the data have at least as many bytes, which the kernel wrote.
                credentials = Some(unsafe { data.cast::<libc::ucred>().read_unaligned() }.into());
            }
            _ => {}
        }
        // SAFETY: `next` is a header in the control data that `header` describes.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
    }
    let mut flags = MsgFlags::from_bits_truncate(header.msg_flags);
    // The room for credentials that did not come may have taken more descriptors.
    if fds.len() > most_fds {
        fds.truncate(most_fds);
        flags |= MsgFlags::MSG_CTRUNC;
    }
    Ok(Message { bytes, flags, fds, credentials })
}

/// Takes a connection, close-on-exec.
///
/// # Errors
/// The errno of accept4(2).
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    let number = listener.as_fd().as_raw_fd();
    // SAFETY: both pointers are null, which asks for no address.
    let fd = unsafe { libc::accept4(number, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
    let fd = Errno::result(fd)?;
    // SAFETY: the call made the descriptor just now, so that nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Wakes all threads, of any process, that wait for `word` to change.
///
/// # Errors
/// The errno of futex(2).
pub fn wake_futex(word: &AtomicU32) -> Result<(), Errno> {
    // SAFETY: the call only uses the word's address.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
    Errno::result(result).map(drop)
}

/// Sleeps until a [`wake_futex`] of any process, or until `limit` ends. Returns at once unless `word` is `expected`.
///
/// # Errors
/// EAGAIN if `word` is not `expected`, ETIMEDOUT at the end of `limit`, EINTR after a signal.
pub fn wait_futex(word: &AtomicU32, expected: u32, limit: Option<Duration>) -> Result<(), Errno> {
    let limit = limit.and_then(timespec);
    let limit = limit.as_ref().map_or(std::ptr::null(), |limit| std::ptr::from_ref(limit.as_ref()));
    // SAFETY: the kernel reads the word, which is borrowed, and the time, which is a local or null.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, limit) };
    Errno::result(result).map(drop)
}

/// A descriptor of a process, close-on-exec.
///
/// # Errors
/// The errno of pidfd_open(2), ESRCH if there is no such process.
pub fn pidfd_open(process: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY: the call has no pointer.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0) })
}

/// A duplicate of a descriptor of another process, close-on-exec.
///
/// # Errors
/// The errno of pidfd_getfd(2), EPERM if this process may not trace the other.
pub fn pidfd_getfd(process: BorrowedFd<'_>, number: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: the call has no pointer.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

/// Sends SIGKILL to a process.
///
/// # Errors
/// The errno of pidfd_send_signal(2), ESRCH if the process has ended and was waited for.
pub fn pidfd_kill(process: BorrowedFd<'_>) -> Result<(), Errno> {
    let (fd, signal) = (process.as_raw_fd(), libc::SIGKILL);
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null pointer asks for the information that kill(2) would give.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, no_info, 0) };
    Errno::result(result).map(drop)
}

/// Waits for the end of any child, and answers its pid and how it ended.
///
/// # Errors
/// The errno of wait(2): ECHILD where there is no child, EINTR after a signal.
pub fn wait_any() -> Result<(i32, ExitStatus), Errno> {
    let mut status: c_int = 0;
    // SAFETY: the kernel writes one number into the local.
    let pid = Errno::result(unsafe { libc::wait(&raw mut status) })?;
    Ok((pid, ExitStatus::from_raw(status)))
}

/// The address family of a socket (AF_*).
///
/// # Errors
/// The errno of getsockopt(2), ENOTSOCK for a descriptor of something else.
pub fn socket_domain(socket: BorrowedFd<'_>) -> Result<i32, Errno> {
    socket_number(socket, libc::SO_DOMAIN)
}

/// The protocol of a socket (IPPROTO_*), 0 for the family's own.
///
/// # Errors
/// The errno of getsockopt(2), ENOTSOCK for a descriptor of something else.
pub fn socket_protocol(socket: BorrowedFd<'_>) -> Result<i32, Errno> {
    socket_number(socket, libc::SO_PROTOCOL)
}

fn owned(result: libc::c_long) -> Result<OwnedFd, Errno> {
    let number = RawFd::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: a call that makes a descriptor, and marks it close-on-exec, answered it just now; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Marks all descriptors from `first` on close-on-exec. Async-signal-safe.
///
/// # Errors
/// EINVAL or ENOSYS if the kernel is older than 5.11.
pub fn close_range_on_exec(first: u32) -> Result<(), Errno> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: the call has no pointer and closes nothing.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) };
    Errno::result(result).map(drop)
}

/// Ends the process without destructors and exit handlers. Async-signal-safe.
pub fn exit_now(status: c_int) -> ! {
    // SAFETY: the call has no precondition.
    unsafe { libc::_exit(status) }
}

/// Sixteen random bytes.
///
/// # Errors
/// The errno of getrandom(2).
pub fn random() -> Result<[u8; 16], Errno> {
    let mut bytes = [0_u8; 16];
    // SAFETY: the kernel writes at most as many bytes as the local has.
    let drawn = moved(unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) })?;
    if drawn == bytes.len() { Ok(bytes) } else { Err(Errno::EIO) }
}

/// `beginning` and 16 random hex digits: a name that no other memfd has.
///
/// # Errors
/// As [`random`].
pub fn unique_name(beginning: &str) -> Result<String, Errno> {
    let digits: String = random()?.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{beginning}{digits}"))
}

/// Where a socket peeks from (SO_PEEK_OFF): -1 for the begin of its queue at each peek.
///
/// # Errors
/// The errno of getsockopt(2).
pub fn peek_offset(socket: BorrowedFd<'_>) -> Result<i32, Errno> {
    socket_number(socket, libc::SO_PEEK_OFF)
}

/// An option of a socket (level SOL_SOCKET) that is a number.
fn socket_number(socket: BorrowedFd<'_>, option: c_int) -> Result<i32, Errno> {
    let mut number = -1_i32;
    let mut length = queues::words::count(size_of::<i32>());
    let level = libc::SOL_SOCKET;
    let value = (&raw mut number).cast();
    // SAFETY: the kernel writes at most `length` bytes into a local of that size.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, value, &raw mut length) };
    Errno::result(result).map(|_| number)
}

/// Has a socket peek from another place; see [`peek_offset`].
///
/// # Errors
/// The errno of setsockopt(2).
pub fn set_peek_offset(socket: BorrowedFd<'_>, offset: i32) -> Result<(), Errno> {
    let length = queues::words::count(size_of::<i32>());
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEEK_OFF);
    let value = (&raw const offset).cast();
    // SAFETY: the kernel reads `length` bytes of a local of that size.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    Errno::result(result).map(drop)
}

/// Repeats a call that signals interrupt.
///
/// # Errors
/// What the call says but EINTR.
pub fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            outcome => return outcome,
        }
    }
}

/// Waits until one of `fds` has an event or `limit` ends (`None`: no limit); answers how many have one.
///
/// # Errors
/// The errno of ppoll(2), EINTR after a signal.
pub fn poll(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<usize, Errno> {
    let ready = ppoll(fds, limit.and_then(timespec), None)?;
    Ok(usize::try_from(ready).unwrap_or_default())
}

/// A duration beyond the range of the kernel's clock has no such value: it never ends.
fn timespec(limit: Duration) -> Option<TimeSpec> {
    i64::try_from(limit.as_secs()).is_ok().then(|| TimeSpec::from_duration(limit))
}

/// Sends one message with duplicates of `fds` beside it; answers how many bytes were sent.
///
/// # Errors
/// The errno of sendmsg(2), EINVAL for more than [`MAX_MESSAGE_FDS`] descriptors.
pub fn send_message(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: MsgFlags,
) -> Result<usize, Errno> {
    if fds.is_empty() {
        return nix::sys::socket::send(socket.as_raw_fd(), bytes, flags);
    }
    let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let beside = [ControlMessage::ScmRights(&numbers)];
    nix::sys::socket::sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], &beside, flags, None)
}

/// Whether calls on the open file fail with EAGAIN where they would have to wait.
///
/// # Errors
/// The errno of fcntl(2).
pub fn set_nonblocking(fd: impl AsFd, nonblocking: bool) -> Result<(), Errno> {
    let mut flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    flags.set(OFlag::O_NONBLOCK, nonblocking);
    fcntl(&fd, FcntlArg::F_SETFL(flags)).map(drop)
}

/// Whether a descriptor closes on exec.
///
/// # Errors
/// The errno of fcntl(2).
pub fn closes_on_exec(fd: impl AsFd) -> Result<bool, Errno> {
    Ok(fcntl(fd, FcntlArg::F_GETFD)? & libc::FD_CLOEXEC != 0)
}

/// Makes a descriptor close on exec, or not.
///
/// # Errors
/// The errno of fcntl(2).
pub fn set_close_on_exec(fd: impl AsFd, closes: bool) -> Result<(), Errno> {
    let flags = if closes { FdFlag::FD_CLOEXEC } else { FdFlag::empty() };
    fcntl(fd, FcntlArg::F_SETFD(flags)).map(drop)
}

/// Another descriptor of the same open file, close-on-exec.
///
/// # Errors
/// EMFILE if the process has no descriptor left.
pub fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    duplicate_number(fd.as_fd().as_raw_fd())
}

/// Limits how long a receive from a socket waits; a limit of zero is taken for the shortest that there is.
///
/// # Errors
/// The errno of setsockopt(2).
pub fn set_receive_timeout(socket: impl AsFd, limit: Duration) -> Result<(), Errno> {
    setsockopt(&socket, sockopt::ReceiveTimeout, &timeval(limit))
}

/// Limits how long a send on a socket waits; a limit of zero is taken for the shortest that there is.
///
/// # Errors
/// The errno of setsockopt(2).
pub fn set_send_timeout(socket: impl AsFd, limit: Duration) -> Result<(), Errno> {
    setsockopt(&socket, sockopt::SendTimeout, &timeval(limit))
}

/// The kernel takes a time of zero for no limit.
fn timeval(limit: Duration) -> TimeVal {
    let micros = limit.as_nanos().div_ceil(1000).max(1);
    let seconds = i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX);
    // CAST: less than a million.
    TimeVal::new(seconds, (micros % 1_000_000) as i64)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use nix::unistd::{pipe2, read};

    use super::*;

    #[test]
    fn descriptors_beyond_the_limit_are_closed_and_the_message_says_so() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        for (sent, most) in [(0, 1), (1, 1), (3, 1), (40, 1), (3, 3), (MAX_MESSAGE_FDS, MAX_MESSAGE_FDS)] {
            let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
            let fds = vec![writer.as_fd(); sent];
            let bytes = send_message(ours.as_fd(), b"text", &fds, MsgFlags::MSG_NOSIGNAL).unwrap();
            let received = receive_message(theirs.as_fd(), &mut [0; 8], most, MsgFlags::empty()).unwrap();
            assert_eq!((received.bytes, received.fds.len()), (bytes, sent.min(most)));
            assert_eq!(received.flags.contains(MsgFlags::MSG_CTRUNC), sent > most, "{sent} {most}");
            assert!(received.fds.iter().all(|fd| closes_on_exec(fd).unwrap()));
            drop((received, writer));
            assert_eq!(read(&reader, &mut [0; 1]), Ok(0), "a descriptor is left: {sent} {most}");
        }
    }

    #[test]
    fn limits_are_rounded_up_and_never_zero() {
        for (limit, seconds, micros) in [
            (Duration::ZERO, 0, 1),
            (Duration::from_nanos(1001), 0, 2),
            (Duration::from_millis(1500), 1, 500_000),
        ] {
            assert_eq!(timeval(limit), TimeVal::new(seconds, micros), "{limit:?}");
        }
        assert!(timespec(Duration::MAX).is_none());
    }
}
