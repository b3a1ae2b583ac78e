// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device in the process of its client: one driver for all transports, one mapping for both sides, and its end.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kfd::ioctl::{AllocMemory, CreateEvent, EventKind};
use kfd::sys::{KFD_IOC_ALLOC_MEM_FLAGS_GTT, KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE, kfd_event_data};
use kfd::transport::render_node_path;
use kfd::{Errno, File, GpuId, Kfd, ProtFlags, Topology, Transport};
use nix::sys::mman::{MapFlags, mmap_anonymous};
use softgpu::driver::{KernelModel, ObjectCounts};
use softgpu::in_process::Device;

const MACHINE: &str = "[[gpu]]\nchip = \"gfx1100\"\n";
const VA: u64 = 20 << 40;

/// A device, `/dev/kfd` and the render node of its GPU.
fn open() -> (Arc<Device>, Kfd, GpuId, Arc<dyn File>) {
    let device = Device::open(MACHINE, KernelModel::default()).unwrap();
    let transport = device.transport();
    let topology = Topology::read(transport.sysfs()).unwrap();
    let gpu = topology.gpus().next().unwrap();
    let kfd = Kfd::open(&transport).unwrap();
    let render = transport.open(&render_node_path(gpu.properties.drm_render_minor)).unwrap();
    kfd.acquire_vm(gpu.gpu_id, render.as_fd()).unwrap();
    (device, kfd, gpu.gpu_id, render)
}

/// Access at an address, as the process's map shows it.
fn access(va: u64) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.starts_with(&format!("{va:x}-"))).unwrap();
    line.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn memory_has_one_mapping_for_client_and_gpu() {
    let (device, kfd, gpu, render) = open();
    let at = std::ptr::with_exposed_provenance_mut::<u8>(VA as usize);
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE | MapFlags::MAP_NORESERVE;
    let (start, length) = (NonZeroUsize::new(VA as usize), NonZeroUsize::new(8192).unwrap());
    // SAFETY: nobody uses these addresses.
    unsafe { mmap_anonymous(start, length, ProtFlags::PROT_NONE, flags) }.unwrap();
    let flags = KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
    let what = AllocMemory { gpu, va: VA, bytes: 8192, flags, user_address: 0 };
    let made = kfd.alloc_memory(&what).unwrap();
    kfd.map_memory(made.handle, &[gpu]).unwrap();
    assert_eq!(access(VA), "rwxs", "the GPU's");
    // SAFETY: the addresses are ours.
    unsafe { render.mmap_fixed(at, 8192, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, made.mmap_offset) }
        .unwrap();
    assert_eq!(access(VA), "rw-s", "the client's, and thereby the GPU's");
    // SAFETY: mapped above.
    let word = unsafe { AtomicU64::from_ptr(at.cast()) };
    word.store(7, Ordering::Relaxed);
    kfd.unmap_memory(made.handle, &[gpu]).unwrap();
    assert_eq!((access(VA).as_str(), word.load(Ordering::Relaxed)), ("rw-s", 7), "the client's stays");
    assert_eq!(device.object_counts(), ObjectCounts { buffers: 1, ..ObjectCounts::default() });
    kfd.free_memory(made.handle).unwrap();
    assert_eq!(device.object_counts(), ObjectCounts::default());
}

#[test]
fn files_are_known_again_while_a_descriptor_is_left() {
    let (device, kfd, _, render) = open();
    let transport = device.transport();
    let [kept, token] = [&render, kfd.file()].map(|file| file.as_fd().try_clone_to_owned().unwrap());
    let path = render.path().to_owned();
    drop((kfd, render));
    // At an open the device looks which files are closed.
    drop(transport.open(Path::new("/dev/kfd")).unwrap());
    transport.adopt(&path, kept).unwrap();
    transport.adopt(Path::new("/dev/kfd"), token).unwrap();
}

#[test]
fn device_that_is_killed_fails_calls_and_ends_waits() {
    let (device, kfd, _, _) = open();
    let event = CreateEvent { kind: EventKind::Signal, auto_reset: false, page: None };
    let event_id = kfd.create_event(&event).unwrap().id.0;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut events = [kfd_event_data { event_id, ..Default::default() }];
            kfd.wait_events(&mut events, false, None)
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        device.kill();
        assert_eq!(waiter.join().unwrap().unwrap_err().errno, Errno::ENODEV);
    });
    assert_eq!(kfd.get_version().unwrap_err().errno, Errno::ENODEV);
    device.transport().open(Path::new("/dev/kfd")).unwrap_err();
}
