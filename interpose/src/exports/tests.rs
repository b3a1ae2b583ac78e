// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions as a program calls them, with a run's directory but without its device.

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::os::unix::fs::symlink;

use nix::errno::Errno;
use nix::libc::{self, c_char, c_int};
use tempfile::TempDir;

use super::{control, lookup, map, names, open, status};
use crate::run;

/// A run's directory, and the environment that names it. A test has its own process.
fn start() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().canonicalize().unwrap();
    let node = at.join("sys/devices/virtual/kfd/kfd/topology/nodes/1");
    std::fs::create_dir_all(&node).unwrap();
    std::fs::write(node.join("gpu_id"), "4242\n").unwrap();
    std::fs::write(at.join("sys/devices/virtual/kfd/kfd/dev"), "235:0\n").unwrap();
    std::fs::create_dir_all(at.join("sys/class/kfd")).unwrap();
    symlink("../../devices/virtual/kfd/kfd", at.join("sys/class/kfd/kfd")).unwrap();
    std::fs::create_dir_all(at.join("dev/dri")).unwrap();
    std::fs::write(at.join("dev/kfd"), "").unwrap();
    std::fs::write(at.join("dev/dri/renderD130"), "").unwrap();
    // Both exist on every host, one as a file of it and one as a directory.
    std::fs::create_dir_all(at.join("sys/kernel")).unwrap();
    let variables = [
        (kfd::transport::run::DIRECTORY_VARIABLE, at.to_str().unwrap()),
        (kfd::transport::run::SOCKET_VARIABLE, "stasis-no-such-device"),
        (kfd::transport::run::DEVICES_VARIABLE, "gfx1100"),
    ];
    for (name, value) in variables {
        // SAFETY: the test has one thread, which reads the environment later.
        unsafe { std::env::set_var(name, value) };
    }
    directory
}

fn c(path: &str) -> CString {
    CString::new(path).unwrap()
}

fn read(path: &str) -> Result<String, Errno> {
    let path = c(path);
    // SAFETY: the path ends with a zero byte.
    let fd = Errno::result(unsafe { open::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0) })?;
    let mut bytes = [0; 100];
    // SAFETY: the buffer has so many bytes, and the descriptor is this function's.
    let length = unsafe {
        let length = libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len());
        libc::close(fd);
        length
    };
    Ok(String::from_utf8_lossy(&bytes[..usize::try_from(length).unwrap()]).into_owned())
}

fn look(path: &str) -> Result<libc::stat, Errno> {
    let (path, mut found) = (c(path), MaybeUninit::<libc::stat>::uninit());
    // SAFETY: the path ends with a zero byte; the struct is written if the call succeeds.
    Errno::result(unsafe { status::stat(path.as_ptr(), found.as_mut_ptr()) })?;
    // SAFETY: the call has succeeded.
    Ok(unsafe { found.assume_init() })
}

#[test]
fn files_of_the_machine_are_those_of_the_run_and_others_are_the_hosts() {
    let _directory = start();
    assert_eq!(read("/sys/devices/virtual/kfd/kfd/topology/nodes/1/gpu_id").unwrap(), "4242\n");
    assert_eq!(read("/sys//class/kfd/./kfd/topology/nodes/1/gpu_id").unwrap(), "4242\n");
    assert_eq!(read("/sys/class/drm/card0"), Err(Errno::ENOENT), "whatever the host has");
    assert_eq!(read("/proc/self/comm").unwrap(), std::fs::read_to_string("/proc/self/comm").unwrap());
    assert!(look("/sys/kernel/mm").is_ok(), "a directory that both have is the host's");
    assert_eq!(read("/no/such/file"), Err(Errno::ENOENT));
    // SAFETY: the paths end with zero bytes.
    unsafe {
        assert_eq!(names::access(c"/sys/module/amdgpu".as_ptr(), libc::F_OK), -1);
        assert_eq!(names::access(c"/dev/dri/renderD130".as_ptr(), libc::R_OK | libc::W_OK), 0);
        let file = open::fopen(c"/sys/class/kfd/kfd/dev".as_ptr(), c"r".as_ptr());
        assert!(!file.is_null());
        libc::fclose(file);
        let listing = open::opendir(c"/dev/dri".as_ptr());
        assert!(!listing.is_null());
        let mut names = Vec::new();
        while let Some(entry) = libc::readdir(listing).as_ref() {
            names.push(CStr::from_ptr(entry.d_name.as_ptr()).to_owned());
        }
        libc::closedir(listing);
        assert!(names.contains(&c("renderD130")), "{names:?}");
    }
}

#[test]
fn device_files_are_character_devices_before_they_are_opened() {
    let _directory = start();
    let kfd = look("/dev/kfd").unwrap();
    assert_eq!((kfd.st_mode & libc::S_IFMT, kfd.st_rdev), (libc::S_IFCHR, libc::makedev(235, 0)));
    let render = look("/dev/dri/renderD130").unwrap();
    assert_eq!((render.st_mode & libc::S_IFMT, render.st_rdev), (libc::S_IFCHR, libc::makedev(226, 130)));
    assert_eq!(look("/dev/dri/renderD131").err(), Some(Errno::ENOENT));
    assert_eq!(look("/dev/null").unwrap().st_rdev, libc::makedev(1, 3));
    let mut extended = MaybeUninit::<libc::statx>::uninit();
    // SAFETY: the path ends with a zero byte; the struct is written if the call succeeds.
    let extended = unsafe {
        let (at, path) = (libc::AT_FDCWD, c"/dev/kfd".as_ptr());
        assert_eq!(status::statx(at, path, 0, libc::STATX_BASIC_STATS, extended.as_mut_ptr()), 0);
        extended.assume_init()
    };
    assert_eq!((extended.stx_rdev_major, u32::from(extended.stx_mode) & libc::S_IFMT), (235, libc::S_IFCHR));
}

