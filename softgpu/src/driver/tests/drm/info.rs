// SPDX-License-Identifier: MIT OR Apache-2.0
//! AMDGPU_INFO: each query, and how much of an answer is copied.

use super::*;
use crate::driver::KernelModel;

/// A render file, asked by a client whose memory for answers is filled with nines.
struct Asked {
    client: Client,
    file: OpenFile,
}

impl Asked {
    fn new(client: Client) -> Self {
        let (file, _token) = client.render(0);
        Self { client, file }
    }

    fn at(&self, query: u32, args: [u32; 4], pointer: u64, room: u32) -> Result<Vec<u8>, Errno> {
        let memory = Memory::with(ARRAY, &[9; 512]);
        let mut args = drm_amdgpu_info { return_pointer: pointer, return_size: room, query, args };
        drm_with(&self.client, &self.file, DRM_IOCTL_AMDGPU_INFO, &mut args, &memory, &Fds::default())?;
        Ok(memory.bytes(ARRAY))
    }

    fn with<T: Pod>(&self, query: u32, args: [u32; 4]) -> Result<T, Errno> {
        let bytes = self.at(query, args, ARRAY, size_of::<T>() as u32)?;
        assert!(bytes[size_of::<T>()..].iter().all(|byte| *byte == 9), "query {query:#x} wrote too much");
        Ok(bytemuck::pod_read_unaligned(&bytes[..size_of::<T>()]))
    }

    fn ask<T: Pod>(&self, query: u32) -> Result<T, Errno> {
        self.with(query, [0; 4])
    }
}

#[test]
fn answers_are_copied_up_to_the_callers_room() {
    let asked = Asked::new(Client::new("gfx1100"));
    let working = AMDGPU_INFO_ACCEL_WORKING;
    assert_eq!(asked.at(working, [0; 4], ARRAY, 8).unwrap()[..8], [1, 0, 0, 0, 9, 9, 9, 9]);
    assert_eq!(asked.at(working, [0; 4], 0, 4), Err(Errno::EINVAL));
    assert_eq!(asked.at(working, [0; 4], ARRAY, 0), Err(Errno::EINVAL));
    assert_eq!(asked.at(working, [0; 4], 8, 4), Err(Errno::EFAULT));
    // What libdrm 2.4.114 asks for, then what a caller of a later header asks for.
    let whole = asked.client.gpus[0].device_info();
    let whole = bytemuck::bytes_of(&whole);
    let old = asked.at(AMDGPU_INFO_DEV_INFO, [0; 4], ARRAY, 368).unwrap();
    assert_eq!((&old[..368], old[368]), (&whole[..368], 9));
    let later = asked.at(AMDGPU_INFO_DEV_INFO, [0; 4], ARRAY, 500).unwrap();
    assert_eq!((&later[..448], later[448]), (whole, 9));
}

#[test]
fn structs_are_as_long_as_those_of_the_kernel() {
    for (kernel, device, engine) in [(KernelModel::V6_12, 440, 32), (KernelModel::V7_3, 448, 40)] {
        let asked = Asked::new(Client::fresh_pair(kernel));
        let length = |query| {
            let bytes = asked.at(query, [0; 4], ARRAY, 512).unwrap();
            bytes.iter().rposition(|byte| *byte != 9).map(|last| last + 1)
        };
        assert_eq!(length(AMDGPU_INFO_DEV_INFO), Some(device));
        assert_eq!(length(AMDGPU_INFO_HW_IP_INFO), Some(engine));
    }
}

#[test]
fn libdrm_reads_one_register() {
    let asked = Asked::new(Client::new("gfx1100"));
    let read = |first, count, place| asked.with::<u32>(AMDGPU_INFO_READ_MMR_REG, [first, count, place, 0]);
    let all = u32::MAX;
    assert_eq!(read(0x263e, 1, all), Ok(0x545));
    assert_eq!(read(0x263e, 1, 0x0103), Ok(0x545));
    assert_eq!(read(0x263e, 1, 0xff04), Err(Errno::EINVAL), "engine 4");
    assert_eq!(read(0x263e, 1, 0x02ff), Err(Errno::EINVAL), "array 2");
    assert_eq!(read(0x263e, 129, all), Err(Errno::EINVAL));
    assert_eq!(read(0x263e, 2, all), Err(Errno::EFAULT), "the register behind it");
    assert_eq!(read(0x2004, 1, all), Err(Errno::EFAULT), "GRBM_STATUS");
}

#[test]
fn memory_in_use_is_that_of_all_processes() {
    let asked = Asked::new(Client::ready());
    let before: drm_amdgpu_memory_info = asked.ask(AMDGPU_INFO_MEMORY).unwrap();
    assert_eq!((before.vram.heap_usage, before.gtt.heap_usage), (0, 0));
    let beside = Client::beside(asked.client.gpus.clone(), asked.client.ledger.clone());
    beside.acquire(0);
    beside.alloc(0, VA, 4 << 20, VRAM).unwrap();
    asked.client.alloc(0, VA, 4 * PAGE, GTT).unwrap();
    let after: drm_amdgpu_memory_info = asked.ask(AMDGPU_INFO_MEMORY).unwrap();
    assert_eq!((after.vram.heap_usage, after.cpu_accessible_vram.heap_usage), (4 << 20, 4 << 20));
    assert_eq!(after.gtt.heap_usage, 4 * PAGE);
    let usage = [AMDGPU_INFO_VRAM_USAGE, AMDGPU_INFO_VIS_VRAM_USAGE, AMDGPU_INFO_GTT_USAGE];
    assert_eq!(usage.map(|query| asked.ask::<u64>(query)), [Ok(4 << 20), Ok(4 << 20), Ok(4 * PAGE)]);
    let totals: drm_amdgpu_info_vram_gtt = asked.ask(AMDGPU_INFO_VRAM_GTT).unwrap();
    let usable = asked.client.gpus[0].vram_bytes() - (8 << 20);
    assert_eq!((totals.vram_size, totals.vram_cpu_accessible_size), (usable, usable));
    assert_eq!(totals.gtt_size, 1 << 33);
}

