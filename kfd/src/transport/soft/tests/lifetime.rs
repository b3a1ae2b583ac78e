// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions: concurrency, death of the device, closing, forking, refusal.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
use parking_lot::Mutex;

use super::server::{answer, bare, unique_name};
use super::*;
use crate::OpenError;
use crate::ioctl::WaitOutcome;
use crate::sys::{self, *};
use crate::transport::CloseError;
use crate::transport::wire::{self, PROTOCOL, Request, WireError};

const WAIT: u32 = ioc_nr(AMDKFD_IOC_WAIT_EVENTS);

/// A server whose WAIT_EVENTS blocks until a message comes over the channel, and tells when it began.
fn blocking() -> (Server, SoftTransport, Kfd, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (release, released) = mpsc::channel::<()>();
    let (began, begun) = mpsc::channel();
    let (released, began) = (Mutex::new(released), Mutex::new(began));
    let (server, transport, kfd) = kfd(move |call| {
        if sys::ioc_nr(call.cmd) == WAIT {
            began.lock().send(()).unwrap();
            released.lock().recv().ok()?;
        }
        bare(0)
    });
    (server, transport, kfd, release, begun)
}

#[test]
fn blocked_wait_does_not_hold_up_other_calls() {
    let (server, transport, kfd, release, begun) = blocking();
    let waiter = kfd.clone();
    let wait = std::thread::spawn(move || waiter.wait_events(&mut [kfd_event_data::new(1, 0)], false, None));
    begun.recv().unwrap();
    for _ in 0..50 {
        kfd.runtime_disable().unwrap();
    }
    assert_eq!(server.opened(), 2, "one channel for the wait, one for the others");
    assert!(matches!(transport.close(), Err(CloseError::Busy { calls: 1 })));
    release.send(()).unwrap();
    assert_eq!(wait.join().unwrap().unwrap(), WaitOutcome::Complete);
}

#[test]
fn many_threads_share_the_channels() {
    let (server, _, kfd) = kfd(|call| answer(0, &call.args::<kfd_ioctl_set_event_args>(), vec![]));
    std::thread::scope(|scope| {
        for id in 0..8 {
            let kfd = &kfd;
            scope.spawn(move || (0..100).for_each(|_| kfd.set_event(crate::EventId(id)).unwrap()));
        }
    });
    assert!(server.opened() <= 9, "{} connections", server.opened());
}

#[test]
fn dead_device_ends_blocked_and_later_calls_with_enodev() {
    let (server, transport, kfd, _release, begun) = blocking();
    let waiter = kfd.clone();
    let wait = std::thread::spawn(move || waiter.wait_events(&mut [kfd_event_data::new(1, 0)], false, None));
    begun.recv().unwrap();
    server.kill();
    assert_eq!(wait.join().unwrap().unwrap_err().errno, Errno::ENODEV);
    let error = kfd.get_version().unwrap_err();
    assert_eq!(error.errno, Errno::ENODEV);
    assert_eq!(error.path, Path::new("/dev/kfd"));
    assert!(matches!(transport.open(Path::new("/dev/kfd")), Err(OpenError::Unreachable { .. })));
    transport.close().unwrap();
}

#[test]
fn one_cut_channel_ends_all() {
    let (_server, _, kfd, _release, begun) = {
        let (release, released) = mpsc::channel::<()>();
        let (began, begun) = mpsc::channel();
        let (released, began) = (Mutex::new(released), Mutex::new(began));
        let (server, transport, kfd) = kfd(move |call| {
            if sys::ioc_nr(call.cmd) != WAIT {
                return None;
            }
            began.lock().send(()).unwrap();
            released.lock().recv().ok()?;
            bare(0)
        });
        (server, transport, kfd, release, begun)
    };
    let waiter = kfd.clone();
    let wait = std::thread::spawn(move || waiter.wait_events(&mut [kfd_event_data::new(1, 0)], false, None));
    begun.recv().unwrap();
    assert_eq!(kfd.get_version().unwrap_err().errno, Errno::ENODEV);
    assert_eq!(wait.join().unwrap().unwrap_err().errno, Errno::ENODEV, "the wait is woken too");
}

