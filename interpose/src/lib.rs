// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libstasis_kfd.so`: `stasis run` preloads it into a program, so that the program finds AMD's driver and a GPU, and the
//! software device answers.
//!
//! The library defines functions of the C library that take paths, descriptors or mappings. Each of them asks first
//! whether the call concerns the driver; if not, it calls the function that the program would have called. So does every
//! call of a process whose environment does not name a run.
//!
//! | the program | this library |
//! | --- | --- |
//! | opens `/dev/kfd` or a render node | opens a file of the device, whose descriptor is a memfd of the program's |
//! | duplicates, sends, inherits, closes the descriptor | nothing: the memfd's inode tells which open file it is |
//! | ioctl, mmap, fstat of such a descriptor | asks the device, over a connection of this call |
//! | unmaps, replaces or moves pages that it registered | has the device take their objects from the GPUs |
//! | reads sysfs, lists `/dev/dri` | gives it the files of the run's directory |
//! | forks | the child's files answer EBADF, as KFD's do; it may open new ones |
//!
//! INVARIANT: no thread and no descriptor of the library's own between calls, and one mapping: the gate that the device closes
//! when the program is frozen (`kfd::transport::gate`). A call that does not concern the driver allocates nothing, takes no lock
//! and leaves errno as the C library's function does.
#![deny(unsafe_code)]

mod busy;
mod descriptor;
mod device;
mod errno;
mod exports;
mod next;
mod path;
mod run;
