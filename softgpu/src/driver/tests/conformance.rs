// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conformance tests of KFD's contract as Linux keeps it (`drivers/gpu/drm/amd/amdkfd`), one numbered test for each
//! rule.

use std::time::{Duration, Instant};

use super::events::{read_slot, with_event};
use super::harness::*;
use super::queues::{BASE, update, wave_state};
use kfd::sys::*;
use nix::errno::Errno;

use crate::driver::{Caller, KernelModel};

/// The answer of CREATE_QUEUE to arguments that are valid but for this change.
fn refused(change: impl FnOnce(&mut kfd_ioctl_create_queue_args)) -> Errno {
    let client = Client::ready();
    let mut args = client.queue_parts(0, BASE).args;
    change(&mut args);
    client.create(&mut args).unwrap_err()
}

#[test]
fn v01_unknown_number_is_enotty() {
    let client = Client::new("gfx1100");
    for cmd in [0xc008_4b40, 0xc008_4b00, 0x0000_4b29, 0xc008_4bff] {
        assert_eq!(client.call(cmd, &mut [0u8; 64]), Err(Errno::ENOTTY), "{cmd:#x}");
    }
    // The driver ignores type and direction of the user's command.
    let mut version = kfd_ioctl_get_version_args::default();
    assert_eq!(client.call(0x0008_0001, &mut version), Ok(0));
    assert_eq!((version.major_version, version.minor_version), (1, 23));
}

#[test]
fn v01_numbers_of_each_kernel_have_no_hole_and_an_end() {
    for (kernel, end) in [(KernelModel::V6_12, 0x27), (KernelModel::V7_3, 0x29), (KernelModel::Fixed, 0x29)] {
        let client = Client::fresh_pair(kernel);
        for nr in 0..=0xff_u32 {
            // The argument, full of ones, names no GPU, no queue and no memory.
            let answer = client.call(0xc000_4b00 | 64 << 16 | nr, &mut [0xffu8; 64]);
            let is_command = (1..end).contains(&nr);
            assert_eq!(answer != Err(Errno::ENOTTY), is_command, "{kernel} {nr:#x}: {answer:?}");
        }
    }
}

#[test]
fn v02_other_process_is_ebadf() {
    let client = Client::new("gfx1100");
    let caller = Caller { same_process: false, checkpoint_restore: false };
    let memory = Memory::of(caller);
    let mut version = kfd_ioctl_get_version_args::default();
    let call =
        |cmd, args: &mut kfd_ioctl_get_version_args| client.call_with(cmd, args, &memory, &Fds::default());
    assert_eq!(call(AMDKFD_IOC_GET_VERSION, &mut version), Err(Errno::EBADF));
    assert_eq!(version, kfd_ioctl_get_version_args::default());
    assert_eq!(call(0xc008_4b40, &mut version), Err(Errno::ENOTTY), "the number comes first");
}

#[test]
fn v03_create_with_priority_16_percentage_101_or_ring_3000_is_einval() {
    assert_eq!(refused(|args| args.queue_priority = 16), Errno::EINVAL);
    assert_eq!(refused(|args| args.queue_percentage = 101), Errno::EINVAL);
    assert_eq!(refused(|args| args.ring_size = 3000), Errno::EINVAL);
}

#[test]
fn v04_create_of_type_9_is_524() {
    assert_eq!(refused(|args| args.queue_type = 9), NOTSUPP);
    assert_eq!(kfd::errno::to_raw(NOTSUPP), 524);
}

#[test]
fn v05_before_acquire_vm_create_is_esrch_and_alloc_enodev() {
    let client = Client::new("gfx1100");
    let mut args = kfd_ioctl_create_queue_args { gpu_id: client.id(0), ..Default::default() };
    assert_eq!(client.create(&mut args), Err(Errno::ESRCH));
    assert_eq!(client.alloc(0, BASE, 4096, GTT), Err(Errno::ENODEV));
}

#[test]
fn v06_read_pointer_in_a_larger_mapping_is_einval() {
    let client = Client::ready();
    let mut args = client.queue_parts(0, BASE).args;
    client.buffer(0, BASE + 0x3_0000, 8192, GTT);
    args.read_pointer_address = BASE + 0x3_0000;
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL));
}

