// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the render-node files open in another process while this one must not hold them.
//!
//! KFD ties a process's GPU VM to one open render file for the life of the address space (`ACQUIRE_VM` with another
//! file: EBUSY, `kfd_process.c`), so a process that runs on after a checkpoint needs that very file again. An orphaned
//! fork holds it: outside the process tree that CRIU dumps, found again by a socket name, gone with its original.
//!
//! In a container no fork is outside that tree: process 1 inherits it. There whoever dumps the container takes the
//! keeper's place ([`succeed_keeper`]), under the same name: root, who may take those files from their process anyway.
//!
//! The fork of a process with threads may only make async-signal-safe calls: everything it needs is prepared before,
//! and its loop allocates nothing.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, recvmsg,
};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::credentials::Peer;

/// What keepers' sockets are named, before the process that the files belong to, as it knows itself, and a number.
pub const KEEPER_NAME: &str = "stasis-keeper.";

/// Most files one keeper holds: one render node a GPU.
const MAX_FILES: usize = 64;

/// What is left with a keeper.
#[derive(Debug)]
pub struct Held {
    /// The render files, in the order of the agents.
    pub renders: Vec<OwnedFd>,
    /// The image: whoever moves or removes its directory takes nothing from a process that has to go on.
    pub image: Option<OwnedFd>,
}

/// Where the files went.
#[derive(Debug)]
pub struct Keeper {
    name: Vec<u8>,
    files: usize,
    has_image: bool,
}

impl Keeper {
    /// Hands files to a keeper; the caller's descriptors are closed.
    ///
    /// # Errors
    /// When the system refuses a socket or a fork; the files are then closed all the same.
    pub fn hold(held: Held) -> io::Result<Self> {
        let has_image = held.image.is_some();
        let files: Vec<_> = held.renders.into_iter().chain(held.image).collect();
        if files.len() > MAX_FILES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than 63 render files"));
        }
        static NONCE: AtomicU32 = AtomicU32::new(0);
        let pid = getpid();
        let name = format!("{KEEPER_NAME}{}.{}", pid.as_raw_nonzero(), NONCE.fetch_add(1, Ordering::Relaxed))
            .into_bytes();
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new_abstract_name(&name)?)?;
        rustix::net::listen(&listener, 1)?;
        employ(&listener, &files, pid)?;
        Ok(Self { name, files: files.len(), has_image })
    }

    /// Takes the files back; the keeper ends.
    ///
    /// # Errors
    /// When the keeper is gone: the device of this process is then lost for good.
    pub fn fetch(self) -> io::Result<Held> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(&self.name)?)?;
        let mut files = receive(&socket)?;
        if files.len() == self.files {
            let image = if self.has_image { files.pop() } else { None };
            Ok(Held { renders: files, image })
        } else {
            Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the keeper gave back fewer files than it was given",
            ))
        }
    }
}

/// Everything that a keeper gives to who has connected to it.
fn receive(connection: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut parts = [io::IoSliceMut::new(&mut byte)];
        match recvmsg(connection, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let mut files = Vec::with_capacity(MAX_FILES);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    Ok(files)
}

/// Forks a keeper that answers `owner`, and nobody else but root, until it is gone.
fn employ(listener: &OwnedFd, files: &[OwnedFd], owner: Pid) -> io::Result<()> {
    let original = pidfd_open(owner, PidfdFlags::empty())?;
    let post = Post::new(listener, &original, files, owner.as_raw_nonzero().get());
    // SAFETY: the child runs `Post::serve` only, which keeps to async-signal-safe calls on prepared memory.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(io::Error::last_os_error()),
        0 => post.detach_and_serve(),
        _ => {}
    }
    let mut status = 0;
    // SAFETY: plain system call; the intermediate child exits at once.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            // Somebody else reaped it (SIGCHLD ignored): it is gone all the same.
            break;
        }
    }
    Ok(())
}

/// Takes the place of a keeper, which ends: a fork of the caller has the files from now on. `listener` is the keeper's
/// own socket, so that its name is never free; `connection` is connected to it; `owner` is the process that the files
/// belong to, as the caller knows it.
///
/// # Errors
/// When the keeper gives nothing, to who is not root, or the system refuses a fork: then the files are lost.
pub fn succeed_keeper(listener: &OwnedFd, connection: &OwnedFd, owner: Pid) -> io::Result<()> {
    let files = receive(connection)?;
    if files.is_empty() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the keeper gave nothing"));
    }
    employ(listener, &files, owner)
}

/// What the fork needs, laid out before it.
struct Post {
    listener: RawFd,
    original: RawFd,
    owner: i32,
    kept: [RawFd; MAX_FILES + 2],
    count: usize,
    control: [u64; 64],
    control_bytes: usize,
}

