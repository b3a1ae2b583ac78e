// SPDX-License-Identifier: MIT OR Apache-2.0
//! What travels with an ioctl or a mapping, and what comes back.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::sys::mman::ProtFlags;

use super::server::{answer, bare, elements, memfd, with_fds};
use super::*;
use crate::ids::{GpuId, MemoryHandle};
use crate::ioctl::{AllocMemory, CreateEvent, WaitOutcome};
use crate::sys::*;
use crate::transport::Mapping;
use crate::transport::soft::user_memory;
use crate::transport::wire::{FdPlace, Reply, Segment};
use crate::{IoctlError, Topology, linux};

const EFAULT: i32 = 14;

#[test]
fn argument_goes_out_and_comes_back() {
    let (_server, transport, kfd) = kfd(|call| {
        assert_eq!(call.cmd, AMDKFD_IOC_GET_VERSION);
        answer(0, &kfd_ioctl_get_version_args { major_version: 1, minor_version: 23 }, vec![])
    });
    assert_eq!(transport.name(), "soft:gfx1100");
    assert_eq!(kfd.get_version().unwrap().minor, 23);
}

#[test]
fn argument_is_copied_back_on_failure_too() {
    let (_server, _, kfd) = kfd(|call| {
        let mut args: kfd_ioctl_map_memory_to_gpu_args = call.args();
        let ids = call.segment(args.device_ids_array_ptr).unwrap();
        assert_eq!((elements::<u32>(&ids.bytes), ids.writable), (vec![11, 12], false));
        args.n_success = 1;
        answer(-22, &args, vec![])
    });
    let error = kfd.map_memory(MemoryHandle(5), &[GpuId(11), GpuId(12)]).unwrap_err();
    assert_eq!((error.done, error.wanted, error.source.errno), (1, 2, Errno::EINVAL));
}

#[test]
fn waiting_returns_what_the_device_wrote_into_the_array() {
    let (_server, _, kfd) = kfd(|call| {
        let mut args: kfd_ioctl_wait_events_args = call.args();
        let mut segment = call.segment(args.events_ptr).unwrap().clone();
        let mut events: Vec<kfd_event_data> = elements(&segment.bytes);
        let fault = kfd_hsa_memory_exception_data { va: 0x5000, gpu_id: 9, ..Default::default() };
        events[1].set_memory_exception_data(fault);
        segment.bytes = bytemuck::cast_slice(&events).to_vec();
        args.wait_result = KFD_IOC_WAIT_RESULT_COMPLETE;
        answer(0, &args, vec![segment])
    });
    let mut events = [kfd_event_data::new(1, 4), kfd_event_data::new(2, 0)];
    assert_eq!(kfd.wait_events(&mut events, false, None).unwrap(), WaitOutcome::Complete);
    assert_eq!((events[0].last_event_age(), events[1].memory_exception_data().va), (4, 0x5000));
}

#[test]
fn largest_wait_fits_a_message() {
    let (_server, _, kfd) = kfd(|call| {
        let args: kfd_ioctl_wait_events_args = call.args();
        let segment = call.segment(args.events_ptr).unwrap().clone();
        assert_eq!(segment.bytes.len(), 4096 * 48);
        answer(0, &args, vec![segment])
    });
    let mut events = vec![kfd_event_data::default(); 4096];
    assert_eq!(kfd.wait_events(&mut events, true, None).unwrap(), WaitOutcome::Complete);
}

/// Issues `cmd` with a hand-made argument.
fn raw<T: bytemuck::Pod>(kfd: &Kfd, cmd: u32, args: &mut T) -> Result<u32, Errno> {
    // SAFETY: the argument has the command's size. Pointers in it that name no memory of the test are only read by
    // system calls, which answer EFAULT.
    unsafe { kfd.file().ioctl(cmd, std::ptr::from_mut(args).cast()) }
}

#[test]
fn bad_embedded_pointer_is_a_missing_segment() {
    let (_server, _, kfd) = kfd(|call| if call.segments.is_empty() { bare(-EFAULT) } else { bare(0) });
    let mut args = kfd_ioctl_wait_events_args { events_ptr: 0x1000, num_events: 1, ..Default::default() };
    assert_eq!(raw(&kfd, AMDKFD_IOC_WAIT_EVENTS, &mut args), Err(Errno::EFAULT));
    let mut args =
        kfd_ioctl_set_cu_mask_args { num_cu_mask: 32, cu_mask_ptr: u64::MAX, ..Default::default() };
    assert_eq!(raw(&kfd, AMDKFD_IOC_SET_CU_MASK, &mut args), Err(Errno::EFAULT));
    let mut apertures =
        kfd_ioctl_get_process_apertures_new_args { num_of_nodes: u32::MAX, ..Default::default() };
    assert_eq!(raw(&kfd, AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, &mut apertures), Err(Errno::EFAULT));
}

