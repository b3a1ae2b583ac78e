// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dispatcher, files, and ioctls about the process or a GPU as a whole.

use super::harness::*;
use kfd::sys::*;
use rustix::io::Errno;

use crate::driver::{Caller, MemoryPolicy};

#[test]
fn unknown_numbers_are_enotty_whatever_their_type() {
    // 1.
    let client = Client::new("gfx1100");
    for cmd in [0xc008_4b40, 0xc008_4b00, 0x0000_4b27, 0xc010_4b28, 0xc008_4bff] {
        assert_eq!(client.call(cmd, &mut [0u8; 64]), Err(Errno::NOTTY), "{cmd:#x}");
    }
    // Type and direction of the user's command are not looked at.
    let mut version = kfd_ioctl_get_version_args::default();
    assert_eq!(client.call(0x0008_0001, &mut version), Ok(0));
    assert_eq!((version.major_version, version.minor_version), (1, 17));
}

#[test]
fn other_processes_get_ebadf() {
    // 2.
    let client = Client::new("gfx1100");
    let caller = Caller { same_process: false, checkpoint_restore: false };
    let memory = Memory::of(caller);
    let mut version = kfd_ioctl_get_version_args::default();
    let call =
        |cmd, args: &mut kfd_ioctl_get_version_args| client.call_with(cmd, args, &memory, &Fds::default());
    assert_eq!(call(AMDKFD_IOC_GET_VERSION, &mut version), Err(Errno::BADF));
    assert_eq!(version, kfd_ioctl_get_version_args::default());
    assert_eq!(call(0xc008_4b40, &mut version), Err(Errno::NOTTY), "the number comes first");
}

#[test]
fn larger_and_smaller_structs_work() {
    let client = Client::new("gfx1100");
    let (memory, fds) = (Memory::default(), Fds::default());
    let mut large = [0xffu8; 32];
    client.process.ioctl(&client.kfd, 0x8020_4b01, &mut large, &memory, &fds).unwrap();
    assert_eq!(large[..8], [1, 0, 0, 0, 17, 0, 0, 0]);
    assert_eq!(large[8..], [0; 24], "an out-only struct is cleared as a whole");
    let mut small = [0xffu8; 4];
    client.process.ioctl(&client.kfd, 0x8004_4b01, &mut small, &memory, &fds).unwrap();
    assert_eq!(small, [1, 0, 0, 0]);
    assert_eq!(client.process.ioctl(&client.kfd, 0xc028_4b05, &mut small, &memory, &fds), Err(Errno::FAULT));
}

#[test]
fn acquire_vm_binds_one_file_for_good() {
    // 19.
    let client = Client::new("gfx1100*2");
    let (file, token) = client.render(0);
    let (_, second) = client.render(0);
    let (_, of_peer) = client.render(1);
    let (_, kfd) = client.process.open("/dev/kfd").unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(client.acquire_with(0, &null), Err(Errno::INVAL));
    assert_eq!(client.acquire_with(0, &kfd), Err(Errno::INVAL));
    assert_eq!(client.acquire_with(0, &of_peer), Err(Errno::INVAL));
    let mut no_fd = kfd_ioctl_acquire_vm_args { drm_fd: 3, gpu_id: client.id(0) };
    assert_eq!(client.call(AMDKFD_IOC_ACQUIRE_VM, &mut no_fd), Err(Errno::INVAL));
    assert_eq!(client.acquire_with(0, &token), Ok(0));
    assert_eq!(client.acquire_with(0, crate::driver::memfd::duplicate(&token).unwrap()), Ok(0));
    assert_eq!(client.acquire_with(0, &second), Err(Errno::BUSY));
    assert_eq!(client.acquire_with(0, &null), Err(Errno::BUSY));
    assert_eq!(client.process.adopt("/dev/dri/renderD128", std::os::fd::AsFd::as_fd(&token)), Ok(file));
    let adopt = |path, fd: &std::os::fd::OwnedFd| client.process.adopt(path, std::os::fd::AsFd::as_fd(fd));
    assert_eq!(adopt("/dev/kfd", &token), Err(Errno::INVAL));
    assert_eq!(adopt("/dev/kfd", &null.into()), Err(Errno::BADF));
}