#[test]
fn v07_control_stack_must_be_the_nodes_and_the_save_area_at_least() {
    assert_eq!(refused(|args| args.ctl_stack_size += 4096), Errno::EINVAL);
    let client = Client::ready();
    let mut args = client.queue_parts(0, BASE).args;
    let larger = BASE + 0x2000_0000;
    client.buffer(0, larger, client.gpus[0].geometry().total_bytes + 4096, VRAM);
    args.ctx_save_restore_address = larger;
    args.ctx_save_restore_size += 4096;
    assert_eq!(client.create(&mut args), Ok(0));
}

#[test]
fn v08_save_area_without_the_debuggers_tail_is_einval() {
    let client = Client::ready();
    let mut args = client.queue_parts(0, BASE).args;
    args.ctx_save_restore_address = BASE + 0x1000_0000;
    client.buffer(0, args.ctx_save_restore_address, u64::from(args.ctx_save_restore_size), VRAM);
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL));
}

#[test]
fn v09_live_queue_holds_its_buffers() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let id = client.create(&mut parts.args).unwrap();
    let all = [parts.pointers, parts.ring, parts.eop, parts.cwsr];
    for handle in all {
        assert_eq!(client.unmap(handle, 0), Err(Errno::EBUSY));
        assert_eq!(client.free(handle), Err(Errno::EBUSY));
    }
    client.destroy(id).unwrap();
    for handle in all {
        client.unmap(handle, 0).unwrap();
        client.free(handle).unwrap();
    }
}

#[test]
fn v10_mapped_buffer_cannot_be_freed_and_stays_usable() {
    let client = Client::ready();
    let handle = client.buffer(0, BASE, 4096, GTT);
    assert_eq!(client.free(handle), Err(Errno::EBUSY));
    client.unmap(handle, 0).unwrap();
    client.map(handle, 0).unwrap();
    client.unmap(handle, 0).unwrap();
    client.free(handle).unwrap();
}

#[test]
fn v11_map_of_an_unknown_index_is_enomem() {
    let client = Client::pair();
    let handle = client.alloc(0, BASE, 4096, GTT).unwrap();
    assert_eq!(client.map(handle + 1, 0), Err(Errno::ENOMEM));
    assert_eq!(client.map(handle ^ 1 << 32, 0), Err(Errno::EINVAL), "the GPU half");
}

#[test]
fn v12_map_stops_at_a_bad_gpu_and_says_how_far_it_came() {
    let client = Client::pair();
    let handle = client.alloc(0, BASE, 4096, GTT).unwrap();
    let (good, bad) = (client.id(0), 1);
    assert_eq!(client.map_list(handle, &[good, bad, client.id(1)], 0), (Err(Errno::EINVAL), 1));
    // The client repeats the call with a corrected list. What is mapped already counts as done.
    assert_eq!(client.map_list(handle, &[good, client.id(1)], 1), (Ok(0), 2));
    assert_eq!(client.map_list(handle, &[good, client.id(1)], 0), (Ok(0), 2));
    assert_eq!(client.map_list(handle, &[good], 1), (Ok(0), 1));
}

#[test]
fn v13_unmap_of_what_is_not_mapped_is_einval() {
    let client = Client::pair();
    let handle = client.alloc(0, BASE, 4096, GTT).unwrap();
    assert_eq!(client.unmap(handle, 0), Err(Errno::EINVAL));
    client.map(handle, 0).unwrap();
    assert_eq!(client.unmap(handle, 1), Err(Errno::EINVAL));
    assert_eq!(client.unmap(handle + 1, 0), Err(Errno::ENOMEM));
    client.unmap(handle, 0).unwrap();
    assert_eq!(client.unmap(handle, 0), Err(Errno::EINVAL));
}

#[test]
fn v14_event_page_is_never_freed() {
    let client = Client::ready();
    let page = client.event_page();
    client.create_event(KFD_IOC_EVENT_SIGNAL, false, page).unwrap();
    assert_eq!(client.free(page), Err(Errno::EPERM));
    client.unmap(page, 0).unwrap();
    assert_eq!(client.free(page), Err(Errno::EPERM));
}

