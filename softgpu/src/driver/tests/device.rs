// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dispatcher, files, and ioctls about the process or a GPU as a whole.

use super::harness::*;
use kfd::sys::*;
use nix::errno::Errno;

use crate::driver::{KernelModel, MemoryPolicy};

#[test]
fn larger_and_smaller_structs_work() {
    let client = Client::new("gfx1100");
    let (memory, fds) = (Memory::default(), Fds::default());
    let mut large = [0xffu8; 32];
    client.process.ioctl(&client.kfd, 0x8020_4b01, &mut large, &memory, &fds).unwrap();
    assert_eq!(large[..8], [1, 0, 0, 0, 23, 0, 0, 0]);
    assert_eq!(large[8..], [0; 24], "an out-only struct is cleared as a whole");
    let mut small = [0xffu8; 4];
    client.process.ioctl(&client.kfd, 0x8004_4b01, &mut small, &memory, &fds).unwrap();
    assert_eq!(small, [1, 0, 0, 0]);
    assert_eq!(client.process.ioctl(&client.kfd, 0xc028_4b05, &mut small, &memory, &fds), Err(Errno::EFAULT));
}

#[test]
fn apertures_are_counted_filled_and_limited() {
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
    assert_eq!(call(4, 2).0, Err(Errno::EINVAL));
    let (answer, count, bytes) = call(3, 3);
    assert_eq!((answer, count), (Ok(0), 2), "CPU node included in the limit, not in the answer");
    let entries: Vec<kfd_process_device_apertures> =
        bytes.chunks_exact(56).map(bytemuck::pod_read_unaligned).collect();
    assert_eq!(entries[1].gpu_id, client.id(1));
    assert_eq!((entries[0].lds_base, entries[0].lds_limit), (1 << 48, 1 << 48 | 0xffff_ffff));
    assert_eq!((entries[0].gpuvm_base, entries[0].gpuvm_limit), (0x1_0000, 0x7fff_ffff_ffff));
    assert_eq!(call(2, 1).0, Err(Errno::EFAULT));
    let mut legacy = kfd_ioctl_get_process_apertures_args::default();
    client.call(AMDKFD_IOC_GET_PROCESS_APERTURES, &mut legacy).unwrap();
    assert_eq!(legacy.num_of_nodes, 2);
    assert_eq!(legacy.process_apertures[1], entries[1]);
}

#[test]
fn apertures_are_asked_for_with_as_many_nodes_as_the_topology_has() {
    let node = "[[numa]]\ncores = 4\nmemory = \"8GiB\"\n";
    let client = Client::on_machine(&format!("{node}{node}[[gpu]]\nchip = \"gfx1100\"\n"));
    let ask = |num_of_nodes| {
        let mut args = kfd_ioctl_get_process_apertures_new_args {
            kfd_process_device_apertures_ptr: ARRAY,
            num_of_nodes,
            pad: 0,
        };
        let memory = Memory::with(ARRAY, &[0; 56]);
        client.call_with(AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, &mut args, &memory, &Fds::default())
    };
    assert_eq!((ask(3), ask(4)), (Ok(0), Err(Errno::EINVAL)));
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
    assert_eq!(client.call(AMDKFD_IOC_SET_MEMORY_POLICY, &mut policy), Err(Errno::ESRCH));
    assert_eq!(client.call(AMDKFD_IOC_SET_TRAP_HANDLER, &mut trap), Err(Errno::ESRCH));
    assert_eq!(client.call(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, &mut scratch), Err(Errno::ENODEV));
    client.acquire(0);
    assert_eq!(client.call(AMDKFD_IOC_SET_MEMORY_POLICY, &mut policy), Ok(0));
    assert_eq!(client.call(AMDKFD_IOC_SET_TRAP_HANDLER, &mut trap), Ok(0));
    assert_eq!(client.call(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, &mut scratch), Ok(0));
    let settings = client.process.gpu_settings(0).unwrap();
    assert_eq!(settings.memory_policy, MemoryPolicy { alternate: 1, ..MemoryPolicy::default() });
    assert_eq!((settings.trap_handler, settings.scratch_va), ((1, 2), 3));
    policy.default_policy = 2;
    assert_eq!(client.call(AMDKFD_IOC_SET_MEMORY_POLICY, &mut policy), Err(Errno::EINVAL));
    (trap.gpu_id, scratch.gpu_id) = (0, 0);
    assert_eq!(client.call(AMDKFD_IOC_SET_TRAP_HANDLER, &mut trap), Err(Errno::EINVAL));
    assert_eq!(client.call(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, &mut scratch), Err(Errno::EINVAL));
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
    assert_eq!(client.call(AMDKFD_IOC_GET_TILE_CONFIG, &mut args), Err(Errno::EFAULT));
    assert_eq!(args.num_tile_configs, 0);
    args.gpu_id = 0;
    assert_eq!(client.call(AMDKFD_IOC_GET_TILE_CONFIG, &mut args), Err(Errno::EINVAL));
}