#[test]
fn apertures_are_counted_filled_and_limited() {
    // 24.
    let client = Client::new("gfx1100*2");
    let call = |count, room: usize| {
        let memory = Memory::with(ARRAY, &vec![0; room * 56]);
        let mut args = kfd_ioctl_get_process_apertures_new_args {
            kfd_process_device_apertures_ptr: ARRAY,
            num_of_nodes: count,
            pad: 0,
        };
        let answer =
            client.call_with(AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, &mut args, &memory, &Fds::default());
        (answer, args.num_of_nodes, memory.bytes(ARRAY))
    };
    assert_eq!(call(0, 0).1, 2);
    assert_eq!(call(1000, 2).0, Err(Errno::INVAL));
    assert_eq!(call(4, 2).0, Err(Errno::INVAL));
    let (answer, count, bytes) = call(3, 3);
    assert_eq!((answer, count), (Ok(0), 2), "CPU node included in the limit, not in the answer");
    let entries: Vec<kfd_process_device_apertures> =
        bytes.chunks_exact(56).map(bytemuck::pod_read_unaligned).collect();
    assert_eq!(entries[1].gpu_id, client.id(1));
    assert_eq!((entries[0].lds_base, entries[0].lds_limit), (1 << 48, 1 << 48 | 0xffff_ffff));
    assert_eq!((entries[0].gpuvm_base, entries[0].gpuvm_limit), (0x1_0000, 0x7fff_ffff_ffff));
    assert_eq!(call(2, 1).0, Err(Errno::FAULT));
    let mut legacy = kfd_ioctl_get_process_apertures_args::default();
    client.call(AMDKFD_IOC_GET_PROCESS_APERTURES, &mut legacy).unwrap();
    assert_eq!(legacy.num_of_nodes, 2);
    assert_eq!(legacy.process_apertures[1], entries[1]);
}

#[test]
fn clock_of_an_unknown_gpu_is_zero() {
    let client = Client::new("gfx1100");
    let mut args = kfd_ioctl_get_clock_counters_args { gpu_id: client.id(0), ..Default::default() };
    client.call(AMDKFD_IOC_GET_CLOCK_COUNTERS, &mut args).unwrap();
    assert_eq!((args.gpu_clock_counter, args.system_clock_freq), (42, 1_000_000_000));
    assert!(args.cpu_clock_counter > 0 && args.system_clock_counter > 0);
    args.gpu_id = 0;
    client.call(AMDKFD_IOC_GET_CLOCK_COUNTERS, &mut args).unwrap();
    assert_eq!(args.gpu_clock_counter, 0);
}

#[test]
fn policies_and_handlers_want_an_address_space() {
    let client = Client::new("gfx1100");
    let mut policy =
        kfd_ioctl_set_memory_policy_args { gpu_id: client.id(0), alternate_policy: 1, ..Default::default() };
    let mut trap = kfd_ioctl_set_trap_handler_args { tba_addr: 1, tma_addr: 2, gpu_id: client.id(0), pad: 0 };
    let mut scratch = kfd_ioctl_set_scratch_backing_va_args { va_addr: 3, gpu_id: client.id(0), pad: 0 };
    assert_eq!(client.call(AMDKFD_IOC_SET_MEMORY_POLICY, &mut policy), Err(Errno::SRCH));
    assert_eq!(client.call(AMDKFD_IOC_SET_TRAP_HANDLER, &mut trap), Err(Errno::SRCH));
    assert_eq!(client.call(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, &mut scratch), Err(Errno::NODEV));
    client.acquire(0);
    assert_eq!(client.call(AMDKFD_IOC_SET_MEMORY_POLICY, &mut policy), Ok(0));
    assert_eq!(client.call(AMDKFD_IOC_SET_TRAP_HANDLER, &mut trap), Ok(0));
    assert_eq!(client.call(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, &mut scratch), Ok(0));
    let settings = client.process.gpu_settings(0).unwrap();
    assert_eq!(settings.memory_policy, MemoryPolicy { alternate: 1, ..MemoryPolicy::default() });
    assert_eq!((settings.trap_handler, settings.scratch_va), ((1, 2), 3));
    policy.default_policy = 2;
    assert_eq!(client.call(AMDKFD_IOC_SET_MEMORY_POLICY, &mut policy), Err(Errno::INVAL));
    (trap.gpu_id, scratch.gpu_id) = (0, 0);
    assert_eq!(client.call(AMDKFD_IOC_SET_TRAP_HANDLER, &mut trap), Err(Errno::INVAL));
    assert_eq!(client.call(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, &mut scratch), Err(Errno::INVAL));
}

