// SPDX-License-Identifier: MIT OR Apache-2.0
//! CRIU_OP through the whole stack: a process as large as the protocol promises, taken from one softgpud and restored
//! into another.

use std::path::Path;

use kfd::blob::Blob;
use kfd::ioctl::{AllocMemory, Checkpoint, CreateQueue, QueueKind, RestoreDevice, UpdateQueue};
use kfd::sys::*;
use kfd::{Errno, Kfd, QueueId, Transport};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use queues::cwsr::CwsrGeometry;

use super::{Client, Server};

const BUFFERS: u64 = 4096;
const QUEUES: u32 = 64;
const GTT: u32 = KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;

/// The client has a descriptor for each buffer.
fn raise_descriptor_limit() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    assert!(most >= 2 * BUFFERS + 1000, "raise the hard limit (ulimit -Hn)");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Whether this process may use CRIU_OP; a user without capabilities may not.
fn may_checkpoint(kfd: &Kfd) -> bool {
    match kfd.criu_process_info() {
        Ok(_) => {
            kfd.criu_unpause().unwrap();
            true
        }
        Err(error) => {
            assert_eq!(error.errno, Errno::EACCES);
            eprintln!("not tested: {error}");
            false
        }
    }
}

fn take(kfd: &Kfd) -> Checkpoint {
    let info = kfd.criu_process_info().unwrap();
    assert_eq!(info.pid, std::process::id());
    let taken = kfd.criu_checkpoint(&info);
    kfd.criu_unpause().unwrap();
    taken.unwrap()
}

fn restore(kfd: &Kfd, transport: &dyn Transport, taken: &mut Checkpoint) {
    let node = transport.open(Path::new("/dev/dri/renderD128")).unwrap();
    let bucket = taken.devices[0];
    let device = RestoreDevice {
        user_gpu_id: bucket.user_gpu_id,
        actual_gpu_id: bucket.actual_gpu_id,
        render_node: node.as_fd(),
    };
    let memory = kfd.criu_restore(&[device], &mut taken.bos, taken.objects, &taken.private).unwrap();
    for (at, (bucket, fd)) in taken.bos.iter().zip(&memory).enumerate() {
        let fd = fd.as_ref().unwrap();
        // The descriptor in a bucket is that buffer's: sizes tell most of them apart.
        assert_eq!(u64::try_from(nix::sys::stat::fstat(fd).unwrap().st_size), Ok(bucket.size), "{at}");
    }
}

/// Makes the buffers, of one to seven pages, and the queues, of which one in sixteen may run.
fn fill(client: &mut Client) {
    let va = 0x1800_0000_0000 + client.data(4096).va;
    for index in 0..BUFFERS {
        let bytes = (1 + index % 7) * 4096;
        let what =
            AllocMemory { gpu: client.gpu, va: va + index * 0x8000, bytes, flags: GTT, user_address: 0 };
        let made = client.kfd.alloc_memory(&what).unwrap();
        if index % 3 == 0 {
            client.kfd.map_memory(made.handle, &[client.gpu]).unwrap();
        }
    }
    let geometry = CwsrGeometry::for_node(&client.shape()).unwrap();
    let (ring, pointers, eop) = (client.data(4096), client.data(4096), client.data(4096));
    let save = client.data(usize::try_from(geometry.total_bytes).unwrap());
    for index in 0..QUEUES {
        let queue = CreateQueue {
            gpu: client.gpu,
            kind: if index % 2 == 0 { QueueKind::ComputeAql } else { QueueKind::ComputePm4 },
            ring: ring.va,
            ring_bytes: 4096,
            write_pointer: pointers.va,
            read_pointer: pointers.va + 64,
            eop: eop.va,
            eop_bytes: 4096,
            save_area: save.va,
            save_bytes: geometry.save_bytes,
            control_stack_bytes: geometry.control_stack_bytes,
            percentage: if index % 16 == 0 { 100 } else { 0 },
            priority: index % 16,
        };
        assert_eq!(client.kfd.create_queue(&queue).unwrap().id, QueueId(index));
    }
}

#[test]
fn a_large_process_is_taken_from_one_device_and_restored_into_another() {
    raise_descriptor_limit();
    // Released kernels do not restore queues of this GPU.
    let (from, to) = (Server::under("fixed"), Server::under("fixed"));
    let mut client = Client::connect(&from.socket);
    if !may_checkpoint(&client.kfd) {
        return;
    }
    fill(&mut client);
    let mut taken = take(&client.kfd);
    assert!(taken.bos.len() as u64 > BUFFERS && taken.private.len() > 1 << 20);
    assert!(taken.dmabufs.iter().all(Option::is_some));
    taken.dmabufs.clear();
    let blob = Blob::parse(&taken.private, 1, taken.bos.len() as u32).unwrap();
    assert_eq!((blob.queues.len(), blob.bos[0].mapped.len()), (QUEUES as usize, 1));

    let heir = Client::idle(&to.socket);
    restore(&heir.kfd, &heir.transport, &mut taken);
    let again = take(&heir.kfd);
    assert_eq!(again.private, taken.private);
    drop(again);
    assert_eq!(heir.kfd.criu_resume(u32::MAX).unwrap_err().errno, Errno::ESRCH);
    heir.kfd.criu_resume(std::process::id()).unwrap();
    let parked = UpdateQueue { id: QueueId(16), ring: 0, ring_bytes: 4096, percentage: 0, priority: 0 };
    heir.kfd.update_queue(&parked).unwrap();
}

#[test]
fn failed_checkpoint_leaves_no_descriptor_behind() {
    let server = Server::start();
    let mut client = Client::connect(&server.socket);
    if !may_checkpoint(&client.kfd) {
        return;
    }
    for _ in 0..100 {
        client.data(4096);
    }
    let info = client.kfd.criu_process_info().unwrap();
    client.kfd.criu_checkpoint(&info).unwrap();
    let before = open_descriptors();
    for _ in 0..20 {
        let more = kfd::ioctl::ProcessInfo { bos: info.bos + 1, ..info };
        assert_eq!(client.kfd.criu_checkpoint(&more).unwrap_err().errno, Errno::EINVAL);
        drop(client.kfd.criu_checkpoint(&info).unwrap());
    }
    assert_eq!(open_descriptors(), before);
    client.kfd.criu_unpause().unwrap();
}