#[test]
fn visible_memory_of_a_small_bar_is_used_last() {
    let client = Client::on_machine("[[gpu]]\nchip = \"gfx1100\"\nbar = \"small\"\n");
    let hidden = KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
    let gpu = &client.gpus[0];
    let room = gpu.vram_bytes() - gpu.visible_vram_bytes();
    client.alloc(0, VA, room & !((2 << 20) - 1), hidden).unwrap();
    let asked = Asked::new(client);
    let memory: drm_amdgpu_memory_info = asked.ask(AMDGPU_INFO_MEMORY).unwrap();
    assert_eq!(memory.cpu_accessible_vram.total_heap_size, 256 << 20);
    assert_eq!(memory.cpu_accessible_vram.heap_usage, 0);
    asked.client.alloc(0, VA, 8 << 20, hidden).unwrap();
    let used = asked.ask::<u64>(AMDGPU_INFO_VIS_VRAM_USAGE).unwrap();
    assert!((6 << 20..=8 << 20).contains(&used), "{used:#x}");
}

#[test]
fn engines_have_versions_and_no_rings() {
    let asked = Asked::new(Client::new("gfx1100"));
    let engine =
        |kind, instance| asked.with::<drm_amdgpu_info_hw_ip>(AMDGPU_INFO_HW_IP_INFO, [kind, instance, 0, 0]);
    let compute = engine(AMDGPU_HW_IP_COMPUTE, 0).unwrap();
    assert_eq!((compute.hw_ip_version_major, compute.ip_discovery_version), (11, 0x000b_0000));
    let copy = engine(AMDGPU_HW_IP_DMA, 0).unwrap();
    assert_eq!((copy.hw_ip_version_major, copy.available_rings), (6, 0));
    assert_eq!(engine(3, 0).unwrap(), drm_amdgpu_info_hw_ip::default(), "no video");
    assert_eq!((engine(10, 0), engine(0, 1)), (Err(Errno::EINVAL), Err(Errno::EINVAL)));
    let count = |kind| asked.with::<u32>(AMDGPU_INFO_HW_IP_COUNT, [kind, 0, 0, 0]);
    assert_eq!([0, 2, 3, 10].map(count), [Ok(1), Ok(1), Ok(0), Err(Errno::EINVAL)]);
}

#[test]
fn firmware_versions_are_those_of_the_topology() {
    let asked = Asked::new(Client::new("gfx1100"));
    let version = |kind, instance, index| {
        let answer =
            asked.with::<drm_amdgpu_info_firmware>(AMDGPU_INFO_FW_VERSION, [kind, instance, index, 0]);
        answer.map(|firmware| firmware.ver)
    };
    assert_eq!(version(AMDGPU_INFO_FW_GFX_MEC, 0, 0), Ok(2140));
    assert_eq!(version(AMDGPU_INFO_FW_SDMA, 0, 1), Ok(20));
    assert_eq!(version(AMDGPU_INFO_FW_VCE, 0, 0), Ok(0), "not loaded");
    for (kind, instance, index) in [(8, 0, 2), (0xb, 0, 2), (8, 1, 0), (9, 0, 0), (0, 0, 0), (0x1d, 0, 0)] {
        assert_eq!(version(kind, instance, index), Err(Errno::EINVAL), "{kind} {instance} {index}");
    }
}

#[test]
fn counters_stand_and_the_clock_is_the_hardwares() {
    let asked = Asked::new(Client::new("gfx1100"));
    assert_eq!(asked.ask::<u64>(AMDGPU_INFO_TIMESTAMP), Ok(42));
    let counters =
        [AMDGPU_INFO_NUM_BYTES_MOVED, AMDGPU_INFO_NUM_EVICTIONS, AMDGPU_INFO_NUM_VRAM_CPU_PAGE_FAULTS];
    assert_eq!(counters.map(|query| asked.ask::<u64>(query)), [Ok(0); 3]);
    assert_eq!(asked.ask::<u32>(AMDGPU_INFO_VRAM_LOST_COUNTER), Ok(0));
}

#[test]
fn what_the_device_has_not_is_refused() {
    let asked = Asked::new(Client::new("gfx1100"));
    assert_eq!(asked.ask::<u32>(AMDGPU_INFO_SENSOR), Err(Errno::ENOENT));
    // CRTC_FROM_ID, VIDEO_CAPS, RAS_ENABLED_FEATURES, a hole, and numbers beyond.
    for query in [0x01, 0x21, 0x20, 0x04, 0x40, u32::MAX] {
        assert_eq!(asked.ask::<u64>(query), Err(Errno::EINVAL), "{query:#x}");
    }
}
