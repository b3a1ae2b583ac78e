// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of AMD's ROCr 6.1.2 between `hsa_init` and its first queue, with its flags and in its order: what it fails or
//! aborts on if it is refused.

use super::harness::*;
use kfd::sys::*;
use nix::errno::Errno;

use crate::driver::memfd;

const VA: u64 = 0x7f00_0000_0000;
/// `hsaKmtAllocMemory`'s flags for the register page, for fine-grained system memory, and for VRAM without host access.
const REGISTERS: u32 = 0x9400_0010;
const EVENT_PAGE: u32 = 0xd600_0002;
const USER_CODE: u32 = 0xd600_0004;
const NO_HOST_ACCESS: u32 = 0xd000_0001;

/// Issues a command that must succeed; answers the argument as the driver left it.
fn done<T: bytemuck::Pod>(client: &Client, command: u32, mut args: T, memory: &Memory) -> T {
    let answer = client.call_with(command, &mut args, memory, &Fds::default());
    assert_eq!(answer, Ok(0), "{}", command_name(command));
    args
}

fn topology_and_address_space(client: &Client) {
    let none = &Memory::default();
    let version = done(client, AMDKFD_IOC_GET_VERSION, kfd_ioctl_get_version_args::default(), none);
    assert!(version.major_version == 1 && version.minor_version >= 13);
    // As many entries as the topology has nodes.
    let memory = Memory::with(ARRAY, &[0; 2 * 56]);
    let wanted = kfd_ioctl_get_process_apertures_new_args {
        kfd_process_device_apertures_ptr: ARRAY,
        num_of_nodes: 2,
        pad: 0,
    };
    assert_eq!(done(client, AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, wanted, &memory).num_of_nodes, 1);
    let apertures: kfd_process_device_apertures = bytemuck::pod_read_unaligned(&memory.bytes(ARRAY)[..56]);
    assert_eq!((apertures.gpu_id, apertures.gpuvm_limit), (client.id(0), (1 << 47) - 1));
    assert!(apertures.lds_base >> 32 != 0 && apertures.scratch_base >> 32 != 0, "asserted by ROCr");
    let policy = kfd_ioctl_set_memory_policy_args {
        alternate_aperture_base: 0x20_0000,
        alternate_aperture_size: 0x7fff_ffe0_0000,
        gpu_id: client.id(0),
        default_policy: KFD_IOC_CACHE_POLICY_NONCOHERENT,
        alternate_policy: KFD_IOC_CACHE_POLICY_COHERENT,
        ..Default::default()
    };
    done(client, AMDKFD_IOC_SET_MEMORY_POLICY, policy, none);
    let registers =
        done(client, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, client.alloc_args(0, VA, 4096, REGISTERS), none);
    client.process.mmap(&client.kfd, 4096, registers.mmap_offset).unwrap();
    client.map(registers.handle, 0).unwrap();
    let xnack = kfd_ioctl_set_xnack_mode_args { xnack_enabled: -1 };
    assert_eq!(done(client, AMDKFD_IOC_SET_XNACK_MODE, xnack, none).xnack_enabled, 0);
    for gpu_id in [client.id(0), 0] {
        let clocks = kfd_ioctl_get_clock_counters_args { gpu_id, ..Default::default() };
        done(client, AMDKFD_IOC_GET_CLOCK_COUNTERS, clocks, none);
    }
}

/// The events that the asynchronous thread waits for: memory faults, its own wake-up, hardware exceptions.
fn events(client: &Client, render: &crate::driver::OpenFile) -> [u32; 3] {
    let none = &Memory::default();
    let enable = kfd_ioctl_runtime_enable_args { r_debug: VA, mode_mask: 1, ..Default::default() };
    done(client, AMDKFD_IOC_RUNTIME_ENABLE, enable, none);
    let page = client.alloc_args(0, VA + 0x1_0000, 0x8000, EVENT_PAGE);
    let page = done(client, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, page, none);
    client.process.mmap(render, 0x8000, page.mmap_offset).unwrap();
    client.map(page.handle, 0).unwrap();
    let create = |event_type, auto_reset, event_page_offset| {
        let args =
            kfd_ioctl_create_event_args { event_type, auto_reset, event_page_offset, ..Default::default() };
        done(client, AMDKFD_IOC_CREATE_EVENT, args, none)
    };
    let fault = create(KFD_IOC_EVENT_MEMORY, 0, page.handle);
    let wake = create(KFD_IOC_EVENT_SIGNAL, 1, 0);
    assert_eq!(wake.event_page_offset, KFD_MMAP_TYPE_EVENTS, "0 costs every signal its mailbox");
    let exception = create(KFD_IOC_EVENT_HW_EXCEPTION, 0, 0);
    [fault.event_id, wake.event_id, exception.event_id]
}