#[test]
fn bad_argument_pointer_is_efault() {
    let (_server, _, kfd) = kfd(|_| bare(0));
    for address in [std::ptr::null_mut(), std::ptr::without_provenance_mut(0x1000)] {
        // SAFETY: nothing is mapped at the address, which the transport reads by a system call.
        assert_eq!(unsafe { kfd.file().ioctl(AMDKFD_IOC_GET_VERSION, address) }, Err(Errno::EFAULT));
    }
}

#[test]
fn memory_that_became_read_only_is_efault() {
    let (_server, _, kfd) = kfd(|call| {
        let args: kfd_ioctl_get_dmabuf_info_args = call.args();
        let segment = call.segment(args.metadata_ptr).unwrap().clone();
        answer(0, &args, vec![segment])
    });
    let page = Mapping::private(4096).unwrap();
    let start = std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(page.address())).unwrap();
    // SAFETY: the page is this test's, which makes no reference to it.
    unsafe { nix::sys::mman::mprotect(start, 4096, ProtFlags::PROT_READ) }.unwrap();
    let metadata_ptr = page.address() as u64;
    let mut args = kfd_ioctl_get_dmabuf_info_args { metadata_ptr, metadata_size: 8, ..Default::default() };
    assert_eq!(raw(&kfd, AMDKFD_IOC_GET_DMABUF_INFO, &mut args), Err(Errno::EFAULT));
}

#[test]
fn descriptor_fields_travel_as_descriptors() {
    let (_server, transport, kfd) = kfd(|call| {
        if call.fds.is_empty() {
            return bare(-22);
        }
        assert_eq!((call.fd_places.as_slice(), call.fds.len()), (&[FdPlace::Field(0)][..], 1));
        // The inode is the file's identity.
        let inode = nix::sys::stat::fstat(&call.fds[0]).unwrap().st_ino;
        let number = i32::from_ne_bytes(call.arg[..4].try_into().unwrap());
        let own = std::fs::metadata(format!("/proc/self/fd/{number}")).unwrap();
        bare(if std::os::unix::fs::MetadataExt::ino(&own) == inode { 0 } else { -77 })
    });
    let render = transport.open(std::path::Path::new("/dev/dri/renderD128")).unwrap();
    kfd.acquire_vm(GpuId(1), render.as_fd()).unwrap();
    let mut args = kfd_ioctl_acquire_vm_args { drm_fd: 1 << 20, gpu_id: 1 };
    assert_eq!(raw(&kfd, AMDKFD_IOC_ACQUIRE_VM, &mut args), Err(Errno::EINVAL), "no such descriptor");
}

#[test]
fn exported_descriptor_is_installed_with_the_callers_flags() {
    let (_server, _, kfd) = kfd(|call| {
        let args: kfd_ioctl_export_dmabuf_args = call.args();
        with_fds(0, &args, vec![], vec![FdPlace::Field(12)], vec![memfd(4096)])
    });
    let dmabuf = kfd.export_dmabuf(MemoryHandle(1)).unwrap();
    assert_eq!(nix::sys::stat::fstat(&dmabuf).unwrap().st_size, 4096);
    assert!(linux::closes_on_exec(&dmabuf).unwrap());
    let mut args = kfd_ioctl_export_dmabuf_args::default();
    raw(&kfd, AMDKFD_IOC_EXPORT_DMABUF, &mut args).unwrap();
    // SAFETY: the transport installed the descriptor for this call, whose number nobody else knows.
    let fd = unsafe {
        <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(args.dmabuf_fd.cast_signed())
    };
    assert!(!linux::closes_on_exec(&fd).unwrap());
}

