// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's tables of sockets: Unix ones by sock_diag, which alone knows peers; TCP ones from /proc.
//!
//! Layouts: `linux/netlink.h`, `linux/sock_diag.h`, `linux/unix_diag.h`. All integers are the machine's own.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use kfd::linux::{retry, set_receive_timeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST, NLM_F_ROOT and NLM_F_MATCH.
const DUMP_REQUEST: u16 = 0x301;
/// UDIAG_SHOW_NAME, UDIAG_SHOW_PEER, UDIAG_SHOW_ICONS.
const SHOW: u32 = 0x1 | 0x4 | 0x8;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_PEER: u16 = 2;
const UNIX_DIAG_ICONS: u16 = 3;
/// nlmsghdr.
const HEADER: usize = 16;
/// unix_diag_msg.
const MESSAGE: usize = 16;
/// One datagram of a dump: the kernel fills at most 32 KiB.
const BUFFER: usize = 64 << 10;
/// TIMEOUT: the kernel answers at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// A Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its type: 1 stream, 2 datagram, 5 seqpacket.
    pub kind: u8,
    /// Inode of the socket it is connected to; 0 for none.
    pub peer: u32,
    /// Inodes of connections that wait to be accepted.
    pub waiting: Vec<u32>,
    /// What it is bound to, `@` for an abstract name.
    pub name: String,
}

/// All Unix sockets of this network namespace, by inode.
///
/// # Errors
/// The system's answer.
pub fn unix_sockets() -> io::Result<HashMap<u32, UnixSocket>> {
    let tables = SockProtocol::NetlinkSockDiag;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, tables)?;
    set_receive_timeout(&socket, PATIENCE)?;
    sendto(socket.as_raw_fd(), &request(), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut sockets = HashMap::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = retry(|| recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()))?;
        if take(&buffer[..length], &mut sockets)? {
            return Ok(sockets);
        }
    }
}