#[test]
fn tile_config_clips_its_tables() {
    let client = Client::new("gfx1100");
    let memory = Memory::with(ARRAY, &[0xff; 4096]);
    let mut args = kfd_ioctl_get_tile_config_args {
        tile_config_ptr: ARRAY,
        macro_tile_config_ptr: ARRAY + 2048,
        num_tile_configs: 100,
        num_macro_tile_configs: 3,
        gpu_id: client.id(0),
        ..Default::default()
    };
    client.call_with(AMDKFD_IOC_GET_TILE_CONFIG, &mut args, &memory, &Fds::default()).unwrap();
    assert_eq!((args.num_tile_configs, args.num_macro_tile_configs), (32, 3));
    assert_eq!(memory.bytes(ARRAY)[127..129], [0, 0xff]);
    assert_eq!(client.call(AMDKFD_IOC_GET_TILE_CONFIG, &mut args), Err(Errno::FAULT));
    assert_eq!(args.num_tile_configs, 0);
    args.gpu_id = 0;
    assert_eq!(client.call(AMDKFD_IOC_GET_TILE_CONFIG, &mut args), Err(Errno::INVAL));
}

#[test]
fn runtime_is_enabled_before_any_queue() {
    // 23.
    let client = Client::ready();
    let call = |mode_mask| {
        let mut args = kfd_ioctl_runtime_enable_args { r_debug: 5, mode_mask, capabilities_mask: 0 };
        client.call(AMDKFD_IOC_RUNTIME_ENABLE, &mut args)
    };
    assert_eq!(call(3), Ok(0));
    assert!(client.process.runtime().enabled && client.process.runtime().ttmp_setup);
    assert_eq!(call(1), Err(Errno::BUSY));
    assert_eq!(call(0), Ok(0));
    assert_eq!(call(0), Ok(0));
    let mut parts = client.queue_parts(0, 0x1_0000_0000);
    client.create(&mut parts.args).unwrap();
    assert_eq!(call(1), Err(Errno::EXIST));
    client.destroy(0).unwrap();
    assert_eq!(call(1), Ok(0));
}

#[test]
fn xnack_is_off_and_stays_off() {
    let client = Client::ready();
    let call = |mode| {
        let mut args = kfd_ioctl_set_xnack_mode_args { xnack_enabled: mode };
        client.call(AMDKFD_IOC_SET_XNACK_MODE, &mut args).map(|_| args.xnack_enabled)
    };
    assert_eq!((call(-1), call(0), call(1)), (Ok(0), Ok(0), Err(Errno::PERM)));
    let mut parts = client.queue_parts(0, 0x1_0000_0000);
    client.create(&mut parts.args).unwrap();
    assert_eq!((call(-1), call(0), call(1)), (Ok(0), Err(Errno::BUSY), Err(Errno::BUSY)));
}