#[test]
fn open_after_death_reaches_the_next_device() {
    let name = unique_name();
    let first = Server::start_as(&name, PROTOCOL, |_| bare(0));
    let transport = connect(&first);
    let old = Kfd::new(open(&transport));
    // The listening socket, and so the name, live as long as the server's accepting thread.
    drop(first);
    let _next = loop {
        match std::panic::catch_unwind(|| Server::start_as(&name, PROTOCOL, |_| bare(0))) {
            Ok(server) => break server,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let fresh = Kfd::new(open(&transport));
    fresh.runtime_disable().unwrap();
    assert_eq!(old.runtime_disable().unwrap_err().errno, Errno::ENODEV, "old files stay lost");
}

#[test]
fn close_leaves_no_connection_and_open_makes_one() {
    let (server, transport, kfd) = kfd(|_| bare(0));
    kfd.runtime_disable().unwrap();
    let token = kfd.file().as_fd().try_clone_to_owned().unwrap();
    transport.close().unwrap();
    server.wait_for_live(0);
    assert_eq!(kfd.runtime_disable().unwrap_err().errno, Errno::EBADF, "a file of before");
    drop(kfd);
    let inode = nix::sys::stat::fstat(&token).unwrap().st_ino;
    let adopted = transport.adopt(Path::new("/dev/kfd"), token).unwrap();
    assert_eq!(nix::sys::stat::fstat(adopted.as_fd()).unwrap().st_ino, inode);
    Kfd::new(adopted).runtime_disable().unwrap();
    server.wait_for_live(1);
    transport.close().unwrap();
    server.wait_for_live(0);
}

#[test]
fn forked_child_gets_ebadf_and_the_parent_goes_on() {
    let (server, transport, kfd) = kfd(|_| bare(0));
    // SAFETY: the child has one thread. It only makes a call that the session refuses before it takes a lock, and ends
    // without unwinding.
    let child = unsafe { nix::libc::fork() };
    if child == 0 {
        let refused = kfd.runtime_disable().is_err_and(|error| error.errno == Errno::EBADF);
        // SAFETY: `_exit` has no preconditions.
        unsafe { nix::libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable for the call.
    assert_eq!(unsafe { nix::libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    kfd.runtime_disable().unwrap();
    transport.close().unwrap();
    server.wait_for_live(0);
}

#[test]
fn connecting_refuses_other_protocols_and_devices() {
    let server = Server::start_as(&unique_name(), PROTOCOL + 1, |_| bare(0));
    let error = SoftTransport::connect_socket(server.name(), &devices()).unwrap_err();
    assert!(matches!(error, OpenError::Protocol { found, .. } if found == PROTOCOL + 1));
    let server = Server::start(|_| bare(0));
    let error = SoftTransport::connect_socket(server.name(), &["gfx90a".to_owned()]).unwrap_err();
    assert!(matches!(error, OpenError::Refused { errno: Errno::EINVAL, .. }), "{error}");
    let error = SoftTransport::connect_socket(&unique_name(), &devices()).unwrap_err();
    assert!(matches!(error, OpenError::Unreachable { errno: Errno::ECONNREFUSED, .. }), "{error}");
}

#[test]
fn open_passes_on_the_devices_errno() {
    let server = Server::start(|_| bare(0));
    let error = connect(&server).open(Path::new("/nowhere")).unwrap_err();
    assert!(matches!(error, OpenError::File { errno: Errno::ENOENT, .. }), "{error}");
}

#[test]
fn wire_refuses_messages_beyond_its_limits() {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
    let large = Request::Open { path: "x".repeat(wire::MAX_MESSAGE_BYTES) };
    assert!(matches!(wire::send(a.as_fd(), &large, &[]), Err(WireError::TooLarge { .. })));
    let small = Request::Open { path: String::new() };
    let crowd = vec![b.as_fd(); wire::MAX_FDS + 1];
    assert!(matches!(wire::send(a.as_fd(), &small, &crowd), Err(WireError::TooManyFds { .. })));
    // A socket whose buffer nobody raised says so instead of cutting the message.
    let medium = Request::Open { path: "x".repeat(900 << 10) };
    assert!(matches!(wire::send(a.as_fd(), &medium, &[]), Err(WireError::TooLarge { .. })));
    wire::send(a.as_fd(), &small, &[a.as_fd(), b.as_fd()]).unwrap();
    let received = wire::receive::<Request>(b.as_fd(), &mut wire::ReceiveBuffer::new()).unwrap();
    assert_eq!((received.message, received.fds.len()), (small.clone(), 2));
    drop(received.fds);
    wire::send(a.as_fd(), &small, &[]).unwrap();
    assert!(matches!(
        wire::receive::<Request>(b.as_fd(), &mut wire::ReceiveBuffer::with_limit(1)),
        Err(WireError::TooLarge { .. })
    ));
    send(a.as_raw_fd(), &[0xff; 9], MsgFlags::empty()).unwrap();
    assert!(matches!(
        wire::receive::<Request>(b.as_fd(), &mut wire::ReceiveBuffer::new()),
        Err(WireError::Codec { .. })
    ));
    drop(a);
    assert!(matches!(
        wire::receive::<Request>(b.as_fd(), &mut wire::ReceiveBuffer::new()),
        Err(WireError::Closed)
    ));
    assert!(matches!(wire::send(b.as_fd(), &small, &[]), Err(WireError::Closed)), "and no SIGPIPE");
}
