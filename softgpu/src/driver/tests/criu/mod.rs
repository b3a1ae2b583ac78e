// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU_OP: what a checkpoint holds, what a restore makes, and what both refuse.

mod hostile;
mod pause;
mod restore;
pub mod round_trip;
mod several_xccs;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use super::harness::*;
use kfd::sys::*;
use nix::errno::Errno;

use crate::driver::{Caller, FdPlace, KernelModel, memfd};

/// Addresses of the three areas in the client.
const DEVICES: u64 = 0x10_0000;
const BOS: u64 = 0x20_0000;
const PRIVATE: u64 = 0x80_0000;
/// A process that may use CRIU_OP.
const CAPABLE: Caller = Caller { same_process: true, checkpoint_restore: true };
const BO_BUCKET: usize = size_of::<kfd_criu_bo_bucket>();

/// A checkpoint that the client holds.
struct Taken {
    args: kfd_ioctl_criu_args,
    devices: Vec<kfd_criu_device_bucket>,
    bos: Vec<kfd_criu_bo_bucket>,
    blob: Vec<u8>,
    memory: HashMap<usize, OwnedFd>,
}

impl Taken {
    /// The part that does not depend on the buffers' offsets in the render nodes.
    fn buckets(&self) -> Vec<kfd_criu_bo_bucket> {
        let plain =
            |bucket: &kfd_criu_bo_bucket| kfd_criu_bo_bucket { offset: 0, restored_offset: 0, ..*bucket };
        self.bos.iter().map(plain).collect()
    }

    fn parse(&self) -> kfd::blob::Blob {
        kfd::blob::Blob::parse(&self.blob, self.args.num_devices, self.args.num_bos).unwrap()
    }
}

fn issue(client: &Client, args: &mut kfd_ioctl_criu_args, memory: &Memory, fds: &Fds) -> Result<u32, Errno> {
    client.call_with(AMDKFD_IOC_CRIU_OP, args, memory, fds)
}

/// An operation without memory.
fn op(client: &Client, op: u32, pid: u32) -> Result<kfd_ioctl_criu_args, Errno> {
    let mut args = kfd_ioctl_criu_args { op, pid, ..Default::default() };
    issue(client, &mut args, &Memory::of(CAPABLE), &Fds::default()).map(|_| args)
}

fn pause(client: &Client) -> Result<kfd_ioctl_criu_args, Errno> {
    op(client, KFD_CRIU_OP_PROCESS_INFO, 0)
}

fn unpause(client: &Client) -> Result<(), Errno> {
    op(client, KFD_CRIU_OP_UNPAUSE, 0).map(drop)
}

fn resume(client: &Client) -> Result<(), Errno> {
    op(client, KFD_CRIU_OP_RESUME, PID).map(drop)
}

fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// CHECKPOINT of a paused process.
fn checkpoint(client: &Client, info: &kfd_ioctl_criu_args) -> Result<Taken, Errno> {
    let mut args = kfd_ioctl_criu_args {
        devices: DEVICES,
        bos: BOS,
        priv_data: PRIVATE,
        op: KFD_CRIU_OP_CHECKPOINT,
        ..*info
    };
    let memory = Memory::of(CAPABLE)
        .and(DEVICES, &vec![0xaa; 16 * info.num_devices as usize])
        .and(BOS, &vec![0xaa; BO_BUCKET * info.num_bos as usize])
        .and(PRIVATE, &vec![0xaa; info.priv_data_size as usize]);
    let fds = Fds::default();
    issue(client, &mut args, &memory, &fds)?;
    let bos: Vec<kfd_criu_bo_bucket> = elements(&memory.bytes(BOS));
    let index_of = |place| match place {
        FdPlace::Memory(address) => {
            let offset = address - BOS;
            assert_eq!(offset % BO_BUCKET as u64, 40);
            offset as usize / BO_BUCKET
        }
        FdPlace::Field(_) => panic!("no descriptor belongs into the argument"),
    };
    let given = fds.taken_out().into_iter().map(|(place, fd)| (index_of(place), fd)).collect();
    let (devices, blob) = (elements(&memory.bytes(DEVICES)), memory.bytes(PRIVATE));
    Ok(Taken { args, devices, bos, blob, memory: given })
}

/// PROCESS_INFO and CHECKPOINT.
fn take(client: &Client) -> Taken {
    checkpoint(client, &pause(client).unwrap()).unwrap()
}

/// RESTORE with fresh render nodes; answers the buckets as they came back and the places of the descriptors.
fn restore(client: &Client, taken: &Taken) -> Result<(Vec<kfd_criu_bo_bucket>, Vec<FdPlace>), Errno> {
    let nodes: Vec<OwnedFd> = (0..client.gpus.len()).map(|gpu| client.render(gpu).1).collect();
    restore_with(client, taken, nodes.iter())
}

fn restore_with(
    client: &Client,
    taken: &Taken,
    nodes: impl Iterator<Item = impl AsFd>,
) -> Result<(Vec<kfd_criu_bo_bucket>, Vec<FdPlace>), Errno> {
    let mut fds = Fds::default();
    for (at, node) in (0..).zip(nodes) {
        fds = fds.and(FdPlace::Memory(DEVICES + 16 * at + 8), node);
    }
    for (at, bucket) in (0..).zip(&taken.bos) {
        if bucket.alloc_flags & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR != 0 {
            // No file can have some of the untrusted sizes.
            let pages = memfd::create("pages", bucket.size.min(1 << 30)).unwrap();
            fds = fds.and(FdPlace::Memory(BOS + at * BO_BUCKET as u64 + 40), pages);
        }
    }
    let memory = Memory::of(CAPABLE)
        .and(DEVICES, bytemuck::cast_slice(&taken.devices))
        .and(BOS, bytemuck::cast_slice(&taken.bos))
        .and(PRIVATE, &taken.blob);
    let mut args = kfd_ioctl_criu_args { op: KFD_CRIU_OP_RESTORE, ..taken.args };
    let outcome = issue(client, &mut args, &memory, &fds);
    let places = fds.taken_out().into_iter().map(|(place, _)| place).collect::<Vec<_>>();
    assert!(outcome.is_ok() || places.is_empty(), "a failed restore gives nothing out");
    outcome.map(|_| (elements(&memory.bytes(BOS)), places))
}

/// A process like `like` on another machine: nothing acquired, its ledger empty.
fn elsewhere(kernel: KernelModel) -> Client {
    Client::fresh_pair(kernel)
}
