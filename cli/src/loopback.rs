// SPDX-License-Identifier: MIT OR Apache-2.0
//! Brings up the loopback device of a new network namespace (netdevice(7)): CRIU tries its TCP features on it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

nix::ioctl_readwrite_bad!(get_interface_flags, libc::SIOCGIFFLAGS, libc::ifreq);
nix::ioctl_write_ptr_bad!(set_interface_flags, libc::SIOCSIFFLAGS, libc::ifreq);

#[expect(clippy::cast_possible_truncation, reason = "a flag of the low 16 bits")]
const UP: libc::c_short = libc::IFF_UP as libc::c_short;

/// Sets `lo` up in the network namespace of this process.
pub fn up() -> io::Result<()> {
    let any = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::empty(), None)?;
    // SAFETY: ifreq is plain data; all zero is an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        // CAST: ASCII.
        *to = *from as libc::c_char;
    }
    // SAFETY: both requests access the one ifreq they are given, which outlives them. Reading the union is safe: SIOCGIFFLAGS has
    // written `ifru_flags`.
    unsafe {
        get_interface_flags(any.as_raw_fd(), &raw mut request)?;
        request.ifr_ifru.ifru_flags |= UP;
        set_interface_flags(any.as_raw_fd(), &raw const request)?;
    }
    Ok(())
}
