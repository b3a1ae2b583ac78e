// SPDX-License-Identifier: MIT OR Apache-2.0
//! DMABufs within one process: aliases on two agents, descriptors, and both through a checkpoint in place.
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::fstat;
use stasis::checkpoint::{CheckpointError, Mode};
use stasis::{Buffer, Runtime};
use stasis_tests::gpu::on_a_future_kernel;

const DEADLINE: Duration = Duration::from_secs(20);

fn open() -> Runtime {
    stasis_tests::gpu::open_on("soft:gfx1100,gfx1100", None)
}

fn around(runtime: &Runtime, directory: &Path) {
    runtime.lock(Mode::Drain, DEADLINE).unwrap();
    if let Err(error) = runtime.checkpoint(directory) {
        // A failed assertion drops handles, which waits at the closed gate for ever.
        eprintln!("{}", stasis::explain(&error));
        std::process::exit(101);
    }
    if let Err(error) = runtime.restore(None) {
        eprintln!("{}", stasis::explain(&error));
        std::process::exit(101);
    }
    runtime.unlock().unwrap();
}

/// Writes through each alias and reads through all others.
fn alias(buffers: &[&Buffer], round: u8) {
    for (n, writer) in buffers.iter().enumerate() {
        let bytes = [round, n as u8 + 1, 0xa5];
        writer.write(4093, &bytes).unwrap();
        for reader in buffers {
            let mut read = [0; 3];
            reader.read(4093, &mut read).unwrap();
            assert_eq!(read, bytes);
        }
    }
}

fn is_cloexec(fd: &OwnedFd) -> bool {
    kfd::linux::closes_on_exec(fd).unwrap()
}

fn inode(fd: impl AsFd) -> u64 {
    fstat(fd).unwrap().st_ino
}

#[test]
fn aliases_on_two_agents_stay_aliases_and_descriptors_keep_their_numbers() {
    let runtime = open();
    let (first, second) = (runtime.agent(0).unwrap(), runtime.agent(1).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let original = first.vram().alloc(3 * 4096).unwrap();
    let fd = original.export().unwrap();
    assert!(is_cloexec(&fd));
    let twin = nix::unistd::dup(&fd).unwrap();
    let again = original.export().unwrap();
    assert_eq!((inode(&fd), inode(&fd)), (inode(&twin), inode(&again)));
    let (near, far) = (runtime.import(&fd, &first).unwrap(), runtime.import(&twin, &second).unwrap());
    assert_eq!((near.len(), far.len()), (3 * 4096, 3 * 4096));
    drop(again);
    let buffers = [&original, &near, &far];
    alias(&buffers, 1);
    let numbers = (fd.as_raw_fd(), twin.as_raw_fd());
    let addresses = buffers.map(|buffer| buffer.va());
    for round in 2..4 {
        original.write(0, &[round]).unwrap();
        let generation = directory.path().join(round.to_string());
        std::fs::create_dir(&generation).unwrap();
        around(&runtime, &generation);
        let mut byte = [0];
        far.read(0, &mut byte).unwrap();
        assert_eq!(byte, [round]);
        alias(&buffers, round);
        assert_eq!(inode(&fd), inode(&twin));
        assert_eq!((is_cloexec(&fd), is_cloexec(&twin)), (true, false));
    }
    assert_eq!(buffers.map(|buffer| buffer.va()), addresses);
    assert_eq!(numbers, (fd.as_raw_fd(), twin.as_raw_fd()));
    // The restored descriptor is a DMABuf of the same memory.
    let late = runtime.import(&twin, &second).unwrap();
    alias(&[&original, &near, &far, &late], 9);
    original.free().unwrap();
    alias(&[&near, &far, &late], 10);
}

#[test]
fn memory_that_only_a_descriptor_holds_survives() {
    let runtime = open();
    let agent = runtime.agent(0).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let buffer = runtime.gtt().alloc(4096).unwrap();
    buffer.write(7, b"only a descriptor").unwrap();
    let fd = buffer.export().unwrap();
    buffer.free().unwrap();
    around(&runtime, directory.path());
    let back = runtime.import(&fd, &agent).unwrap();
    let mut read = [0; 17];
    back.read(7, &mut read).unwrap();
    assert_eq!(&read, b"only a descriptor");
}

#[test]
fn somebody_outside_is_named_and_nothing_is_changed() {
    let runtime = open();
    let directory = tempfile::tempdir().unwrap();
    let buffer = runtime.agent(0).unwrap().vram().alloc(4096).unwrap();
    let fd = buffer.export().unwrap();
    let mut child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::from(fd.try_clone().unwrap()))
        .spawn()
        .unwrap();
    runtime.lock(Mode::Drain, DEADLINE).unwrap();
    let refused = runtime.checkpoint(directory.path());
    runtime.unlock().unwrap();
    drop(child.stdin.take());
    let pid = child.id().cast_signed();
    child.wait().unwrap();
    match refused.unwrap_err() {
        CheckpointError::Outsiders { holders } => {
            assert_eq!(holders.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [pid]);
        }
        other => panic!("{other}"),
    }
    let alias_of = runtime.import(&fd, &runtime.agent(1).unwrap()).unwrap();
    alias(&[&buffer, &alias_of], 1);
    around(&runtime, directory.path());
    alias(&[&buffer, &alias_of], 2);
}

#[test]
fn kernels_in_the_middle_are_not_stopped_over_shared_memory() {
    on_a_future_kernel();
    let runtime = open();
    let buffer = runtime.agent(0).unwrap().vram().alloc(4096).unwrap();
    let _fd = buffer.export().unwrap();
    let refused = runtime.lock(Mode::Preempt, DEADLINE).unwrap_err();
    assert!(stasis::explain(&refused).contains(&buffer.key().to_string()), "{}", stasis::explain(&refused));
    alias(&[&buffer], 1);
}

#[test]
fn name_is_answered_by_the_agent_of_its_process() {
    let runtime = open();
    let agent = runtime.agent(1).unwrap();
    let original = runtime.agent(0).unwrap().vram().alloc(4096).unwrap();
    let name = original.name().unwrap();
    assert_eq!(name.owner, std::process::id().cast_signed());
    let alias = runtime.import_named(&name, &agent, DEADLINE).unwrap();
    alias.write(0, b"by name").unwrap();
    let mut read = [0; 7];
    original.read(0, &mut read).unwrap();
    assert_eq!(&read, b"by name");
}
