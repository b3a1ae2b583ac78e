// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes a program that the system refuses userfaultfd(2), as containers' filters do: the program and its arguments follow.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::mem::offset_of;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::libc::{self, c_ulong, c_ushort, seccomp_data, sock_filter, sock_fprog};

/// An instruction of the filter (`linux/filter.h`); a jump passes over `if_true` or `if_false` instructions.
fn instruction(code: u32, operand: u32, if_true: u8, if_false: u8) -> sock_filter {
    let code = u16::try_from(code).expect("codes have 16 bits");
    sock_filter { code, jt: if_true, jf: if_false, k: operand }
}

/// Refuses this process and those that it executes userfaultfd(2) with EPERM (seccomp(2)).
fn refuse_userfaultfd() -> Result<(), Errno> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let number = u32::try_from(offset_of!(seccomp_data, nr)).expect("a small offset");
    let wanted = u32::try_from(libc::SYS_userfaultfd).expect("a small number");
    let refused = libc::SECCOMP_RET_ERRNO | Errno::EPERM as u32;
    let mut filter = [
        instruction(load, number, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, wanted, 0, 1),
        instruction(libc::BPF_RET | libc::BPF_K, refused, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let length = c_ushort::try_from(filter.len()).expect("few instructions");
    let program = sock_fprog { len: length, filter: filter.as_mut_ptr() };
    nix::sys::prctl::set_no_new_privs()?;
    let mode = c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the kernel copies the program, which has as many instructions as it says.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) }).map(drop)
}

fn main() {
    refuse_userfaultfd().expect("a filter");
    // SAFETY: the call takes no pointer.
    let answer = Errno::result(unsafe { libc::syscall(libc::SYS_userfaultfd, 1) });
    assert_eq!(answer, Err(Errno::EPERM), "the filter does not work");
    let mut words = std::env::args_os().skip(1);
    let program = words.next().expect("usage: without-userfaultfd PROGRAM [ARGUMENT...]");
    let error = Command::new(&program).args(words.collect::<Vec<OsString>>()).exec();
    panic!("cannot execute {}: {error}", program.display());
}
