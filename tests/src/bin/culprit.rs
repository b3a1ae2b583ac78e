// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds one resource that CRIU cannot dump, or dumps only with an option, and sleeps: `stasis preflight` must find it.
//!
//! Prints `ready PID` once it holds it; ends with status 77 where the kernel does not have such a thing.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use kfd::linux::pidfd_open;
use memmap2::MmapOptions;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, fork, ftruncate, getppid, pause};

/// Exit status: this kernel does not have the resource.
const UNAVAILABLE: u8 = 77;

/// Takes ownership of a descriptor that the kernel has just given.
fn keep(given: libc::c_long) -> Result<OwnedFd> {
    ensure!(given >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just made the descriptor, and no other code knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(given)?) })
}

/// Forgets an owner, so that the resource stays.
fn leak(fd: impl IntoRawFd) {
    let _ = fd.into_raw_fd();
}

fn io_uring() -> Result<()> {
    let mut parameters = [0u8; 120];
    // SAFETY: the structure has 120 bytes, all zero for no options.
    leak(keep(unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) })?);
    Ok(())
}

fn userfaultfd() -> Result<()> {
    // SAFETY: takes flags only.
    leak(keep(unsafe { libc::syscall(libc::SYS_userfaultfd, 0) })?);
    Ok(())
}

fn perf_event() -> Result<()> {
    // perf_event_attr: PERF_TYPE_SOFTWARE, its size, PERF_COUNT_SW_CPU_CLOCK.
    let mut attributes = [0u32; 32];
    (attributes[0], attributes[1]) = (1, 128);
    // SAFETY: the structure has the 128 bytes it says.
    leak(keep(unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0) })?);
    Ok(())
}

fn map_shared(fd: &OwnedFd) -> Result<()> {
    std::mem::forget(MmapOptions::new().len(4096).map_raw(fd)?);
    Ok(())
}

fn secret_memory() -> Result<()> {
    // SAFETY: takes flags only.
    let fd = keep(unsafe { libc::syscall(libc::SYS_memfd_secret, 0) })?;
    ftruncate(&fd, 4096)?;
    map_shared(&fd)
}

fn memfd(close: bool) -> Result<()> {
    let fd = memfd_create("shared", MFdFlags::MFD_CLOEXEC)?;
    ftruncate(&fd, 4096)?;
    map_shared(&fd)?;
    if !close {
        leak(fd);
    }
    Ok(())
}

fn system_v() -> Result<()> {
    // SAFETY: a new segment, attached where the kernel likes, gone with its last user.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600);
        ensure!(id >= 0, "{}", std::io::Error::last_os_error());
        let address = libc::shmat(id, std::ptr::null(), 0);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        ensure!(address.addr() != usize::MAX, "{}", std::io::Error::last_os_error());
    }
    Ok(())
}

fn socket(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd> {
    // SAFETY: takes numbers only.
    keep(unsafe { libc::socket(family, kind, protocol) }.into())
}

fn message_queue() -> Result<()> {
    let name = CString::new(format!("/culprit-{}", std::process::id()))?;
    let attributes = std::ptr::null_mut::<libc::mq_attr>();
    // SAFETY: a name and no attributes.
    let fd = unsafe { libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600, attributes) };
    // SAFETY: the name is a string that ends with NUL.
    unsafe { libc::mq_unlink(name.as_ptr()) };
    leak(keep(fd.into())?);
    Ok(())
}