/// nlmsghdr and unix_diag_req: every state, with names, peers and waiting connections.
fn request() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40);
    bytes.extend(40u32.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([(AddressFamily::Unix as i32).to_le_bytes()[0], 0, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(SHOW.to_ne_bytes());
    bytes.extend([0xff; 8]);
    bytes
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Takes the sockets out of one datagram; says whether it was the last.
fn take(mut datagram: &[u8], sockets: &mut HashMap<u32, UnixSocket>) -> io::Result<bool> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    while datagram.len() >= HEADER {
        let length = u32_at(datagram, 0).ok_or_else(malformed)? as usize;
        let message = datagram.get(..length).filter(|m| m.len() >= HEADER).ok_or_else(malformed)?;
        match u16_at(message, 4) {
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => {
                let code = u32_at(message, HEADER).ok_or_else(malformed)?.cast_signed();
                return Err(io::Error::from_raw_os_error(-code));
            }
            _ => {
                let (inode, socket) = unix_socket(&message[HEADER..]).ok_or_else(malformed)?;
                sockets.insert(inode, socket);
            }
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn unix_socket(message: &[u8]) -> Option<(u32, UnixSocket)> {
    let mut socket = UnixSocket { kind: *message.get(1)?, ..UnixSocket::default() };
    let inode = u32_at(message, 4)?;
    let mut attributes = message.get(MESSAGE..)?;
    while attributes.len() >= 4 {
        let length = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..length)?;
        match u16_at(attributes, 2)? {
            UNIX_DIAG_NAME => socket.name = name(value),
            UNIX_DIAG_PEER => socket.peer = u32_at(value, 0)?,
            UNIX_DIAG_ICONS => {
                socket.waiting = (0..value.len() / 4).filter_map(|i| u32_at(value, 4 * i)).collect();
            }
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((inode, socket))
}

fn name(bytes: &[u8]) -> String {
    let (mark, rest) = match bytes {
        [0, rest @ ..] => ("@", rest),
        rest => ("", rest),
    };
    format!("{mark}{}", String::from_utf8_lossy(rest).trim_end_matches('\0'))
}

/// A TCP socket, as `/proc/PID/net/tcp` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Its address.
    pub local: SocketAddr,
    /// Its peer's.
    pub remote: SocketAddr,
    /// `TCP_*` of `net/tcp_states.h`.
    pub state: u8,
    /// Of a listener: connections that wait to be accepted.
    pub waiting: u32,
}

/// TCP_ESTABLISHED.
#[cfg(test)]
const ESTABLISHED: u8 = 1;
/// TCP_CLOSE.
pub const CLOSE: u8 = 7;
/// TCP_LISTEN.
pub const LISTEN: u8 = 10;

/// The sockets of a table of `/proc/PID/net`, by inode.
pub fn tcp_sockets(table: &str) -> HashMap<u64, TcpSocket> {
    table.lines().skip(1).filter_map(tcp_socket).collect()
}

fn tcp_socket(line: &str) -> Option<(u64, TcpSocket)> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let socket = TcpSocket {
        local: address(fields.get(1)?)?,
        remote: address(fields.get(2)?)?,
        state: u8::from_str_radix(fields.get(3)?, 16).ok()?,
        waiting: u32::from_str_radix(fields.get(4)?.split_once(':')?.1, 16).ok()?,
    };
    Some((fields.get(9)?.parse().ok()?, socket))
}

/// Words of the address as the machine has them in memory, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(words.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match words.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (part, at) in bytes.chunks_exact_mut(4).zip([0, 8, 16, 24]) {
                part.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn inode(fd: impl AsFd) -> u32 {
        nix::sys::stat::fstat(fd).unwrap().st_ino as u32
    }

    #[test]
    fn both_ends_of_a_pair_name_each_other() {
        let (a, b) = UnixStream::pair().unwrap();
        let sockets = unix_sockets().unwrap();
        assert_eq!((sockets[&inode(&a)].peer, sockets[&inode(&b)].peer), (inode(&b), inode(&a)));
        assert_eq!(sockets[&inode(&a)].kind, 1);
    }

    #[test]
    fn names_and_waiting_connections_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("listener");
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let sockets = unix_sockets().unwrap();
        let found = &sockets[&inode(&listener)];
        assert_eq!(found.name, path.to_str().unwrap());
        let waiting = *found.waiting.first().unwrap();
        // No process has accepted this socket yet, but the client is connected to it.
        assert_eq!((found.waiting.len(), found.peer), (1, 0));
        assert!([waiting, 0].contains(&sockets[&inode(&client)].peer), "{:?}", sockets[&inode(&client)]);
        assert_eq!(name(b"\0stasis-order.1"), "@stasis-order.1");
    }

    #[test]
    fn answers_cut_short_are_refused() {
        let mut sockets = HashMap::new();
        let mut long = request();
        long[0] = 41;
        assert!(take(&long, &mut sockets).is_err());
        let mut zero = request();
        zero[0] = 0;
        assert!(take(&zero, &mut sockets).is_err());
        assert!(sockets.is_empty());
    }

    #[test]
    fn tcp_tables_are_read_for_both_families() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000002 00:00000000 00000000     0        0 777 1 0 100 0\n";
        let found = tcp_sockets(table)[&777];
        assert_eq!((found.local, found.state, found.waiting), ("127.0.0.1:8080".parse().unwrap(), LISTEN, 2));
        let six = "header\n 3: 00000000000000000000000001000000:0016 0000000000000000FFFF00000100007F:C350 01 \
            00000000:00000000 00:00000000 00000000 0 0 99 1 0 20 4 30 10 -1\n";
        let found = tcp_sockets(six)[&99];
        assert_eq!(found.local, "[::1]:22".parse().unwrap());
        assert_eq!(found.remote, "[::ffff:127.0.0.1]:50000".parse().unwrap());
    }

    #[test]
    fn own_connection_is_found_established() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let found = tcp_sockets(&table)[&u64::from(inode(&client))];
        assert_eq!((found.state, found.remote), (ESTABLISHED, listener.local_addr().unwrap()));
    }
}
