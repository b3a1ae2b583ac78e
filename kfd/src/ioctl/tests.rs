// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wrappers on a file that answers from a script.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use parking_lot::Mutex;

use super::call::{Issue, Slice};
use super::*;
use crate::ids::{EventId, GemHandle, GpuId, MemoryHandle, QueueId};
use crate::sys::{self, *};
use crate::transport::{DoorbellSlice, File, Mapping, ProtFlags};

type Script = dyn FnMut(u32, &mut [u8]) -> Result<u32, Errno> + Send;

struct Fake {
    fd: OwnedFd,
    script: Mutex<Box<Script>>,
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fake")
    }
}

impl File for Fake {
    fn path(&self) -> &Path {
        Path::new("/dev/kfd")
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno> {
        // SAFETY: the caller passes as many bytes as the command encodes, and does not use them during the call.
        let bytes = unsafe { std::slice::from_raw_parts_mut(arg.cast(), sys::ioc_size(cmd)) };
        (self.script.lock())(cmd, bytes)
    }

    unsafe fn mmap_fixed(&self, _: *mut u8, _: usize, _: ProtFlags, _: u64) -> Result<(), Errno> {
        Err(Errno::ENODEV)
    }

    unsafe fn map_doorbells(&self, _: *mut u8, _: usize, _: u64) -> Result<DoorbellSlice, Errno> {
        Err(Errno::ENODEV)
    }
}

fn render(script: impl FnMut(u32, &mut [u8]) -> Result<u32, Errno> + Send + 'static) -> Render {
    Render::new(Arc::clone(kfd(script).file()))
}

fn kfd(script: impl FnMut(u32, &mut [u8]) -> Result<u32, Errno> + Send + 'static) -> Kfd {
    let fd = std::fs::File::open("/dev/null").unwrap().into();
    Kfd::new(Arc::new(Fake { fd, script: Mutex::new(Box::new(script)) }))
}

/// Writes to memory that an argument names.
///
/// # Safety
/// As many bytes must be lent at `address` for writing.
unsafe fn store(address: u64, bytes: &[u8]) {
    let at: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller says that the bytes may be written, and they are no part of `bytes`.
    unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

fn edit<T: bytemuck::Pod>(arg: &mut [u8], change: impl FnOnce(&mut T)) {
    let mut args: T = bytemuck::pod_read_unaligned(arg);
    change(&mut args);
    arg.copy_from_slice(bytemuck::bytes_of(&args));
}

#[test]
fn interrupted_calls_are_repeated() {
    let mut calls = 0;
    let kfd = kfd(move |cmd, arg| {
        calls += 1;
        if calls < 4 {
            return Err(Errno::EINTR);
        }
        assert_eq!(cmd, AMDKFD_IOC_AVAILABLE_MEMORY);
        edit(arg, |args: &mut kfd_ioctl_get_available_memory_args| {
            args.available = u64::from(args.gpu_id) << 20
        });
        Ok(0)
    });
    assert_eq!(kfd.available_memory(GpuId(3)).unwrap(), 3 << 20);
}

#[test]
fn interrupted_wait_goes_on_with_what_remains() {
    let mut seen = Vec::new();
    let kfd = kfd(move |_, arg| {
        edit(arg, |args: &mut kfd_ioctl_wait_events_args| {
            seen.push(args.timeout);
            match seen.len() {
                // The driver says that 700 ms remain.
                1 => args.timeout = 700,
                // A driver that says nothing.
                2 => std::thread::sleep(Duration::from_millis(20)),
                _ => {
                    assert_eq!(seen[..2], [1000, 700]);
                    assert!(seen[2] <= 700);
                    args.wait_result = KFD_IOC_WAIT_RESULT_TIMEOUT;
                }
            }
        });
        let args: kfd_ioctl_wait_events_args = bytemuck::pod_read_unaligned(arg);
        if args.wait_result == KFD_IOC_WAIT_RESULT_TIMEOUT { Ok(0) } else { Err(Errno::EINTR) }
    });
    let outcome = kfd.wait_events(&mut [kfd_event_data::new(1, 0)], true, Some(Duration::from_secs(1)));
    assert_eq!(outcome.unwrap(), WaitOutcome::Timeout);
}

#[test]
fn wait_rounds_up_polls_and_waits_forever() {
    let wanted = |wanted: u32| {
        kfd(move |_, arg| {
            edit(arg, |args: &mut kfd_ioctl_wait_events_args| assert_eq!(args.timeout, wanted));
            Ok(0)
        })
    };
    wanted(1).wait_events(&mut [], true, Some(Duration::from_nanos(1))).unwrap();
    wanted(0).wait_events(&mut [], true, Some(Duration::ZERO)).unwrap();
    wanted(u32::MAX).wait_events(&mut [], true, None).unwrap();
    wanted(u32::MAX).wait_events(&mut [], true, Some(Duration::MAX)).unwrap();
    wanted(u32::MAX - 1).wait_events(&mut [], true, Some(Duration::from_secs(1 << 32))).unwrap();
}

#[test]
fn failed_wait_without_errno_is_eio() {
    let kfd = kfd(|_, arg| {
        edit(arg, |args: &mut kfd_ioctl_wait_events_args| args.wait_result = KFD_IOC_WAIT_RESULT_FAIL);
        Ok(0)
    });
    assert_eq!(kfd.wait_events(&mut [], true, None).unwrap_err().errno, Errno::EIO);
}

#[test]
fn errors_say_which_ioctl_where_and_what_to_do() {
    let text = |errno: i32, call: &dyn Fn(&Kfd) -> IoctlError| {
        call(&kfd(move |_, _| Err(crate::errno::from_raw(errno)))).to_string()
    };
    let create = |kfd: &Kfd| kfd.create_queue(&CreateQueue::default()).unwrap_err();
    assert_eq!(
        text(nix::libc::ESRCH, &create),
        "CREATE_QUEUE on /dev/kfd failed with ESRCH: No such process; call ACQUIRE_VM for this GPU first"
    );
    assert_eq!(
        text(ENOTSUPP, &create),
        "CREATE_QUEUE on /dev/kfd failed with ENOTSUPP: Not supported (524); no such queue type"
    );
    assert!(
        text(nix::libc::EPERM, &|kfd| kfd.free_memory(MemoryHandle(1)).unwrap_err())
            .ends_with("as long as the process")
    );
    assert!(text(nix::libc::ENODEV, &|kfd| kfd.get_version().unwrap_err()).contains("the GPU is gone"));
    assert_eq!(
        text(nix::libc::EAGAIN, &|kfd| kfd.get_version().unwrap_err()),
        "GET_VERSION on /dev/kfd failed with EAGAIN: Try again"
    );
}

#[test]
fn partial_unmap_reports_how_far_it_came() {
    let kfd = kfd(|_, arg| {
        edit(arg, |args: &mut kfd_ioctl_unmap_memory_from_gpu_args| args.n_success = 1);
        Err(Errno::EBUSY)
    });
    let error = kfd.unmap_memory(MemoryHandle(7), &[GpuId(1), GpuId(2)]).unwrap_err();
    assert_eq!((error.done, error.wanted, error.source.ioctl), (1, 2, "UNMAP_MEMORY_FROM_GPU"));
}

#[test]
fn created_queue_splits_its_doorbell_offset() {
    let kfd = kfd(|_, arg| {
        edit(arg, |args: &mut kfd_ioctl_create_queue_args| {
            assert_eq!((args.queue_type, args.sdma_engine_id), (KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID, 3));
            args.queue_id = 4;
            args.ring_size = 1024;
            args.doorbell_offset = doorbell_cookie(args.gpu_id) | 0x48;
        });
        Ok(0)
    });
    let wanted = CreateQueue { gpu: GpuId(0xabcd), kind: QueueKind::SdmaEngine(3), ..Default::default() };
    let queue = kfd.create_queue(&wanted).unwrap();
    assert_eq!((queue.id, queue.ring_bytes, queue.doorbell_byte()), (QueueId(4), 1024, 0x48));
    assert_eq!(queue.doorbell_cookie(), doorbell_cookie(0xabcd));
}

#[test]
fn apertures_are_asked_for_by_count() {
    let kfd = kfd(|_, arg| {
        edit(arg, |args: &mut kfd_ioctl_get_process_apertures_new_args| {
            if args.num_of_nodes > 0 {
                assert_eq!(args.num_of_nodes, 2);
                let gpus = [0, 9].map(|gpu_id| kfd_process_device_apertures { gpu_id, ..Default::default() });
                // SAFETY: the wrapper lends an array of two, as asserted above.
                unsafe { store(args.kfd_process_device_apertures_ptr, bytemuck::cast_slice(&gpus)) };
            }
            args.num_of_nodes = 2;
        });
        Ok(0)
    });
    let apertures = kfd.get_process_apertures_new().unwrap();
    assert_eq!((apertures.len(), apertures[1].gpu_id), (2, 9));
}

/// The words behind the head of an SVM call: type and value of each attribute.
fn attributes(bytes: &mut [u8]) -> &mut [[u32; 2]] {
    bytemuck::cast_slice_mut(&mut bytes[size_of::<kfd_ioctl_svm_args>()..])
}

#[test]
fn attributes_of_shared_memory_lie_behind_the_argument_and_are_answered_there() {
    let kfd = kfd(|cmd, bytes| {
        let args: kfd_ioctl_svm_args = bytemuck::pod_read_unaligned(&bytes[..24]);
        assert_eq!((args.start_addr, args.size), (0x7000, 0x2000));
        assert_eq!(cmd, svm_command(args.nattr as usize));
        let found = attributes(bytes);
        if args.op == KFD_IOCTL_SVM_OP_SET_ATTR {
            let wanted = [[2, 9], [4, 8], [0, u32::MAX], [1, 0], [0, 9], [5, 3], [6, 4], [7, 12]];
            assert_eq!(*found, wanted);
            return Ok(0);
        }
        assert_eq!(found.iter().map(|pair| pair[0]).collect::<Vec<_>>(), [0, 1, 5, 6, 7, 2, 2, 2]);
        for (nth, pair) in found.iter_mut().enumerate() {
            *pair = match nth {
                0 => [0, 9],
                1 => [1, 0],
                2..5 => [pair[0], nth as u32],
                // The answer about a GPU is the type.
                _ => [nth as u32 - 3, pair[1]],
            };
        }
        Ok(0)
    });
    let all = [
        SvmAttribute::Access(GpuId(9), SvmUse::Migrating),
        SvmAttribute::Access(GpuId(8), SvmUse::No),
        SvmAttribute::Preferred(SvmPlace::Undefined),
        SvmAttribute::Prefetch(SvmPlace::Host),
        SvmAttribute::Preferred(SvmPlace::Gpu(GpuId(9))),
        SvmAttribute::SetFlags(3),
        SvmAttribute::ClearFlags(4),
        SvmAttribute::Granularity(12),
    ];
    kfd.svm_set(0x7000, 0x2000, &all).unwrap();
    let answer = kfd.svm_get(0x7000, 0x2000, &[GpuId(9), GpuId(8), GpuId(7)]).unwrap();
    let wanted = SvmAnswer {
        preferred: SvmPlace::Gpu(GpuId(9)),
        prefetch: SvmPlace::Host,
        set: 2,
        clear: 3,
        granularity: 4,
        uses: vec![SvmUse::Migrating, SvmUse::InPlace, SvmUse::No],
    };
    assert_eq!(answer, wanted);
    let many = vec![SvmAttribute::SetFlags(0); 2045];
    assert_eq!(kfd.svm_set(0x7000, 0x2000, &many).unwrap_err().errno, Errno::EINVAL);
}

#[test]
fn every_plain_wrapper_uses_its_command() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let kfd = kfd(move |cmd, _| {
        log.lock().push(sys::command_name(cmd));
        Ok(0)
    });
    let gpu = GpuId(1);
    kfd.get_version().unwrap();
    kfd.set_memory_policy(gpu, MemoryPolicy::default()).unwrap();
    kfd.set_trap_handler(gpu, 1, 2).unwrap();
    kfd.set_scratch_backing_va(gpu, 3).unwrap();
    assert!(!kfd.xnack_mode().unwrap());
    kfd.get_clock_counters(gpu).unwrap();
    kfd.runtime_enable(0, true).unwrap();
    kfd.update_queue(&UpdateQueue::default()).unwrap();
    kfd.destroy_queue(QueueId(1)).unwrap();
    kfd.set_cu_mask(QueueId(1), &[u32::MAX]).unwrap();
    kfd.destroy_event(EventId(1)).unwrap();
    kfd.set_event(EventId(1)).unwrap();
    kfd.reset_event(EventId(1)).unwrap();
    kfd.acquire_vm(gpu, kfd.file().as_fd()).unwrap();
    kfd.import_dmabuf(gpu, 0, kfd.file().as_fd()).unwrap();
    kfd.get_dmabuf_info(kfd.file().as_fd()).unwrap();
    // SAFETY: the fake driver writes nothing to the address.
    unsafe { kfd.get_queue_wave_state(QueueId(1), 0x1000).unwrap() };
    let wanted = [
        "GET_VERSION",
        "SET_MEMORY_POLICY",
        "SET_TRAP_HANDLER",
        "SET_SCRATCH_BACKING_VA",
        "SET_XNACK_MODE",
        "GET_CLOCK_COUNTERS",
        "RUNTIME_ENABLE",
        "UPDATE_QUEUE",
        "DESTROY_QUEUE",
        "SET_CU_MASK",
        "DESTROY_EVENT",
        "SET_EVENT",
        "RESET_EVENT",
        "ACQUIRE_VM",
        "IMPORT_DMABUF",
        "GET_DMABUF_INFO",
        "GET_QUEUE_WAVE_STATE",
    ];
    assert_eq!(*seen.lock(), wanted);
}

#[test]
fn version_reads_the_name_as_long_as_the_driver_says() {
    let node = render(|cmd, arg| {
        assert_eq!(cmd, DRM_IOCTL_VERSION);
        edit(arg, |args: &mut drm_version| {
            assert!(args.name_len >= 6 && args.date_len == 0 && args.desc_len == 0);
            // SAFETY: the wrapper lends at least six bytes, as asserted above.
            unsafe { store(args.name, b"amdgpu") };
            (args.name_len, args.version_major, args.version_minor) = (6, 3, 64);
        });
        Ok(0)
    });
    let version = DrmVersion { name: "amdgpu".to_owned(), major: 3, minor: 64, patch: 0 };
    assert_eq!(node.version().unwrap(), version);
}

#[test]
fn import_and_export_carry_descriptors() {
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let number = null.as_raw_fd();
    let mut made = Some(null.try_clone().unwrap());
    let node = render(move |cmd, arg| {
        edit(arg, |args: &mut drm_prime_handle| match cmd {
            DRM_IOCTL_PRIME_FD_TO_HANDLE => {
                assert_eq!(args.fd, number);
                args.handle = 7;
            }
            _ => {
                assert_eq!((cmd, args.handle), (DRM_IOCTL_PRIME_HANDLE_TO_FD, 7));
                assert_eq!(args.flags, (nix::libc::O_CLOEXEC | nix::libc::O_RDWR).cast_unsigned());
                args.fd = made.take().map_or(-1, IntoRawFd::into_raw_fd);
            }
        });
        Ok(0)
    });
    assert_eq!(node.import(null.as_fd()).unwrap(), GemHandle(7));
    node.export(GemHandle(7)).unwrap();
    assert_eq!(
        node.export(GemHandle(7)).unwrap_err().errno,
        Errno::EBADF,
        "a driver that answers without one"
    );
}

#[test]
fn va_operations_say_what_they_do_and_repeat_when_asked_to() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let mut calls = 0;
    let node = render(move |cmd, arg| {
        calls += 1;
        if calls <= 2 {
            return Err([Errno::EAGAIN, Errno::EINTR][calls - 1]);
        }
        let args: drm_amdgpu_gem_va = bytemuck::pod_read_unaligned(arg);
        assert_eq!((cmd, args.pad, args.num_syncobj_handles), (DRM_IOCTL_AMDGPU_GEM_VA, 0, 0));
        assert_eq!((args.va_address, args.map_size), (0x10_0000, 0x2000));
        log.lock().push((args.operation, args.flags, args.handle, args.offset_in_bo));
        Ok(0)
    });
    let range = VaRange { va: 0x10_0000, bytes: 0x2000, handle: GemHandle(3), offset: 0x1000 };
    node.map(&range, VaAccess::READ_WRITE).unwrap();
    node.replace(&range, VaAccess { execute: true, ..VaAccess::default() }).unwrap();
    node.unmap(&range).unwrap();
    node.clear(range.va, range.bytes).unwrap();
    let (read_write, execute) =
        (AMDGPU_VM_PAGE_READABLE | AMDGPU_VM_PAGE_WRITEABLE, AMDGPU_VM_PAGE_EXECUTABLE);
    let wanted = [
        (AMDGPU_VA_OP_MAP, read_write, 3, 0x1000),
        (AMDGPU_VA_OP_REPLACE, execute, 3, 0x1000),
        (AMDGPU_VA_OP_UNMAP, 0, 3, 0x1000),
        (AMDGPU_VA_OP_CLEAR, 0, 0, 0),
    ];
    assert_eq!(*seen.lock(), wanted);
}

