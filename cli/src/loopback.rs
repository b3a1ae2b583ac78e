// SPDX-License-Identifier: MIT OR Apache-2.0
//! Brings up the loopback device of a new network namespace (netdevice(7)): CRIU tries its TCP features on it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketType, socket};

/// Sets `lo` up in the network namespace of this process.
pub fn up() -> io::Result<()> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: ifreq is plain data; all zero is an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        // CAST: ASCII.
        *to = *from as libc::c_char;
    }
    // SAFETY: both requests read and write the one ifreq they are given, which outlives them.
    unsafe {
        if libc::ioctl(any.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
        // CAST: a flag of the low 16 bits.
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        if libc::ioctl(any.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