#[test]
fn xnack_is_off_and_stays_off() {
    let client = Client::ready();
    let call = |mode| {
        let mut args = kfd_ioctl_set_xnack_mode_args { xnack_enabled: mode };
        client.call(AMDKFD_IOC_SET_XNACK_MODE, &mut args).map(|_| args.xnack_enabled)
    };
    assert_eq!((call(-1), call(0), call(1)), (Ok(0), Ok(0), Err(Errno::EPERM)));
    let mut parts = client.queue_parts(0, 0x1_0000_0000);
    client.create(&mut parts.args).unwrap();
    assert_eq!((call(-1), call(0), call(1)), (Ok(0), Err(Errno::EBUSY), Err(Errno::EBUSY)));
}

#[test]
fn what_is_not_there_answers_as_a_kernel_without_it() {
    let client = Client::new("gfx1100");
    assert_eq!(client.call(AMDKFD_IOC_DBG_REGISTER, &mut [0u32; 2]), Err(Errno::EPERM));
    assert_eq!(client.call(AMDKFD_IOC_DBG_UNREGISTER, &mut [0u32; 2]), Err(Errno::EPERM));
    assert_eq!(client.call(AMDKFD_IOC_DBG_ADDRESS_WATCH, &mut [0u32; 4]), Err(Errno::EPERM));
    assert_eq!(client.call(AMDKFD_IOC_DBG_WAVE_CONTROL, &mut [0u32; 4]), Err(Errno::EPERM));
    assert_eq!(client.call(AMDKFD_IOC_DBG_TRAP, &mut kfd_ioctl_dbg_trap_args::default()), Err(Errno::EINVAL));
}

#[test]
fn versions_and_commands_grow_with_the_kernel() {
    let versions = [(KernelModel::V6_12, 17), (KernelModel::V7_3, 23), (KernelModel::Fixed, 24)];
    for (kernel, minor) in versions {
        let client = Client::fresh_pair(kernel);
        let mut version = kfd_ioctl_get_version_args::default();
        client.call(AMDKFD_IOC_GET_VERSION, &mut version).unwrap();
        assert_eq!((version.major_version, version.minor_version), (1, minor));
        let old = kernel == KernelModel::V6_12;
        let create = client.call(AMDKFD_IOC_CREATE_PROCESS, &mut [0u8; 0]);
        assert_eq!(create, Err(if old { Errno::ENOTTY } else { Errno::EINVAL }));
        let profiler = |op| {
            let mut args = kfd_ioctl_profiler_args { op, args: [9; 3] };
            client.call(AMDKFD_IOC_PROFILER, &mut args).map(|_| args.args)
        };
        let ops = [KFD_IOC_PROFILER_PMC, KFD_IOC_PROFILER_VERSION, KFD_IOC_PROFILER_PTL_CONTROL, 1];
        let answers = [Err(Errno::EPERM), Ok([1, 9, 9]), Err(Errno::EINVAL), Err(Errno::EINVAL)];
        assert_eq!(ops.map(profiler), if old { [Err(Errno::ENOTTY); 4] } else { answers });
    }
}

#[test]
fn render_nodes_know_no_kfd_ioctl() {
    let client = Client::new("gfx1100");
    let (render, _) = client.render(0);
    let ioctl = |cmd| client.process.ioctl(&render, cmd, &mut [0; 64], &Memory::default(), &Fds::default());
    assert_eq!(ioctl(AMDKFD_IOC_GET_VERSION), Err(Errno::ENOTTY));
    assert_eq!(ioctl(0xc040_64ff), Err(Errno::EINVAL));
}