#[test]
fn render_node_errors_name_the_command_and_what_to_do() {
    let node = || render(|_, _| Err(Errno::ENOENT));
    let range = VaRange { va: 0, bytes: 0, handle: GemHandle(1), offset: 0 };
    let error = node().unmap(&range).unwrap_err();
    assert_eq!(error.ioctl, "AMDGPU_GEM_VA");
    assert!(error.to_string().ends_with("or no mapping of it starts there"), "{error}");
    assert_eq!(node().mmap_offset(GemHandle(1)).unwrap_err().ioctl, "AMDGPU_GEM_MMAP");
    assert_eq!(node().close(GemHandle(1)).unwrap_err().ioctl, "DRM_GEM_CLOSE");
    assert_eq!(node().capability(DRM_CAP_PRIME).unwrap_err().ioctl, "DRM_GET_CAP");
}

#[test]
fn map_dmabuf_maps_the_descriptor_at_its_offset() {
    let fd = crate::linux::memfd("dmabuf", 8192, nix::fcntl::SealFlag::empty()).unwrap();
    nix::sys::uio::pwrite(&fd, b"second page", 4096).unwrap();
    let page = Mapping::private(4096).unwrap();
    let at = std::ptr::with_exposed_provenance_mut(page.address());
    // SAFETY: the page is this test's, and a mapping as long takes its place.
    unsafe { map_dmabuf(fd.as_fd(), at, 4096, ProtFlags::PROT_READ, 4096) }.unwrap();
    let word = page.word().load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(&word.to_ne_bytes(), b"seco");
}