fn bpf_map() -> Result<()> {
    // union bpf_attr of BPF_MAP_CREATE: an array of one word.
    let attributes = [2u32, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the structure has the bytes it is said to have.
    leak(keep(unsafe { libc::syscall(libc::SYS_bpf, 0, attributes.as_ptr(), size_of_val(&attributes)) })?);
    Ok(())
}

/// The process ends with its test; a traced process cannot be reaped before its tracer has ended.
fn end_with_parent() {
    let _ = set_pdeathsig(Signal::SIGKILL);
}

/// Has a child of this process trace it.
fn traced() -> Result<()> {
    let (mut ready, told) = std::io::pipe()?;
    // SAFETY: the child makes only system calls.
    match unsafe { fork() }? {
        ForkResult::Child => {
            end_with_parent();
            // Seizes the parent, says whether it could, and sleeps.
            let failed = ptrace::seize(getppid(), ptrace::Options::empty()).is_err();
            let _ = nix::unistd::write(&told, &[u8::from(failed)]);
            drop((told, ready));
            loop {
                pause();
            }
        }
        ForkResult::Parent { .. } => {
            let mut seized = [1u8];
            std::io::Read::read_exact(&mut ready, &mut seized)?;
            ensure!(seized == [0], "the child may not trace us");
            Ok(())
        }
    }
}

/// A file of this many bytes whose name is gone, in the directory.
fn deleted(directory: &Path, bytes: usize) -> Result<File> {
    let path = directory.join("deleted");
    let mut file = File::create_new(&path)?;
    file.write_all(&vec![b'x'; bytes])?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn hold(thing: &str, argument: &Path) -> Result<()> {
    match thing {
        "nothing" => {}
        "io-uring" => io_uring()?,
        "userfaultfd" => userfaultfd()?,
        "perf-event" => perf_event()?,
        "secret-memory" => secret_memory()?,
        "memfd" => memfd(false)?,
        "mapped-memfd" => memfd(true)?,
        "system-v" => system_v()?,
        "vsock" => leak(socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)?),
        "mptcp" => leak(socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP)?),
        "unbound" => leak(socket(libc::AF_INET, libc::SOCK_STREAM, 0)?),
        "netlink" => leak(socket(libc::AF_NETLINK, libc::SOCK_RAW, 0)?),
        "message-queue" => message_queue()?,
        "bpf-map" => bpf_map()?,
        "traced" => traced()?,
        "device" => leak(OpenOptions::new().read(true).write(true).open(argument)?),
        "pidfd" => {
            leak(pidfd_open(getppid())?);
        }
        "lock" => {
            let file = File::create(argument.join("locked"))?;
            std::mem::forget(Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)?);
        }
        "large-deleted-file" => leak(deleted(argument, 2 << 20)?),
        "small-deleted-file" => leak(deleted(argument, 4096)?),
        "renamed-file" => {
            let (first, other) = (argument.join("first"), argument.join("other"));
            leak(File::create_new(&first)?);
            std::fs::hard_link(&first, &other)?;
            std::fs::remove_file(&first)?;
        }
        "unix-stream" => leak(UnixStream::connect(argument)?),
        "unix-datagram" => {
            let socket = UnixDatagram::unbound()?;
            socket.connect(argument)?;
            leak(socket);
        }
        "unix-pair" => {
            let (a, b) = UnixStream::pair()?;
            leak(a);
            leak(b);
        }
        "tcp-connection" => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let client = TcpStream::connect(listener.local_addr()?)?;
            let server = listener.accept()?.0;
            leak(client);
            leak(server);
            leak(listener);
        }
        "tcp-listener" => leak(TcpListener::bind("127.0.0.1:0")?),
        "tcp-waiting" => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let client = TcpStream::connect(listener.local_addr()?)?;
            drop(client);
            leak(listener);
        }
        "child" => {
            // A tree: the child holds the resource, the parent nothing.
            std::process::Command::new(std::env::current_exe()?)
                .arg(argument)
                .stdout(std::process::Stdio::null())
                .spawn()?;
        }
        _ => bail!("{thing} is not understood"),
    }
    Ok(())
}

fn main() -> ExitCode {
    end_with_parent();
    let mut words = std::env::args().skip(1);
    let thing = words.next().unwrap_or_default();
    let argument = words.next().unwrap_or_default();
    if let Err(error) = hold(&thing, Path::new(&argument)) {
        println!("{thing}: {error}");
        return UNAVAILABLE.into();
    }
    println!("ready {}", std::process::id());
    loop {
        std::thread::park();
    }
}
