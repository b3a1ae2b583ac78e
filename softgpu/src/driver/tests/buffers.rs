// SPDX-License-Identifier: MIT OR Apache-2.0
//! Offsets at which clients map buffers.

use nix::errno::Errno;

use super::harness::{Client, GTT};
use super::queues::BASE;
use crate::driver::{OpenFile, PAGE};

/// Allocates memory; its handle and its offset.
fn alloc(client: &Client, va: u64) -> (u64, u64) {
    let mut args = client.alloc_args(0, va, PAGE, GTT);
    client.call(kfd::sys::AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args).unwrap();
    (args.handle, args.mmap_offset)
}

#[test]
fn a_freed_buffer_is_at_no_offset_and_its_handle_is_given_again() {
    let client = Client::new("gfx1100");
    let file: OpenFile = client.acquire(0);
    let map = |offset| client.process.mmap(&file, PAGE, offset).map(drop);
    let (first, second) = (alloc(&client, BASE), alloc(&client, BASE + PAGE));
    assert_eq!((map(first.1), map(second.1)), (Ok(()), Ok(())));
    client.free(first.0).unwrap();
    assert_eq!((map(first.1), map(second.1)), (Err(Errno::EINVAL), Ok(())));
    let third = alloc(&client, BASE);
    assert_eq!(third.0, first.0);
    assert_ne!(third.1, first.1);
    client.free(second.0).unwrap();
    assert_eq!([third.1, first.1, second.1].map(map), [Ok(()), Err(Errno::EINVAL), Err(Errno::EINVAL)]);
}