#[test]
fn interrupted_call_names_the_lent_memory_again_whatever_the_driver_left() {
    let mut seen = Vec::new();
    let kfd = kfd(move |_, arg| {
        edit(arg, |args: &mut kfd_ioctl_get_dmabuf_info_args| {
            seen.push((args.metadata_ptr, args.metadata_size));
            // A driver that names more memory than it was lent, and asks for a repetition.
            (args.metadata_ptr, args.metadata_size) = (8, u32::MAX);
        });
        if seen.len() < 3 {
            return Err(Errno::EINTR);
        }
        assert!(seen[0].0 != 8 && seen.iter().all(|again| *again == seen[0]), "{seen:?}");
        edit(arg, |args: &mut kfd_ioctl_get_dmabuf_info_args| args.metadata_size = 2);
        Ok(0)
    });
    assert_eq!(kfd.get_dmabuf_info(kfd.file().as_fd()).unwrap().metadata, [0, 0]);
}

#[test]
fn call_without_memory_names_none() {
    let kfd = kfd(|_, arg| {
        edit(arg, |args: &mut kfd_ioctl_criu_args| {
            assert_eq!((args.devices, args.bos, args.priv_data), (0, 0, 0));
            assert_eq!((args.num_devices, args.num_bos, args.priv_data_size), (0, 0, 0));
        });
        Ok(0)
    });
    kfd.criu_process_info().unwrap();
    let mut args =
        kfd_ioctl_criu_args { devices: 4096, num_devices: 1, priv_data_size: 5, ..Default::default() };
    kfd.call_with::<kfd_ioctl::CriuOp>(&mut args, &mut []).unwrap();
}

