// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU_OP on the wire: descriptors inside arrays, more of them than a message carries, and large blobs.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;

use super::server::{Answer, Call, bare, elements, memfd};
use super::*;
use crate::ioctl::{ProcessInfo, RestoreDevice};
use crate::sys::*;
use crate::transport::wire::{FdPlace, Reply, Segment};

const BO_BYTES: u64 = size_of::<kfd_criu_bo_bucket>() as u64;
const DMABUF: u64 = std::mem::offset_of!(kfd_criu_bo_bucket, dmabuf_fd) as u64;

fn ioctl(arg: &kfd_ioctl_criu_args, segments: Vec<Segment>, written: Vec<(u64, u64)>) -> Reply {
    let arg = bytemuck::bytes_of(arg).to_vec();
    Reply::Ioctl { result: 0, arg, segments, written, fd_places: vec![], copy_back: false }
}

/// Answers CHECKPOINT: bucket `i` has size `i`, every other one memory of that size; the blob is written in the
/// middle, byte for byte what was there plus one.
fn checkpoint(call: Call) -> Answer {
    let args: kfd_ioctl_criu_args = call.args();
    let mut buckets = vec![kfd_criu_bo_bucket::default(); args.num_bos as usize];
    let (mut places, mut fds) = (Vec::new(), Vec::new());
    for (index, bucket) in (0_u64..).zip(&mut buckets) {
        (bucket.size, bucket.dmabuf_fd) = (index, u32::MAX);
        if index % 2 == 0 {
            places.push(FdPlace::Memory(args.bos + index * BO_BYTES + DMABUF));
            fds.push(memfd(index));
        }
    }
    let mut descriptors = call.fds;
    assert_eq!(call.fd_places, [], "nothing is sent for CHECKPOINT");
    // Whether inline or shared, the buckets are answered as the request sent them.
    let mut segments = Vec::new();
    let mut written = Vec::new();
    for (memory, fd) in call.shared.iter().zip(descriptors.drain(..)) {
        if memory.address == args.bos {
            nix::sys::uio::pwrite(&fd, bytemuck::cast_slice(&buckets), 0).unwrap();
            written.push((args.bos, memory.bytes));
        } else {
            assert_eq!((memory.address, memory.bytes), (args.priv_data, args.priv_data_size));
            let mut byte = [0];
            nix::sys::uio::pread(&fd, &mut byte, 1000).unwrap();
            nix::sys::uio::pwrite(&fd, &[byte[0] + 1; 3], 1000).unwrap();
            written.push((args.priv_data + 1000, 2));
        }
    }
    if call.shared.iter().all(|memory| memory.address != args.bos) {
        let bytes = bytemuck::cast_slice(&buckets).to_vec();
        segments.push(Segment { address: args.bos, bytes, writable: true });
    }
    let Reply::Ioctl { result, arg, .. } = ioctl(&args, vec![], vec![]) else { unreachable!() };
    Some((Reply::Ioctl { result, arg, segments, written, fd_places: places, copy_back: true }, fds))
}

fn info(bos: u32, private_bytes: u64) -> ProcessInfo {
    ProcessInfo { pid: 1, devices: 1, bos, objects: 0, private_bytes }
}

#[test]
fn checkpoint_fills_buckets_blob_and_descriptors_of_any_number() {
    let (_server, _transport, kfd) = kfd(checkpoint);
    // More would not fit the usual limit of open files: client and device are one process here.
    for bos in [1, 63, 64, 65, 200, 800] {
        let found = kfd.criu_checkpoint(&info(bos, 2 << 20)).unwrap();
        assert_eq!(found.bos.len(), bos as usize);
        for (index, (bucket, fd)) in (0_u64..).zip(found.bos.iter().zip(&found.dmabufs)) {
            assert_eq!((bucket.size, bucket.dmabuf_fd), (index, u32::MAX));
            assert_eq!(fd.is_some(), index % 2 == 0);
            if let Some(fd) = fd {
                // The number that was in the bucket is the memory of that bucket.
                assert_eq!(u64::try_from(nix::sys::stat::fstat(fd).unwrap().st_size), Ok(index));
                assert!(crate::linux::closes_on_exec(fd).unwrap());
            }
        }
        assert_eq!(found.private[999..1004], [0, 1, 1, 0, 0], "only what the device says it wrote");
    }
}

#[test]
fn buckets_too_large_for_a_message_travel_beside_it() {
    let (_server, _transport, kfd) = kfd(|call| {
        let args: kfd_ioctl_criu_args = call.args();
        assert!(call.shared.iter().any(|memory| memory.address == args.bos));
        assert!(call.segments.iter().all(|segment| segment.bytes.len() <= 320 << 10));
        let reply = ioctl(&args, vec![], vec![(args.bos, BO_BYTES)]);
        let at = call.shared.iter().position(|memory| memory.address == args.bos).unwrap();
        nix::sys::uio::pwrite(&call.fds[at], &[7; 8], 0).unwrap();
        Some((reply, vec![]))
    });
    let found = kfd.criu_checkpoint(&info(20_000, 20_000 * 272)).unwrap();
    assert_eq!((found.bos[0].addr, found.bos[1].addr), (0x0707_0707_0707_0707, 0));
    let too_large = kfd.criu_checkpoint(&info(1, 1 << 60)).unwrap_err();
    assert_eq!(too_large.errno, Errno::ENOMEM);
}