#[test]
fn criu_needs_the_capability_and_says_what_it_cannot() {
    // 21.
    let client = Client::new("gfx1100");
    let call = |caller, op| {
        let memory = Memory::of(caller);
        let mut args = kfd_ioctl_criu_args { op, ..Default::default() };
        client.call_with(AMDKFD_IOC_CRIU_OP, &mut args, &memory, &Fds::default())
    };
    let caller = |same_process, checkpoint_restore| Caller { same_process, checkpoint_restore };
    assert_eq!(call(caller(true, false), 0), Err(Errno::ACCESS));
    assert_eq!(call(caller(false, false), 0), Err(Errno::BADF));
    for by in [caller(true, true), caller(false, true)] {
        assert_eq!(call(by, KFD_CRIU_OP_PROCESS_INFO), Err(Errno::OPNOTSUPP));
        assert_eq!(call(by, KFD_CRIU_OP_CHECKPOINT), Err(Errno::INVAL));
        assert_eq!(call(by, KFD_CRIU_OP_UNPAUSE), Err(Errno::INVAL));
        assert_eq!(call(by, 5), Err(Errno::INVAL));
    }
}

#[test]
fn what_is_not_there_answers_as_a_kernel_without_it() {
    let client = Client::new("gfx1100");
    assert_eq!(client.call(AMDKFD_IOC_DBG_REGISTER, &mut [0u32; 2]), Err(Errno::PERM));
    assert_eq!(client.call(AMDKFD_IOC_DBG_UNREGISTER, &mut [0u32; 2]), Err(Errno::PERM));
    assert_eq!(client.call(AMDKFD_IOC_DBG_ADDRESS_WATCH, &mut [0u32; 4]), Err(Errno::PERM));
    assert_eq!(client.call(AMDKFD_IOC_DBG_WAVE_CONTROL, &mut [0u32; 4]), Err(Errno::PERM));
    assert_eq!(client.call(AMDKFD_IOC_DBG_TRAP, &mut kfd_ioctl_dbg_trap_args::default()), Err(Errno::INVAL));
    let mut svm = kfd_ioctl_svm_args { start_addr: 4096, size: 4096, op: 0, nattr: 0 };
    assert_eq!(client.call(AMDKFD_IOC_SVM, &mut svm), Err(Errno::PERM));
    svm.nattr = 1;
    assert_eq!(client.call(AMDKFD_IOC_SVM, &mut svm), Err(Errno::INVAL));
    let mut smi = kfd_ioctl_smi_events_args { gpuid: client.id(0), anon_fd: 0 };
    assert_eq!(client.call(AMDKFD_IOC_SMI_EVENTS, &mut smi), Err(Errno::NOMEM));
    smi.gpuid = 0;
    assert_eq!(client.call(AMDKFD_IOC_SMI_EVENTS, &mut smi), Err(Errno::INVAL));
}

#[test]
fn kfd_mmap_cookies() {
    // 20.
    let client = Client::new("gfx1100");
    let gpu = u64::from(client.id(0)) << 46;
    let mmap = |length, offset| client.process.mmap(&client.kfd, length, offset);
    let doorbells = mmap(8192, 3 << 62 | gpu).unwrap();
    assert!(doorbells.parked.is_some());
    assert_eq!(mmap(4096, 3 << 62 | gpu).unwrap_err(), Errno::INVAL);
    assert_eq!(mmap(8192, 3 << 62).unwrap_err(), Errno::NODEV);
    // Only type and GPU are decoded.
    assert!(mmap(8192, 3 << 62 | gpu | 0x808).is_ok());
    assert!(mmap(4096, gpu).unwrap().parked.is_none());
    assert_eq!(mmap(8192, gpu).unwrap_err(), Errno::INVAL);
    assert_eq!(mmap(4096, 0).unwrap_err(), Errno::NODEV);
    assert_eq!(mmap(4096, 1 << 62 | gpu).unwrap_err(), Errno::INVAL);
    assert_eq!(mmap(0, gpu).unwrap_err(), Errno::INVAL);
    assert_eq!(mmap(u64::MAX, gpu).unwrap_err(), Errno::INVAL);
}

#[test]
fn render_nodes_know_no_kfd_ioctl() {
    let client = Client::new("gfx1100");
    let (render, _) = client.render(0);
    let ioctl = |cmd| client.process.ioctl(&render, cmd, &mut [0; 64], &Memory::default(), &Fds::default());
    assert_eq!(ioctl(AMDKFD_IOC_GET_VERSION), Err(Errno::NOTTY));
    assert_eq!(ioctl(0xc040_64ff), Err(Errno::INVAL));
}
