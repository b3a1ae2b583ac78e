// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of buffers through the render node, as ROCr maps them: export, import, GEM_VA, and the DMABuf for the CPU.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kfd::ioctl::{DrmVersion, WaitOutcome};
use kfd::sys::{DRM_CAP_PRIME, kfd_event_data};
use kfd::{Errno, GemHandle, ProtFlags, Render, VaAccess, VaRange};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use super::client::{Buffer, Client, Queue};
use super::{Server, assemble};

/// Runs a kernel that stores three times its lane at the address.
fn triple(
    client: &Client,
    queue: &Queue,
    kernel: &Buffer,
    arguments: &Buffer,
    at: u64,
    done: &(Buffer, kfd_event_data),
) {
    let (signal, event) = done;
    signal.u64(8).store(1, Ordering::SeqCst);
    arguments.u64(0).store(at, Ordering::SeqCst);
    queue.dispatch(kernel, arguments.va, signal);
    let outcome = client.kfd.wait_events(&mut [*event], true, Some(Duration::from_secs(30))).unwrap();
    assert_eq!(outcome, WaitOutcome::Complete);
}

fn assert_triples(seen: impl Fn(usize) -> u32) {
    assert_eq!((0..32).map(seen).collect::<Vec<_>>(), (0..32).map(|lane| 3 * lane).collect::<Vec<_>>());
}

#[test]
fn halves_of_a_buffer_and_foreign_memory_are_mapped_and_written_by_a_kernel() {
    let server = Server::start();
    let mut client = Client::connect(&server.socket);
    let render = Render::new(Arc::clone(&client.render));
    let (queue, done) = (client.queue(), client.interrupt_signal());
    let arguments = client.data(4096);
    let kernel = client.kernel(&assemble(
        "s_load_b64 s[4:5], s[0:1], 0\n v_and_b32 v0, 0x3ff, v0\n v_lshlrev_b32 v1, 2, v0\n
         v_mul_u32_u24 v0, 3, v0\n s_waitcnt lgkmcnt(0)\n global_store_b32 v1, v0, s[4:5]\n s_endpgm",
    ));
    let memory = client.unmapped(4 * 4096);
    let dmabuf = client.kfd.export_dmabuf(memory).unwrap();
    let upper = client.part(&render, dmabuf.as_fd(), 2 * 4096, 2 * 4096);
    let lower = client.part(&render, dmabuf.as_fd(), 0, 2 * 4096);
    let middle = client.part(&render, dmabuf.as_fd(), 4096, 2 * 4096);
    triple(&client, &queue, &kernel, &arguments, upper.va, &done);
    assert_triples(|lane| upper.u32(4 * lane).load(Ordering::SeqCst));
    assert_triples(|lane| middle.u32(4096 + 4 * lane).load(Ordering::SeqCst));
    assert_eq!((lower.u32(4).load(Ordering::SeqCst), middle.u32(4).load(Ordering::SeqCst)), (0, 0));
    triple(&client, &queue, &kernel, &arguments, middle.va, &done);
    assert_triples(|lane| lower.u32(4096 + 4 * lane).load(Ordering::SeqCst));
    client.kfd.free_memory(memory).unwrap();
    triple(&client, &queue, &kernel, &arguments, lower.va, &done);
    assert_triples(|lane| lower.u32(4 * lane).load(Ordering::SeqCst));

    let foreign = kfd::linux::memfd("camera", 8192, SealFlag::empty()).unwrap();
    assert_eq!(render.import(foreign.as_fd()).unwrap_err().errno, Errno::EINVAL);
    fcntl(&foreign, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    let frame = client.part(&render, foreign.as_fd(), 4096, 4096);
    triple(&client, &queue, &kernel, &arguments, frame.va, &done);
    let mut bytes = [0; 128];
    nix::sys::uio::pread(&foreign, &mut bytes, 4096).unwrap();
    let words = bytes.as_chunks::<4>().0;
    assert_triples(|lane| u32::from_le_bytes(words[lane]));
}

#[test]
fn render_node_answers_as_amdgpu_does() {
    let server = Server::start();
    let mut client = Client::connect(&server.socket);
    let render = Render::new(Arc::clone(&client.render));
    let version = DrmVersion { name: "amdgpu".to_owned(), major: 3, minor: 64, patch: 0 };
    assert_eq!(render.version().unwrap(), version);
    assert_eq!(render.capability(DRM_CAP_PRIME).unwrap(), 3);
    let memory = client.unmapped(2 * 4096);
    let dmabuf = client.kfd.export_dmabuf(memory).unwrap();
    let handle = render.import(dmabuf.as_fd()).unwrap();
    assert_eq!(render.import(dmabuf.as_fd()).unwrap(), handle);
    let again = render.export(handle).unwrap();
    for fd in [&dmabuf, &again] {
        assert!(kfd::linux::closes_on_exec(fd).unwrap());
    }
    let (first, second) = (nix::sys::stat::fstat(&dmabuf).unwrap(), nix::sys::stat::fstat(&again).unwrap());
    assert_eq!((first.st_dev, first.st_ino), (second.st_dev, second.st_ino));

    let part = client.part(&render, dmabuf.as_fd(), 4096, 4096);
    let shadow = client.data(8192);
    let at = std::ptr::with_exposed_provenance_mut(shadow.va as usize);
    let offset = render.mmap_offset(handle).unwrap();
    // SAFETY: replaces the mapping of a buffer that nothing else uses.
    unsafe { render.file().mmap_fixed(at, 8192, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, offset) }
        .unwrap();
    part.u64(8).store(0x1234, Ordering::SeqCst);
    assert_eq!(shadow.u64(4096 + 8).load(Ordering::SeqCst), 0x1234);

    let range = VaRange { va: part.va, bytes: 4096, handle, offset: 4096 };
    assert_eq!(render.map(&range, VaAccess::READ_WRITE).unwrap_err().errno, Errno::EINVAL);
    render.replace(&range, VaAccess { read: true, ..VaAccess::default() }).unwrap();
    render.unmap(&range).unwrap();
    assert_eq!(render.unmap(&range).unwrap_err().errno, Errno::ENOENT);
    render.map(&range, VaAccess::READ_WRITE).unwrap();
    render.clear(part.va, 4096).unwrap();
    render.close(handle).unwrap();
    assert_eq!(render.close(handle).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(render.close(GemHandle(0)).unwrap_err().errno, Errno::EINVAL);
}