#[test]
fn paths_that_a_program_resolves_are_those_that_it_knows() {
    let _directory = start();
    let mut buffer = [0 as c_char; 4096];
    // SAFETY: the paths end with zero bytes, and the buffer has PATH_MAX bytes.
    unsafe {
        let found = names::realpath(c"/sys/class/kfd/kfd/topology".as_ptr(), buffer.as_mut_ptr());
        assert_eq!(CStr::from_ptr(found), c"/sys/devices/virtual/kfd/kfd/topology");
        let found = names::realpath(c"/sys/class/kfd/kfd".as_ptr(), std::ptr::null_mut());
        assert_eq!(CStr::from_ptr(found), c"/sys/devices/virtual/kfd/kfd");
        libc::free(found.cast());
        assert!(names::realpath(c"/sys/class/drm/card9".as_ptr(), buffer.as_mut_ptr()).is_null());
        let length = names::readlink(c"/sys/class/kfd/kfd".as_ptr(), buffer.as_mut_ptr(), buffer.len());
        assert_eq!(length, 29);
    }
}

#[test]
fn open_without_a_device_says_so_by_errno_and_leaves_other_files_alone() {
    let _directory = start();
    // SAFETY: the path ends with a zero byte.
    let answer = unsafe { open::open(c"/dev/kfd".as_ptr(), libc::O_RDWR, 0) };
    assert_eq!((answer, Errno::last()), (-1, Errno::ENODEV));
    let (mut window, pipe) = (MaybeUninit::<libc::winsize>::uninit(), nix::unistd::pipe().unwrap());
    use std::os::fd::AsRawFd;
    // SAFETY: the struct is the terminal's; there is none.
    let answer =
        unsafe { control::ioctl(pipe.0.as_raw_fd(), libc::TIOCGWINSZ, window.as_mut_ptr().cast::<c_void>()) };
    assert_eq!((answer, Errno::last()), (-1, Errno::ENOTTY));
    let (flags, prot) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ);
    // SAFETY: new memory, which nothing uses.
    unsafe {
        let memory = map::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        libc::munmap(memory, 4096);
    }
}

#[test]
fn memory_that_is_not_registered_is_unmapped_and_moved_as_ever() {
    let _directory = start();
    let (flags, prot) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: new memory, which nothing else uses; no access outside of what is mapped.
    unsafe {
        let memory = map::mmap(std::ptr::null_mut(), 8192, prot, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        memory.cast::<u32>().write(77);
        let moved = map::mremap(memory, 8192, 1 << 20, libc::MREMAP_MAYMOVE, std::ptr::null_mut());
        assert_ne!(moved, libc::MAP_FAILED);
        assert_eq!(moved.cast::<u32>().read(), 77);
        Errno::set_raw(77);
        let again = map::mmap(moved, 4096, prot, flags | libc::MAP_FIXED, -1, 0);
        assert_eq!((again, moved.cast::<u32>().read()), (moved, 0));
        assert_eq!(map::munmap(moved, 1 << 20), 0);
        assert_eq!(Errno::last_raw(), 77);
        assert_eq!((map::munmap(moved.byte_add(1), 4096), Errno::last()), (-1, Errno::EINVAL));
        let nowhere = map::mremap(moved, 4096, 8192, libc::MREMAP_MAYMOVE, std::ptr::null_mut());
        assert_eq!((nowhere, Errno::last()), (libc::MAP_FAILED, Errno::EFAULT));
    }
}

#[test]
fn lookups_find_this_library_first_and_else_the_c_library() {
    let _directory = start();
    assert!(run::current().is_some());
    // SAFETY: the names end with zero bytes.
    unsafe {
        let own = lookup::dlsym(libc::RTLD_DEFAULT, c"open64".as_ptr());
        assert_eq!(own, open::open64 as *mut c_void);
        let own = lookup::dlsym(libc::RTLD_DEFAULT, c"mmap".as_ptr());
        assert_eq!(own, map::mmap as *mut c_void);
        let other = lookup::dlsym(libc::RTLD_DEFAULT, c"write".as_ptr());
        assert_eq!(other, libc::dlsym(libc::RTLD_DEFAULT, c"write".as_ptr()));
        let next = lookup::dlsym(libc::RTLD_NEXT, c"open64".as_ptr());
        assert_ne!(next, open::open64 as *mut c_void, "the caller's next is not this library");
        assert!(lookup::dlsym(libc::RTLD_DEFAULT, c"stasis_no_such".as_ptr()).is_null());
    }
}

#[test]
fn errno_is_left_alone_by_calls_that_succeed() {
    let _directory = start();
    Errno::set_raw(77);
    let found: c_int = {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the path ends with a zero byte.
        unsafe { status::stat(c"/dev/kfd".as_ptr(), status.as_mut_ptr()) }
    };
    assert_eq!((found, Errno::last_raw()), (0, 77));
}