#[test]
fn slices_that_do_not_fit_the_row_are_refused() {
    let kfd = kfd(|_, _| panic!("the driver must not be called"));
    let refused = |outcome: Result<u32, IoctlError>| assert_eq!(outcome.unwrap_err().errno, Errno::EINVAL);
    let mut args = kfd_ioctl_wait_events_args::default();
    refused(kfd.call_with::<kfd_ioctl::WaitEvents>(&mut args, &mut [Slice::Read(&[0; 48])]));
    let mut twice = [Slice::Write(&mut [0; 48]), Slice::Write(&mut [0; 48])];
    refused(kfd.call_with::<kfd_ioctl::WaitEvents>(&mut args, &mut twice));
    let mut args = kfd_ioctl_get_queue_wave_state_args::default();
    refused(kfd.call_with::<kfd_ioctl::GetQueueWaveState>(&mut args, &mut [Slice::Write(&mut [0; 16])]));
    refused(kfd.call_with::<kfd_ioctl::GetQueueWaveState>(&mut args, &mut []));
}

#[test]
fn counts_say_what_the_slices_hold() {
    let kfd = kfd(|cmd, arg| {
        match Ioctl::of(cmd) {
            Some(Ioctl::Kfd(KfdIoctl::SetCuMask)) => {
                edit(arg, |args: &mut kfd_ioctl_set_cu_mask_args| assert_eq!(args.num_cu_mask, 96));
            }
            _ => edit(arg, |args: &mut kfd_ioctl_map_memory_to_gpu_args| assert_eq!(args.n_devices, 2)),
        }
        Ok(0)
    });
    kfd.set_cu_mask(QueueId(1), &[0; 3]).unwrap();
    kfd.map_memory(MemoryHandle(1), &[GpuId(1), GpuId(2)]).unwrap();
}