#[test]
fn hostile_answers_change_nothing() {
    let (_server, _, kfd) = kfd(|call| {
        let mut args: kfd_ioctl_create_event_args = call.args();
        args.event_id = 99;
        let evil = |address| vec![Segment { address, bytes: vec![1; 64], writable: true }];
        match args.event_type {
            0 => answer(0, &args, evil(0x1000)),
            3 => answer(0, &[0_u8; 4096], vec![]),
            5 => with_fds(0, &args, vec![], vec![FdPlace::Field(400)], vec![memfd(0)]),
            _ => with_fds(0, &args, vec![], [1, 2, 3].map(FdPlace::Field).to_vec(), vec![]),
        }
    });
    for kind in [
        crate::ioctl::EventKind::Signal,
        crate::ioctl::EventKind::HwException,
        crate::ioctl::EventKind::Debug,
        crate::ioctl::EventKind::Memory,
    ] {
        let IoctlError { errno, .. } =
            kfd.create_event(&CreateEvent { kind, ..Default::default() }).unwrap_err();
        assert_eq!(errno, Errno::EPROTO, "{kind:?}");
    }
}

#[test]
fn userptr_pages_are_lent_until_freed() {
    let (_server, transport, kfd) = kfd(|call| {
        if call.cmd == AMDKFD_IOC_FREE_MEMORY_OF_GPU {
            return bare(0);
        }
        let mut args: kfd_ioctl_alloc_memory_of_gpu_args = call.args();
        let Some(pages) = call.fds.first() else { return bare(-EFAULT) };
        if args.gpu_id != 1 {
            return answer(-22, &args, vec![]);
        }
        nix::sys::uio::pwrite(pages, b"device", 0).unwrap();
        args.handle = 1 << 32;
        answer(0, &args, vec![])
    });
    let page = Mapping::private(4096).unwrap();
    let flags = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR | KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE;
    let user_address = page.address() as u64;
    let text = || {
        let mut bytes = [0; 6];
        user_memory::read(user_address, &mut bytes).unwrap();
        bytes
    };
    let what = AllocMemory { gpu: GpuId(1), va: user_address, bytes: 4096, flags, user_address };
    let private = || {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{user_address:x}-")));
        !line.is_some_and(|line| line.contains("stasis-userptr"))
    };
    let allocation = kfd.alloc_memory(&what).unwrap();
    assert_eq!(text(), *b"device");
    assert!(!private());
    kfd.free_memory(allocation.handle).unwrap();
    assert!(private());
    assert_eq!(text(), *b"device");

    let refused = kfd.alloc_memory(&AllocMemory { gpu: GpuId(2), ..what }).unwrap_err();
    assert_eq!((refused.errno, private()), (Errno::EINVAL, true));
    let refused = kfd.alloc_memory(&AllocMemory { user_address: 0x1000, ..what }).unwrap_err();
    assert_eq!(refused.errno, Errno::EFAULT);

    kfd.alloc_memory(&what).unwrap();
    assert!(!private());
    drop(kfd);
    transport.close().unwrap();
    assert!(private(), "closing takes pages back");
}

#[test]
fn shared_virtual_memory_is_lent_and_its_attributes_come_back() {
    let (_server, _transport, kfd) = kfd(|call| {
        let head: kfd_ioctl_svm_args = bytemuck::pod_read_unaligned(&call.arg[..24]);
        let mut attributes: Vec<kfd_ioctl_svm_attribute> = elements(&call.arg[24..]);
        assert_eq!((call.cmd, attributes.len()), (svm_command(2), 2));
        if let Some(pages) = call.fds.first() {
            nix::sys::uio::pwrite(pages, b"device", 0).unwrap();
        }
        if attributes[1].value == 99 {
            return bare(-22);
        }
        attributes[0].value = 4711;
        let arg = [bytemuck::bytes_of(&head), bytemuck::cast_slice(&attributes)].concat();
        let (segments, written, fd_places) = (vec![], vec![], vec![]);
        Some((Reply::Ioctl { result: 0, arg, segments, written, fd_places, copy_back: true }, vec![]))
    });
    let page = Mapping::private(4096).unwrap();
    let address = page.address() as u64;
    let call = |kind, gpu| {
        let head = kfd_ioctl_svm_args { start_addr: address, size: 4096, nattr: 2, ..Default::default() };
        let attributes = [
            kfd_ioctl_svm_attribute { type_: KFD_IOCTL_SVM_ATTR_SET_FLAGS, value: 1 },
            kfd_ioctl_svm_attribute { type_: kind, value: gpu },
        ];
        // Ten words: the head's six, and two of each attribute.
        let mut args = [0_u32; 10];
        args[..6].copy_from_slice(bytemuck::cast_slice(&[head]));
        args[6..].copy_from_slice(bytemuck::cast_slice(&attributes));
        (raw(&kfd, svm_command(2), &mut args), args[7])
    };
    let is_lent = || {
        let range = page.address()..page.address() + 4096;
        crate::maps::in_range(&range).unwrap().iter().any(|vma| vma.is_named("stasis-userptr"))
    };
    let mut text = [0; 6];
    assert_eq!((call(KFD_IOCTL_SVM_ATTR_ACCESS, 99), is_lent()), ((Err(Errno::EINVAL), 1), false));
    assert_eq!((call(KFD_IOCTL_SVM_ATTR_ACCESS, 7), is_lent()), ((Ok(0), 4711), true));
    user_memory::read(address, &mut text).unwrap();
    assert_eq!(text, *b"device");
    assert_eq!((call(KFD_IOCTL_SVM_ATTR_NO_ACCESS, 7), is_lent()), ((Ok(0), 4711), false));
}