impl Post {
    fn new(listener: &OwnedFd, original: &OwnedFd, files: &[OwnedFd], owner: i32) -> Self {
        let mut kept = [RawFd::MAX; MAX_FILES + 2];
        kept[0] = listener.as_raw_fd();
        kept[1] = original.as_raw_fd();
        for (slot, file) in kept[2..].iter_mut().zip(files) {
            *slot = file.as_fd().as_raw_fd();
        }
        kept.sort_unstable();
        let fd_bytes = (files.len() * size_of::<RawFd>()) as u32;
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
        Self {
            listener: listener.as_raw_fd(),
            original: original.as_raw_fd(),
            owner,
            kept,
            count: files.len() + 2,
            control,
            control_bytes,
        }
    }

    /// Runs in the fork: leaves session and parent, then serves. Never returns.
    fn detach_and_serve(mut self) -> ! {
        // SAFETY: async-signal-safe calls only (setsid, chdir, fork, _exit and those of `serve`).
        unsafe {
            libc::setsid();
            // A directory that its caller is in can be unmounted.
            libc::chdir(c"/".as_ptr());
            match libc::fork() {
                0 => self.serve(),
                _ => libc::_exit(0),
            }
        }
    }

    /// # Safety
    /// Must run in a fork that does nothing else.
    unsafe fn serve(&mut self) -> ! {
        // SAFETY: every call is async-signal-safe and works on memory prepared before the fork; descriptors are ours.
        unsafe {
            let mut from: u32 = 0;
            for &fd in &self.kept[..self.count] {
                let fd = fd as u32;
                if fd > from {
                    libc::syscall(libc::SYS_close_range, from, fd - 1, 0);
                }
                from = fd + 1;
            }
            libc::syscall(libc::SYS_close_range, from, u32::MAX, 0);
            loop {
                let mut wait = [
                    libc::pollfd { fd: self.original, events: libc::POLLIN, revents: 0 },
                    libc::pollfd { fd: self.listener, events: libc::POLLIN, revents: 0 },
                ];
                if libc::poll(wait.as_mut_ptr(), 2, -1) < 0 {
                    continue;
                }
                if wait[0].revents != 0 {
                    libc::_exit(0);
                }
                let peer = libc::accept4(
                    self.listener,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    libc::SOCK_CLOEXEC,
                );
                let is_entitled = peer >= 0
                    && Peer::of(BorrowedFd::borrow_raw(peer))
                        .is_ok_and(|who| who.pid == Some(self.owner) || who.uid == 0);
                if is_entitled && self.give(peer) {
                    libc::_exit(0);
                }
                libc::close(peer);
            }
        }
    }

    /// # Safety
    /// `peer` is an open socket, and this runs in a fork that does nothing else.
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
            libc::sendmsg(peer, &raw const message, libc::MSG_NOSIGNAL) == 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetch_returns_the_same_open_files() {
        let make = |name: &str| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let files = vec![make("a"), make("b")];
        let inode = |f: &OwnedFd| rustix::fs::fstat(f).unwrap().st_ino;
        let inodes: Vec<_> = files.iter().map(inode).collect();
        let image = make("image");
        let image_inode = inode(&image);
        let keeper = Keeper::hold(Held { renders: files, image: Some(image) }).unwrap();
        let back = keeper.fetch().unwrap();
        assert_eq!(back.renders.iter().map(inode).collect::<Vec<_>>(), inodes);
        assert_eq!(back.image.as_ref().map(inode), Some(image_inode));
        let back = Keeper::hold(Held { image: None, ..back }).unwrap().fetch().unwrap();
        assert_eq!((back.renders.len(), back.image.is_none()), (2, true));
    }

    #[test]
    fn successor_has_the_same_files_in_the_same_order_under_the_same_name() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let make = |name: &str| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let files: Vec<_> = ["a", "b", "c"].into_iter().map(make).collect();
        let inodes = |files: &[OwnedFd]| -> Vec<u64> {
            files.iter().map(|file| rustix::fs::fstat(file).unwrap().st_ino).collect()
        };
        let expected = inodes(&files);
        // The first keeper's post, with a listener that the successor gets hold of.
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = || rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let name = format!("{KEEPER_NAME}test.{}", std::process::id()).into_bytes();
        let address = SocketAddrUnix::new_abstract_name(&name).unwrap();
        let listener = socket();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        employ(&listener, &files, getpid()).unwrap();
        drop(files);
        let connection = socket();
        rustix::net::connect(&connection, &address).unwrap();
        succeed_keeper(&listener, &connection, getpid()).unwrap();
        drop((listener, connection));
        let Held { mut renders, image } = Keeper { name, files: 3, has_image: true }.fetch().unwrap();
        renders.extend(image);
        assert_eq!(inodes(&renders), expected);
    }

    #[test]
    fn fetch_after_the_keeper_died_is_an_error() {
        let keeper = Keeper { name: b"stasis-keeper.nobody".to_vec(), files: 1, has_image: false };
        assert!(keeper.fetch().is_err());
    }
}