fn scratch_traps_and_tiles(client: &Client) {
    let gpu_id = client.id(0);
    let scratch = kfd_ioctl_set_scratch_backing_va_args { va_addr: VA >> 16, gpu_id, pad: 0 };
    done(client, AMDKFD_IOC_SET_SCRATCH_BACKING_VA, scratch, &Memory::default());
    let mut code = client.alloc_args(0, VA + 0x10_0000, 4096, USER_CODE);
    code.mmap_offset = code.va_addr;
    let fds = Fds::memory(memfd::create("user", 4096).unwrap());
    client.call_with(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut code, &Memory::default(), &fds).unwrap();
    client.map(code.handle, 0).unwrap();
    let trap = kfd_ioctl_set_trap_handler_args { tba_addr: code.va_addr, gpu_id, ..Default::default() };
    done(client, AMDKFD_IOC_SET_TRAP_HANDLER, trap, &Memory::default());
    // HIP's image manager.
    let tiles = kfd_ioctl_get_tile_config_args {
        tile_config_ptr: ARRAY,
        macro_tile_config_ptr: ARRAY + 0x1000,
        num_tile_configs: 32,
        num_macro_tile_configs: 16,
        gpu_id,
        ..Default::default()
    };
    let memory = Memory::with(ARRAY, &[1; 128]).and(ARRAY + 0x1000, &[1; 64]);
    let tiles = done(client, AMDKFD_IOC_GET_TILE_CONFIG, tiles, &memory);
    assert_eq!(tiles.gb_addr_config, client.gpus[0].gb_addr_config());
    let available = kfd_ioctl_get_available_memory_args { gpu_id, ..Default::default() };
    assert!(done(client, AMDKFD_IOC_AVAILABLE_MEMORY, available, &Memory::default()).available > 1 << 30);
}

#[test]
fn hsa_init_and_its_first_queue_on_every_chip() {
    for chip in ["gfx1100", "gfx1101", "gfx1102", "gfx1201", "gfx90a", "gfx942"] {
        let client = Client::new(chip);
        // libhsakmt goes on with libdrm's duplicate of the render node's descriptor.
        let (render, token) = client.render(0);
        client.acquire_with(0, memfd::duplicate(&token).unwrap()).unwrap();
        topology_and_address_space(&client);
        let events = events(&client, &render);
        scratch_traps_and_tiles(&client);
        client.wait(&events.map(|event| (event, 0)), false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_TIMEOUT);
        // Memory for the queue that the host never touches is mapped all the same.
        let eop = client.alloc_args(0, VA + 0x20_0000, 4096, NO_HOST_ACCESS);
        let eop = done(&client, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, eop, &Memory::default());
        client.process.mmap(&render, 4096, eop.mmap_offset).unwrap();
        let mut parts = client.queue_parts(0, VA + 0x1_0000_0000);
        let queue = client.create(&mut parts.args).unwrap();
        // The runtime ends its thread and gives up the debugger's notice.
        client.set(events[1]).unwrap();
        client.wait(&[(events[1], 0)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
        client.destroy(queue).unwrap();
        for event in events {
            client.destroy_event(event).unwrap();
        }
        let disable = kfd_ioctl_runtime_enable_args::default();
        done(&client, AMDKFD_IOC_RUNTIME_ENABLE, disable, &Memory::default());
    }
}

#[test]
fn what_rocr_tries_and_can_do_without() {
    let client = Client::ready();
    // The driver package's own IPC and its older version's counterpart, PC sampling and the performance monitor.
    for number in [0x80, 0x81, 0x82, 0x84, 0x85] {
        assert_eq!(client.call(0xc020_4b00 | number, &mut [0u8; 32]), Err(Errno::ENOTTY), "{number:#x}");
    }
}
