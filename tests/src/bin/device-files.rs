// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of KFD's device files, under `stasis run`: what descriptors of the driver do when they are duplicated, sent to
//! a child, or asked for nonsense. Prints `FILES right`; an assertion that fails says what is wrong. With a number as its
//! argument it is the program that a child becomes, which finds that descriptor open.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::process::Command;

use kfd::sys;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, dup, fork};

/// Bytes of memory for arguments, more than any command has.
const BYTES: usize = 16 << 10;

/// What an ioctl answers; its argument is zeros.
fn ask(fd: RawFd, command: u32) -> Result<[u8; 8], Errno> {
    let mut argument = vec![0_u8; BYTES];
    // SAFETY: no command takes more bytes than there are.
    Errno::result(unsafe { libc::ioctl(fd, libc::c_ulong::from(command), argument.as_mut_ptr()) })?;
    Ok(argument.first_chunk().copied().unwrap_or_default())
}

fn version(fd: RawFd) -> Result<u32, Errno> {
    ask(fd, sys::AMDKFD_IOC_GET_VERSION).map(|[major, ..]| u32::from(major))
}

fn open(path: &str) -> File {
    File::options().read(true).write(true).open(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn duplicates_are_the_same_file() {
    let first = open("/dev/kfd");
    let second = dup(&first).expect("dup");
    let third = fcntl(&first, FcntlArg::F_DUPFD_CLOEXEC(200)).expect("F_DUPFD_CLOEXEC");
    drop(first);
    assert_eq!((version(second.as_raw_fd()), version(third)), (Ok(1), Ok(1)));
    let flags = fcntl(open("/dev/kfd"), FcntlArg::F_GETFD).map(FdFlag::from_bits_retain);
    assert_eq!(flags, Ok(FdFlag::FD_CLOEXEC), "Rust opens all files so");
    drop(second);
    // SAFETY: the number is this function's, which does not use it again.
    unsafe { libc::close(third) };
    assert_eq!(version(third), Err(Errno::EBADF));
    // Somebody else's file with a number that was the device's is theirs.
    let other = File::open("/dev/null").expect("/dev/null");
    assert_eq!(version(other.as_raw_fd()), Err(Errno::ENOTTY));
}

fn commands_fail_as_the_kernels() {
    let (kfd, render) = (open("/dev/kfd"), open("/dev/dri/renderD128"));
    let (kfd, render) = (kfd.as_raw_fd(), render.as_raw_fd());
    for number in [0x00_u32, 0x7f, 0xff] {
        assert_eq!(ask(kfd, 3 << 30 | 8 << 16 | 0x4b << 8 | number), Err(Errno::ENOTTY), "{number:#x}");
    }
    assert_eq!(ask(render, 3 << 30 | 8 << 16 | 0x64 << 8 | 0x9f), Err(Errno::EINVAL));
    assert_eq!(ask(render, sys::AMDKFD_IOC_GET_VERSION), Err(Errno::ENOTTY));
    // SAFETY: the driver finds no memory there, and says so.
    let nowhere = Errno::result(unsafe {
        libc::ioctl(
            kfd,
            libc::c_ulong::from(sys::AMDKFD_IOC_GET_VERSION),
            std::ptr::without_provenance::<u8>(16),
        )
    });
    assert_eq!(nowhere, Err(Errno::EFAULT));
}

fn children_have_devices_of_their_own() {
    let file = open("/dev/kfd");
    assert_eq!(version(file.as_raw_fd()), Ok(1));
    // SAFETY: the program has one thread here.
    match unsafe { fork() }.expect("fork") {
        ForkResult::Child => {
            let inherited = version(file.as_raw_fd());
            let own = version(open("/dev/kfd").as_raw_fd());
            std::process::exit(i32::from((inherited, own) != (Err(Errno::EBADF), Ok(1))));
        }
        ForkResult::Parent { child } => assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0))),
    }
    assert_eq!(version(file.as_raw_fd()), Ok(1), "the parent's is as before");
    let number = fcntl(&file, FcntlArg::F_DUPFD(100)).expect("a descriptor that programs inherit");
    let own = std::env::current_exe().expect("this program");
    assert!(Command::new(own).arg(number.to_string()).status().expect("a child").success());
}

fn threads_ask_at_the_same_time() {
    let file = open("/dev/kfd");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(version(file.as_raw_fd()), Ok(1));
                    assert_eq!(version(open("/dev/kfd").as_raw_fd()), Ok(1));
                }
            });
        }
    });
}

fn main() {
    if let Some(number) = std::env::args().nth(1).and_then(|number| number.parse().ok()) {
        assert_eq!(version(number), Err(Errno::EBADF), "a file of the process that made this one");
        return assert_eq!(version(open("/dev/kfd").as_raw_fd()), Ok(1));
    }
    duplicates_are_the_same_file();
    commands_fail_as_the_kernels();
    children_have_devices_of_their_own();
    threads_ask_at_the_same_time();
    println!("FILES right");
}