/// A driver that leaves an open descriptor in each bucket, and then answers.
fn leaves_descriptors(answer: Result<u32, Errno>) -> Kfd {
    kfd(move |_, arg| {
        let args: kfd_ioctl_criu_args = bytemuck::pod_read_unaligned(arg);
        let mut buckets = vec![kfd_criu_bo_bucket::default(); args.num_bos as usize];
        for bucket in &mut buckets {
            let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
            bucket.dmabuf_fd = null.into_raw_fd().cast_unsigned();
        }
        // SAFETY: the wrapper lends as many buckets as it says.
        unsafe { store(args.bos, bytemuck::cast_slice(&buckets)) };
        answer
    })
}

#[test]
fn descriptors_of_buckets_are_taken_unless_the_driver_closed_them() {
    let info = ProcessInfo { bos: 2, ..Default::default() };
    let checkpoint = leaves_descriptors(Ok(0)).criu_checkpoint(&info).unwrap();
    assert_eq!(checkpoint.dmabufs.iter().flatten().count(), 2);
    assert!(
        checkpoint.bos.iter().all(|bo| bo.dmabuf_fd == u32::MAX),
        "numbers of owned descriptors do not stay"
    );
    assert!(crate::linux::closes_on_exec(checkpoint.dmabufs[0].as_ref().unwrap()).unwrap());

    let numbers = |bos: &[kfd_criu_bo_bucket]| bos.iter().map(|bo| bo.dmabuf_fd).collect::<Vec<_>>();
    let mut bos = [kfd_criu_bo_bucket::default(); 2];
    leaves_descriptors(Err(Errno::ENOMEM)).criu_restore(&[], &mut bos, 0, &[]).unwrap_err();
    assert_eq!(numbers(&bos), [u32::MAX; 2], "taken, and closed");
    leaves_descriptors(Err(Errno::EFAULT)).criu_restore(&[], &mut bos, 0, &[]).unwrap_err();
    assert!(
        numbers(&bos).iter().all(|number| *number != u32::MAX),
        "left alone: they may never have been installed"
    );
}
