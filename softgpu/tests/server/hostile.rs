// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that no honest client sends.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use kfd::transport::wire::{self, FdPlace, LostPages, PROTOCOL, Reply, Request, Segment, WireError};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, send, socket};

use super::{Client, Server};

fn connect(server: &Server) -> OwnedFd {
    let address = UnixAddr::new_abstract(server.socket.as_bytes()).unwrap();
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    nix::sys::socket::connect(socket.as_raw_fd(), &address).unwrap();
    socket
}

fn reply(socket: &OwnedFd) -> Result<Reply, WireError> {
    wire::receive(socket.as_fd(), &mut wire::ReceiveBuffer::new()).map(|received| received.message)
}

fn exchange(socket: &OwnedFd, request: &Request) -> Result<Reply, WireError> {
    wire::send(socket.as_fd(), request, &[])?;
    reply(socket)
}

fn greeted(server: &Server) -> OwnedFd {
    let socket = connect(server);
    let hello = Request::Hello { protocol: PROTOCOL, devices: "gfx1100".to_owned() };
    assert_eq!(exchange(&socket, &hello).unwrap(), Reply::Welcome { protocol: PROTOCOL });
    socket
}

fn assert_refused(outcome: Result<Reply, WireError>) {
    match outcome {
        Ok(Reply::Error { .. }) | Err(WireError::Closed) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn garbage_earns_an_error_or_the_end_and_nothing_else() {
    let server = Server::start();
    let client = Client::connect(&server.socket);
    let executor = server.executors();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..300_usize {
        let socket = if round % 2 == 0 { connect(&server) } else { greeted(&server) };
        let bytes: Vec<u8> = (0..round % 97 + 1)
            .map(|_| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                // Mostly small numbers, so that many are variants and lengths.
                (seed >> 32) as u8 & if round % 3 == 0 { 0xff } else { 0x07 }
            })
            .collect();
        send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL).unwrap();
        // Some of it may well be a request; any reply will do, a hang or a crash will not.
        if let Err(error) = reply(&socket) {
            assert!(matches!(error, WireError::Closed), "{error:?}");
        }
    }
    client.kfd.get_version().unwrap();
    assert_eq!(server.executors(), executor, "still the same process");
}

#[test]
fn requests_before_hello_and_unknown_files_are_refused() {
    let server = Server::start();
    let client = Client::connect(&server.socket);
    assert_refused(exchange(&connect(&server), &Request::Open { path: "/dev/kfd".into() }));
    let wrong = Request::Hello { protocol: PROTOCOL, devices: "gfx1100,gfx1100".into() };
    assert_refused(exchange(&connect(&server), &wrong));
    let other = Request::Hello { protocol: PROTOCOL + 1, devices: String::new() };
    assert_eq!(exchange(&connect(&server), &other).unwrap(), Reply::Welcome { protocol: PROTOCOL });
    let socket = greeted(&server);
    assert_refused(exchange(&socket, &Request::Open { path: "/dev/null".into() }));
    assert_refused(exchange(&socket, &Request::Adopt { path: "/dev/kfd".into() }));
    let mmap = Request::Mmap { file: u64::MAX, length: 4096, offset: 0, prot: 3 };
    assert_refused(exchange(&socket, &mmap));
    client.kfd.get_version().unwrap();
}

#[test]
fn ioctls_with_nonsense_around_them_are_refused() {
    let server = Server::start();
    let client = Client::connect(&server.socket);
    let socket = greeted(&server);
    let Ok(Reply::Opened { file }) = exchange(&socket, &Request::Open { path: "/dev/kfd".into() }) else {
        panic!("open");
    };
    let version = kfd::sys::AMDKFD_IOC_GET_VERSION;
    let ioctl = |cmd, arg, fd_places| {
        let (segments, shared, pages) = (Vec::new(), Vec::new(), Vec::new());
        Request::Ioctl { file, cmd, arg, segments, shared, fd_places, pages }
    };
    assert_refused(exchange(&socket, &ioctl(version, vec![0; 3], vec![])));
    assert_refused(exchange(&socket, &ioctl(version, vec![0; 8], vec![FdPlace::Field(4)])));
    let segments = vec![Segment { address: u64::MAX, bytes: vec![0; 64], writable: true }; 4];
    let cmd = kfd::sys::AMDKFD_IOC_WAIT_EVENTS;
    let arg = vec![0xff; kfd::sys::ioc_size(cmd)];
    let (shared, fd_places, pages) = (Vec::new(), Vec::new(), Vec::new());
    let wait = Request::Ioctl { file, cmd, arg, segments, shared, fd_places, pages };
    assert!(matches!(exchange(&socket, &wait).unwrap(), Reply::Ioctl { result: ..0, .. }));
    for nr in 0..=0xff_u32 {
        for size in [0, 8, 64] {
            let cmd = 3 << 30 | size << 16 | 0x4b << 8 | nr;
            // Anything but a wait for ever, which all ones would be.
            let arg = vec![if nr == 0x0c { 0 } else { 0xff }; size as usize];
            assert!(
                matches!(exchange(&socket, &ioctl(cmd, arg, vec![])).unwrap(), Reply::Ioctl { .. }),
                "{cmd:#x}"
            );
        }
    }
    client.kfd.get_version().unwrap();
}

#[test]
fn nobody_is_told_what_was_written_without_the_switch() {
    let server = Server::start();
    let client = Client::connect(&server.socket);
    let socket = greeted(&server);
    for (ranges, unit) in [(vec![(4096, 4096)], 4096), (vec![(1, 1)], 0), (vec![(0, u64::MAX); 1000], 4096)] {
        assert_eq!(exchange(&socket, &Request::Written { ranges, unit }).unwrap(), Reply::Written(None));
    }
    client.kfd.get_version().unwrap();
}

#[test]
fn pages_that_were_never_lent_can_be_gone() {
    let server = Server::start();
    let client = Client::connect(&server.socket);
    let socket = greeted(&server);
    let range = |address, bytes| Request::PagesGone(LostPages::Range { address, bytes });
    // The last of these ends behind the address space.
    for (address, bytes) in [(0, u64::MAX), (1, 1), (u64::MAX - 4095, 8192)] {
        assert_refused(exchange(&socket, &range(address, bytes)));
    }
    assert_eq!(exchange(&socket, &range(4096, 4096)).unwrap(), Reply::PagesAreGone);
    assert_refused(exchange(&socket, &Request::PagesGone(LostPages::Object { handle: 7 })));
    client.kfd.get_version().unwrap();
}