#[test]
fn doorbell_stores_and_wakes_a_parked_device_only() {
    let (server, _, kfd) = kfd(|_| bare(0));
    let memory = server.bells().0.try_clone().unwrap();
    let slot = move || {
        let mut bytes = [0; 8];
        nix::sys::uio::pread(&memory, &mut bytes, 16).unwrap();
        u64::from_ne_bytes(bytes)
    };
    let page = Box::leak(Box::new(Mapping::shared(server.bells().1, 4096).unwrap()));
    let parked = page.word();
    let place = Box::leak(Box::new(Mapping::private(8192).unwrap()));
    let at = std::ptr::with_exposed_provenance_mut(place.address());
    // SAFETY: the test does not use the place otherwise, and never unmaps it.
    let bells = unsafe { kfd.file().map_doorbells(at, 8192, doorbell_cookie(0x1234)) }.unwrap();
    let bell = bells.doorbell(0x2010);
    assert_eq!(bell.offset(), 16);
    bell.ring(5);
    assert_eq!((slot(), parked.load(Ordering::Acquire)), (5, 0));

    parked.store(1, Ordering::SeqCst);
    let device = std::thread::spawn(move || {
        while parked.load(Ordering::SeqCst) == 1 {
            // A wait that begins after the wake finds the word changed.
            let _ = linux::wait_futex(parked, 1, None);
        }
        slot()
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    bell.ring(6);
    assert_eq!(device.join().unwrap(), 6);
    assert_eq!(parked.load(Ordering::Acquire), 0);
}

#[test]
fn mappings_report_the_devices_errno_and_their_shape() {
    let (_server, _, kfd) = kfd(|_| bare(0));
    let file = kfd.file();
    // SAFETY: both calls fail before they map anything.
    unsafe {
        assert_eq!(file.mmap_fixed(std::ptr::null_mut(), 4096, ProtFlags::PROT_READ, 0), Err(Errno::EACCES));
        let cookie = doorbell_cookie(1);
        assert_eq!(file.map_doorbells(std::ptr::null_mut(), 8191, cookie).unwrap_err(), Errno::EINVAL);
    }
}

#[test]
fn topology_is_read_through_the_transport() {
    let server = Server::start(|_| bare(0));
    let transport = connect(&server);
    let topology = Topology::read(transport.sysfs()).unwrap();
    assert_eq!((topology.generation, topology.nodes.len()), (7, 0));
    let error = transport.sysfs().read("nodes/9/name").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn whole_topology_is_read_in_as_many_messages_as_the_device_wants() {
    let server = Server::start(|_| bare(0));
    let transport = connect(&server);
    let whole = transport.sysfs().whole().unwrap().unwrap();
    // The server sends one entry a message: a file and a directory.
    assert_eq!(whole.files().collect::<Vec<_>>(), [("generation_id", "7\n")]);
    assert_eq!(whole.directories().collect::<Vec<_>>(), ["nodes"]);
    assert_eq!(transport.sysfs().list("").unwrap(), ["generation_id", "nodes"]);
}

#[test]
fn every_descriptor_is_close_on_exec() {
    let (_server, _transport, kfd) = kfd(|_| bare(0));
    kfd.runtime_disable().unwrap();
    let closes = linux::closes_on_exec(kfd.file().as_fd()).unwrap();
    assert!(closes);
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number: i32 = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("02000000").trim();
        let target = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        let socket = target.to_string_lossy().starts_with("socket:");
        let inheritable = i64::from_str_radix(flags, 8).unwrap() & i64::from(nix::libc::O_CLOEXEC) == 0;
        assert!(number <= 2 || !socket || !inheritable, "{number} -> {target:?}");
    }
    assert!(kfd.file().as_fd().as_raw_fd() > 2);
}