#[test]
fn v15_event_page_is_set_once() {
    let client = Client::ready();
    let page = client.event_page();
    assert_eq!(client.create_event(KFD_IOC_EVENT_SIGNAL, false, page), Ok(1), "id 0 is never given out");
    assert_eq!(client.create_event(KFD_IOC_EVENT_SIGNAL, false, page), Err(Errno::EINVAL));
    assert_eq!(client.create_event(KFD_IOC_EVENT_SIGNAL, false, 0), Ok(2));
    assert_eq!(read_slot(&client, 4095), u64::MAX);
}

#[test]
fn v16_poll_of_an_unsignaled_event_times_out_successfully() {
    let (client, event) = with_event();
    client.wait(&[(event, 0)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_TIMEOUT);
    let start = Instant::now();
    client.wait(&[(event, 0)], false, 30).is(Ok(0), KFD_IOC_WAIT_RESULT_TIMEOUT);
    assert!(start.elapsed() >= Duration::from_millis(30));
}

#[test]
fn v17_age_mismatch_completes_at_once_and_brings_the_age() {
    let (client, event) = with_event();
    client.wait(&[(event, 1)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_TIMEOUT);
    let waited = client.wait(&[(event, 7)], false, 0);
    waited.is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    assert_eq!(waited.data[0].last_event_age(), 1);
    client.set(event).unwrap();
    client.reset(event).unwrap();
    let waited = client.wait(&[(event, 1)], false, 0);
    waited.is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    assert_eq!(waited.data[0].last_event_age(), 2);
    client.wait(&[(event, 2)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_TIMEOUT);
    // Age 0 asks for no comparison, and the driver writes none.
    client.set(event).unwrap();
    assert_eq!(client.wait(&[(event, 0)], false, 0).data[0].last_event_age(), 0);
}

#[test]
fn v18_set_and_reset_are_for_signal_events() {
    let (client, event) = with_event();
    let memory = client.create_event(KFD_IOC_EVENT_MEMORY, false, 0).unwrap();
    let debug = client.create_event(KFD_IOC_EVENT_DEBUG_EVENT, false, 0).unwrap();
    for id in [memory, debug, 0, 999, u32::MAX] {
        assert_eq!(client.set(id), Err(Errno::EINVAL), "{id}");
        assert_eq!(client.reset(id), Err(Errno::EINVAL), "{id}");
    }
    assert_eq!(client.destroy_event(999), Err(Errno::EINVAL));
    client.set(event).unwrap();
    client.wait(&[(event, 0)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    client.wait(&[(event, 0)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    client.reset(event).unwrap();
    client.wait(&[(event, 0)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_TIMEOUT);
}

#[test]
fn v19_acquire_vm_binds_one_file_for_good() {
    let client = Client::new("gfx1100*2");
    let (file, token) = client.render(0);
    let (_, second) = client.render(0);
    let (_, of_peer) = client.render(1);
    let (_, kfd) = client.process.open("/dev/kfd").unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(client.acquire_with(0, &null), Err(Errno::EINVAL));
    assert_eq!(client.acquire_with(0, &kfd), Err(Errno::EINVAL));
    assert_eq!(client.acquire_with(0, &of_peer), Err(Errno::EINVAL));
    let mut no_fd = kfd_ioctl_acquire_vm_args { drm_fd: 3, gpu_id: client.id(0) };
    assert_eq!(client.call(AMDKFD_IOC_ACQUIRE_VM, &mut no_fd), Err(Errno::EINVAL));
    assert_eq!(client.acquire_with(0, &token), Ok(0));
    assert_eq!(client.acquire_with(0, crate::driver::memfd::duplicate(&token).unwrap()), Ok(0));
    assert_eq!(client.acquire_with(0, &second), Err(Errno::EBUSY));
    assert_eq!(client.acquire_with(0, &null), Err(Errno::EBUSY));
    assert_eq!(client.process.adopt("/dev/dri/renderD128", std::os::fd::AsFd::as_fd(&token)), Ok(file));
    let adopt = |path, fd: &std::os::fd::OwnedFd| client.process.adopt(path, std::os::fd::AsFd::as_fd(fd));
    assert_eq!(adopt("/dev/kfd", &token), Err(Errno::EINVAL));
    assert_eq!(adopt("/dev/kfd", &null.into()), Err(Errno::EBADF));
}

#[test]
fn v20_doorbells_are_8192_bytes_and_the_register_page_4096() {
    let client = Client::new("gfx1100");
    let gpu = u64::from(client.id(0)) << 46;
    let mmap = |length, offset| client.process.mmap(&client.kfd, length, offset);
    let doorbells = mmap(8192, 3 << 62 | gpu).unwrap();
    assert!(doorbells.parked.is_some());
    assert_eq!(mmap(4096, 3 << 62 | gpu).unwrap_err(), Errno::EINVAL);
    assert_eq!(mmap(8192, 3 << 62).unwrap_err(), Errno::ENODEV);
    // The driver decodes only the type and the GPU.
    assert!(mmap(8192, 3 << 62 | gpu | 0x808).is_ok());
    assert!(mmap(4096, gpu).unwrap().parked.is_none());
    assert_eq!(mmap(8192, gpu).unwrap_err(), Errno::EINVAL);
    assert_eq!(mmap(4096, 0).unwrap_err(), Errno::ENODEV);
    assert_eq!(mmap(4096, 1 << 62 | gpu).unwrap_err(), Errno::EINVAL);
    assert_eq!(mmap(0, gpu).unwrap_err(), Errno::EINVAL);
    assert_eq!(mmap(u64::MAX, gpu).unwrap_err(), Errno::EINVAL);
}

#[test]
fn v21_criu_needs_a_capability() {
    let client = Client::new("gfx1100");
    let call = |same_process, checkpoint_restore, op| {
        let memory = Memory::of(Caller { same_process, checkpoint_restore });
        let mut args = kfd_ioctl_criu_args { op, ..Default::default() };
        client.call_with(AMDKFD_IOC_CRIU_OP, &mut args, &memory, &Fds::default())
    };
    for op in 0..6 {
        assert_eq!(call(true, false, op), Err(Errno::EACCES));
        assert_eq!(call(false, false, op), Err(Errno::EBADF));
    }
    assert_eq!(call(true, true, KFD_CRIU_OP_PROCESS_INFO), Ok(0));
    assert_eq!(call(false, true, KFD_CRIU_OP_UNPAUSE), Ok(0), "a tracer, on the tracee's descriptor");
}

#[test]
fn v22_wave_state_of_an_active_queue_is_einval() {
    let client = Client::ready();
    let id = client.create(&mut client.queue_parts(0, BASE).args).unwrap();
    assert_eq!(wave_state(&client, id, BASE + 0x10_0000).0, Err(Errno::EINVAL));
}

#[test]
fn v23_runtime_is_enabled_before_any_queue() {
    let client = Client::ready();
    let call = |mode_mask| {
        let mut args = kfd_ioctl_runtime_enable_args { r_debug: 5, mode_mask, capabilities_mask: 0 };
        client.call(AMDKFD_IOC_RUNTIME_ENABLE, &mut args)
    };
    assert_eq!(call(3), Ok(0));
    assert!(client.process.runtime().enabled && client.process.runtime().ttmp_setup);
    assert_eq!(call(1), Err(Errno::EBUSY));
    assert_eq!(call(0), Ok(0));
    assert_eq!(call(0), Ok(0));
    let mut parts = client.queue_parts(0, 0x1_0000_0000);
    client.create(&mut parts.args).unwrap();
    assert_eq!(call(1), Err(Errno::EEXIST));
    client.destroy(0).unwrap();
    assert_eq!(call(1), Ok(0));
}

#[test]
fn v24_apertures_of_1000_nodes_are_einval() {
    let client = Client::new("gfx1100*2");
    let mut args = kfd_ioctl_get_process_apertures_new_args {
        kfd_process_device_apertures_ptr: ARRAY,
        num_of_nodes: 1000,
        pad: 0,
    };
    let memory = Memory::with(ARRAY, &[0; 112]);
    let answer = client.call_with(AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, &mut args, &memory, &Fds::default());
    assert_eq!(answer, Err(Errno::EINVAL));
}

#[test]
fn v25_ranges_of_shared_virtual_memory_cannot_be_in_the_way() {
    // The default kernel is built without HSA_AMD_SVM, as the topology's capability word says. No range can be
    // registered, so that no allocation can get EADDRINUSE.
    let client = Client::ready();
    let mut svm =
        kfd_ioctl_svm_args { start_addr: BASE, size: 4096, op: KFD_IOCTL_SVM_OP_SET_ATTR, nattr: 0 };
    assert_eq!(client.call(AMDKFD_IOC_SVM, &mut svm), Err(Errno::EPERM));
    svm.nattr = 1;
    assert_eq!(client.call(AMDKFD_IOC_SVM, &mut svm), Err(Errno::EINVAL), "the size counts the attributes");
    client.alloc(0, BASE, 4096, GTT).unwrap();
}

#[test]
fn v26_doorbells_are_allocated_by_the_slice() {
    let client = Client::ready();
    assert_eq!(client.alloc(0, BASE, 4096, KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL), Err(Errno::EINVAL));
    assert!(client.alloc(0, BASE, 8192, KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL).is_ok());
}

#[test]
fn v27_cu_mask_wants_whole_words_and_whole_pairs() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let id = client.create(&mut parts.args).unwrap();
    let set = |queue_id, bits, words: &[u32]| {
        let memory = Memory::with(ARRAY, bytemuck::cast_slice(words));
        let mut args = kfd_ioctl_set_cu_mask_args { queue_id, num_cu_mask: bits, cu_mask_ptr: ARRAY };
        client.call_with(AMDKFD_IOC_SET_CU_MASK, &mut args, &memory, &Fds::default())
    };
    assert_eq!(set(id, 33, &[3, 3]), Err(Errno::EINVAL));
    assert_eq!(set(id, 0, &[]), Err(Errno::EINVAL));
    assert_eq!(set(id, 32, &[0b01]), Err(Errno::EINVAL));
    assert_eq!(set(id, 64, &[3, 0x8000_0000]), Err(Errno::EINVAL));
    assert_eq!(set(id, 64, &[3]), Err(Errno::EFAULT));
    assert_eq!(set(id + 1, 32, &[1]), Err(Errno::EFAULT), "the queue is looked up before the pairs");
    assert_eq!(set(id, 64, &[3, 0xc000_0000]), Ok(0));
    // Pair 0 is the first of engine 0, pair 31 the fourth of shader array 1 of engine 1.
    assert_eq!(client.process.cu_mask(id), Some([3, 0b11 << 20, 0, 0, 0, 0, 0, 0]));
    assert_eq!(set(id, 2048, &[0xffff_ffff; 32]), Ok(0), "more than 1024 bits are not read");
}

#[test]
fn v28_sdma_engine_beyond_the_last_is_einval() {
    let engine = |id| {
        move |args: &mut kfd_ioctl_create_queue_args| {
            (args.queue_type, args.sdma_engine_id) = (KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID, id)
        }
    };
    assert_eq!(refused(engine(2)), Errno::EINVAL);
    assert_eq!(refused(engine(u32::MAX)), Errno::EINVAL);
    let client = Client::ready();
    let mut args = client.queue_parts(0, BASE).args;
    engine(1)(&mut args);
    assert_eq!(client.create(&mut args), Ok(0));
}

#[test]
fn v29_update_to_a_ring_that_is_not_mapped_is_efault() {
    let client = Client::ready();
    let id = client.create(&mut client.queue_parts(0, BASE).args).unwrap();
    assert_eq!(update(&client, id, 0x55_0000, 0x4000, 100), Err(Errno::EFAULT));
}

#[test]
fn v30_unknown_queue_is_einval_to_destroy_and_efault_to_update() {
    let client = Client::ready();
    let id = client.create(&mut client.queue_parts(0, BASE).args).unwrap();
    assert_eq!(client.destroy(id + 1), Err(Errno::EINVAL));
    assert_eq!(update(&client, id + 1, BASE + 0x1_0000, 0x4000, 100), Err(Errno::EFAULT));
    client.destroy(id).unwrap();
    assert_eq!(client.destroy(id), Err(Errno::EINVAL));
}