#[test]
fn restore_sends_the_render_nodes_of_the_device_buckets() {
    let (_server, transport, kfd) = kfd(|call| {
        let args: kfd_ioctl_criu_args = call.args();
        let buckets: Vec<kfd_criu_device_bucket> = elements(&call.segment(args.devices).unwrap().bytes);
        let places: Vec<_> = (0..2).map(|at| FdPlace::Memory(args.devices + 16 * at + 8)).collect();
        assert_eq!((&call.fd_places, call.fds.len()), (&places, 2));
        for (bucket, fd) in buckets.iter().zip(&call.fds) {
            let own = std::fs::metadata(format!("/proc/self/fd/{}", bucket.drm_fd)).unwrap();
            assert_eq!(own.ino(), nix::sys::stat::fstat(fd).unwrap().st_ino);
        }
        let mut segment = call.segment(args.bos).unwrap().clone();
        segment.bytes[24..32].copy_from_slice(&0x5000_u64.to_ne_bytes());
        let Reply::Ioctl { arg, .. } = ioctl(&args, vec![], vec![]) else { unreachable!() };
        let fd_places = vec![FdPlace::Memory(args.bos + DMABUF)];
        let segments = vec![segment];
        let reply = Reply::Ioctl { result: 0, arg, segments, written: vec![], fd_places, copy_back: true };
        Some((reply, vec![memfd(4096)]))
    });
    let nodes = [128, 129].map(|minor| transport.open(&crate::transport::render_node_path(minor)).unwrap());
    let device = |at: usize| RestoreDevice {
        user_gpu_id: 1 + at as u32,
        actual_gpu_id: 3,
        render_node: nodes[at].as_fd(),
    };
    let mut bos = [kfd_criu_bo_bucket::default()];
    let memory = kfd.criu_restore(&[device(0), device(1)], &mut bos, 0, &[1; 8]).unwrap();
    assert_eq!((bos[0].restored_offset, memory.len()), (0x5000, 1));
    assert_eq!(nix::sys::stat::fstat(memory[0].as_ref().unwrap()).unwrap().st_size, 4096);
}

#[test]
fn descriptors_for_memory_that_was_not_offered_are_refused_and_closed() {
    let before = memfd(1);
    let (_server, _transport, kfd) = kfd(|call| {
        let args: kfd_ioctl_criu_args = call.args();
        let Reply::Ioctl { arg, .. } = ioctl(&args, vec![], vec![]) else { unreachable!() };
        let fd_places = vec![FdPlace::Memory(args.bos + BO_BYTES - 2)];
        let (segments, written) = (vec![], vec![]);
        Some((Reply::Ioctl { result: 0, arg, segments, written, fd_places, copy_back: true }, vec![memfd(1)]))
    });
    for _ in 0..50 {
        assert_eq!(kfd.criu_checkpoint(&info(1, 8)).unwrap_err().errno, Errno::EPROTO);
    }
    let after: OwnedFd = memfd(1);
    assert!(after.as_raw_fd() < before.as_raw_fd() + 50, "fifty descriptors did not stay open");
}

#[test]
fn ranges_that_were_not_shared_are_refused() {
    let (_server, _transport, kfd) = kfd(|call| {
        let args: kfd_ioctl_criu_args = call.args();
        // Inside memory that was offered, but inline.
        Some((ioctl(&args, vec![], vec![(args.bos, 8)]), vec![]))
    });
    assert_eq!(kfd.criu_checkpoint(&info(1, 8)).unwrap_err().errno, Errno::EPROTO);
}

#[test]
fn process_info_unpause_and_resume_carry_their_numbers() {
    let (_server, _transport, kfd) = kfd(|call| {
        let mut args: kfd_ioctl_criu_args = call.args();
        match args.op {
            KFD_CRIU_OP_PROCESS_INFO => {
                args.pid = 9;
                (args.num_devices, args.num_bos, args.num_objects, args.priv_data_size) = (1, 2, 3, 4);
                super::server::answer(0, &args, vec![])
            }
            KFD_CRIU_OP_UNPAUSE => bare(-22),
            _ => bare(if args.pid == 9 { 0 } else { -3 }),
        }
    });
    let found = kfd.criu_process_info().unwrap();
    assert_eq!(found, ProcessInfo { pid: 9, devices: 1, bos: 2, objects: 3, private_bytes: 4 });
    assert_eq!(kfd.criu_unpause().unwrap_err().errno, Errno::EINVAL);
    kfd.criu_resume(9).unwrap();
    let error = kfd.criu_resume(10).unwrap_err();
    assert!(error.to_string().contains("CRIU_OP on /dev/kfd"), "{error}");
}
