// SPDX-License-Identifier: MIT OR Apache-2.0
//! CREATE, UPDATE and DESTROY_QUEUE, the buffers that queues hold, CU masks and wave state.

use std::sync::atomic::Ordering;

use super::harness::*;
use kfd::sys::*;
use nix::errno::Errno;

use crate::driver::ledger::Resource;
use crate::hardware::{HwQueue, HwQueueKind, Mqd, SavedWaves};

pub const BASE: u64 = 0x1_0000_0000;

pub fn update(client: &Client, id: u32, ring: u64, bytes: u32, percent: u32) -> Result<u32, Errno> {
    let mut args = kfd_ioctl_update_queue_args {
        ring_base_address: ring,
        queue_id: id,
        ring_size: bytes,
        queue_percentage: percent,
        queue_priority: 7,
    };
    client.call(AMDKFD_IOC_UPDATE_QUEUE, &mut args)
}

pub fn wave_state(
    client: &Client,
    id: u32,
    address: u64,
) -> (Result<u32, Errno>, kfd_ioctl_get_queue_wave_state_args) {
    let mut args = kfd_ioctl_get_queue_wave_state_args {
        ctl_stack_address: address,
        queue_id: id,
        ..Default::default()
    };
    (client.call(AMDKFD_IOC_GET_QUEUE_WAVE_STATE, &mut args), args)
}

#[test]
fn create_gives_id_cookie_and_hardware_queue() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    client.hardware.take();
    assert_eq!(client.create(&mut parts.args), Ok(0));
    let cookie = 3 << 62 | u64::from(client.id(0)) << 46;
    assert_eq!(parts.args.doorbell_offset, cookie);
    let queue = HwQueue {
        id: 0,
        kind: HwQueueKind::Aql,
        ring_va: BASE + 0x1_0000,
        ring_bytes: 0x4000,
        read_ptr_va: BASE + 0x80,
        write_ptr_va: BASE + 8,
        doorbell_offset: 0,
        cwsr_va: BASE + 0x10_0000,
        cwsr_bytes: 46_047_232,
        control_stack_bytes: 40_960,
        priority: 7,
    };
    assert_eq!(client.hardware.take(), [Step::Start { gpu: 0, queue }]);
    // A second queue on the same buffers: next id, next doorbell.
    assert_eq!(client.create(&mut parts.args), Ok(1));
    assert_eq!(parts.args.doorbell_offset, cookie + 8);
}

#[test]
fn create_checks_its_numbers() {
    let client = Client::ready();
    let good = client.queue_parts(0, BASE).args;
    let refused = |change: &dyn Fn(&mut kfd_ioctl_create_queue_args)| {
        let mut args = good;
        change(&mut args);
        client.create(&mut args).unwrap_err()
    };
    assert_eq!(refused(&|args| args.queue_type = 5), NOTSUPP);
    assert_eq!(refused(&|args| args.gpu_id = 0), Errno::EINVAL);
    let beyond = 0x7fff_ffff_f000;
    assert_eq!(refused(&|args| args.ring_base_address = beyond), Errno::EFAULT);
    assert_eq!(refused(&|args| args.read_pointer_address = beyond), Errno::EFAULT);
    assert_eq!(refused(&|args| args.write_pointer_address = u64::MAX), Errno::EFAULT);
    assert_eq!(refused(&|args| args.eop_buffer_address = beyond), Errno::EFAULT);
    assert_eq!(refused(&|args| args.ctx_save_restore_address = beyond), Errno::EFAULT);
    assert_eq!(refused(&|args| args.ring_base_address = 0), Errno::EINVAL);
}

#[test]
fn create_checks_in_the_kernels_order() {
    let client = Client::ready();
    let mut args = client.queue_parts(0, BASE).args;
    // All arguments are wrong at first; each correction reaches the next check.
    args.queue_percentage = 255;
    args.ring_base_address = u64::MAX;
    args.ring_size = 3;
    args.write_pointer_address = u64::MAX;
    args.queue_type = 9;
    args.gpu_id = 0;
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL));
    args.queue_percentage = 0x1_ff00 + 100;
    assert_eq!(client.create(&mut args), Err(Errno::EFAULT));
    args.ring_base_address = BASE + 0x1_0000;
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL));
    args.ring_size = 0;
    assert_eq!(client.create(&mut args), Err(Errno::EFAULT));
    assert_eq!(args.ring_size, 1024, "the raised ring size is written back even by a failing call");
    args.write_pointer_address = BASE + 8;
    assert_eq!(client.create(&mut args), Err(NOTSUPP));
    args.queue_type = KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL));
}

#[test]
fn create_wants_every_buffer_mapped_exactly() {
    let client = Client::ready();
    let good = client.queue_parts(0, BASE).args;
    let refused = |change: &dyn Fn(&mut kfd_ioctl_create_queue_args)| {
        let mut args = good;
        change(&mut args);
        assert_eq!(client.create(&mut args), Err(Errno::EINVAL));
    };
    client.buffer(0, BASE + 0x3_0000, 8192, GTT);
    refused(&|args| args.write_pointer_address = BASE + 0x3_0000);
    refused(&|args| args.read_pointer_address = 0);
    refused(&|args| args.ring_size = 0x2000);
    refused(&|args| args.ring_size = 0x8000);
    refused(&|args| args.eop_buffer_size = 4095);
    refused(&|args| args.eop_buffer_size = 4097);
    refused(&|args| args.eop_buffer_size = u64::MAX);
    refused(&|args| args.ctx_save_restore_size -= 4096);
    refused(&|args| args.ctx_save_restore_size += 4096);
    refused(&|args| args.ctx_save_restore_size = u32::MAX);
}

#[test]
fn create_without_end_of_pipe_buffer_passes_the_driver() {
    let client = Client::ready();
    let mut args = client.queue_parts(0, BASE).args;
    args.eop_buffer_address = 0;
    args.eop_buffer_size = 0;
    client.create(&mut args).unwrap();
}

#[test]
fn create_wants_the_write_pointer_in_system_memory_of_the_same_gpu() {
    let client = Client::pair();
    let mut args = client.queue_parts(0, BASE).args;
    client.buffer(0, BASE + 0x3_0000, 4096, VRAM);
    args.write_pointer_address = BASE + 0x3_0000;
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL));
    let of_peer = client.alloc(1, BASE + 0x4_0000, 4096, GTT).unwrap();
    client.map(of_peer, 0).unwrap();
    args.write_pointer_address = BASE + 0x4_0000;
    assert_eq!(client.create(&mut args), Err(Errno::EINVAL));
}

#[test]
fn create_takes_the_old_struct_of_88_bytes() {
    let client = Client::ready();
    let args = client.queue_parts(0, BASE).args;
    let mut bytes = bytemuck::bytes_of(&args)[..88].to_vec();
    let (memory, fds) = (Memory::default(), Fds::default());
    client.process.ioctl(&client.kfd, 0xc058_4b02, &mut bytes, &memory, &fds).unwrap();
    assert_ne!(bytes[24..32], [0; 8], "the doorbell offset came back");
}

#[test]
fn two_queues_on_one_buffer_are_counted_separately() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let first = client.create(&mut parts.args).unwrap();
    let second = client.create(&mut parts.args).unwrap();
    client.destroy(first).unwrap();
    assert_eq!(client.unmap(parts.ring, 0), Err(Errno::EBUSY));
    client.destroy(second).unwrap();
    client.unmap(parts.ring, 0).unwrap();
}

#[test]
fn refused_queue_holds_nothing() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    client.hardware.refuse_start.store(true, Ordering::Relaxed);
    assert_eq!(client.create(&mut parts.args), Err(Errno::EIO));
    assert_eq!(client.ledger.used(Resource::Queues(0)), 0);
    client.unmap(parts.cwsr, 0).unwrap();
    client.map(parts.cwsr, 0).unwrap();
    client.hardware.refuse_start.store(false, Ordering::Relaxed);
    assert_eq!(client.create(&mut parts.args), Ok(0));
    assert_eq!(parts.args.doorbell_offset & 0x1fff, 0, "the doorbell came back too");
}

#[test]
fn ids_are_process_wide_and_doorbells_per_gpu() {
    let client = Client::pair();
    let mut on_first = client.queue_parts(0, BASE).args;
    let mut on_second = client.queue_parts(1, BASE).args;
    assert_eq!(client.create(&mut on_first), Ok(0));
    assert_eq!(client.create(&mut on_second), Ok(1));
    assert_eq!(on_second.doorbell_offset & 0x1fff, 0);
    assert_eq!(client.create(&mut on_first), Ok(2));
    client.destroy(0).unwrap();
    assert_eq!(client.create(&mut on_second), Ok(0), "lowest free id");
    assert_eq!(on_second.doorbell_offset & 0x1fff, 8);
}

#[test]
fn a_process_has_as_many_queues_on_a_gpu_as_its_chip_allows() {
    for (chip, most) in [("gfx1100", 127), ("gfx942", 255)] {
        let client = Client::new(chip);
        client.acquire(0);
        let mut parts = client.queue_parts(0, BASE);
        for id in 0..most {
            assert_eq!(client.create(&mut parts.args), Ok(id), "{chip}");
        }
        assert_eq!(client.create(&mut parts.args), Err(Errno::ENOSPC), "{chip}");
        client.destroy(5).unwrap();
        assert_eq!(client.create(&mut parts.args), Ok(5), "{chip}");
        assert_eq!(client.ledger.used(Resource::Queues(0)), u64::from(most), "{chip}");
    }
}

#[test]
fn a_full_device_refuses_with_eperm() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let other = client.ledger.claim(9).unwrap();
    other.reserve(Resource::Queues(0), 4096).unwrap();
    assert_eq!(client.create(&mut parts.args), Err(Errno::EPERM));
    client.ledger.clear(other.index()).unwrap();
    client.create(&mut parts.args).unwrap();
}

#[test]
fn sdma_queues_alternate_engines_and_run_out() {
    let client = Client::ready();
    let mut args = client.queue_parts(0, BASE).args;
    args.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
    // The driver checks only rings and pointers here.
    (args.ctl_stack_size, args.ctx_save_restore_size, args.ctx_save_restore_address) = (1, 1, 0x1234);
    let mut offsets = Vec::new();
    for _ in 0..12 {
        client.create(&mut args).unwrap();
        offsets.push((args.doorbell_offset & 0x1fff) / 8);
    }
    assert_eq!(offsets[..4], [0x101, 0x10b, 0x301, 0x30b]);
    assert_eq!(client.create(&mut args), Err(Errno::ENOMEM));
    args.queue_type = KFD_IOC_QUEUE_TYPE_SDMA_XGMI;
    assert_eq!(client.create(&mut args), Err(Errno::ENOMEM));
    assert_eq!(client.ledger.used(Resource::Queues(0)), 12);
    client.destroy(3).unwrap();
    args.queue_type = KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID;
    args.sdma_engine_id = 0;
    assert_eq!(client.create(&mut args), Err(Errno::ENOMEM), "the free one is on engine 1");
    args.sdma_engine_id = 1;
    assert_eq!(client.create(&mut args), Ok(3));
    assert_eq!((args.doorbell_offset & 0x1fff) / 8, 0x30b);
}

#[test]
fn update_parks_and_resumes() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let id = client.create(&mut parts.args).unwrap();
    let ring = BASE + 0x1_0000;
    client.hardware.take();
    update(&client, id, ring, 0x4000, 0).unwrap();
    assert_eq!(client.hardware.take(), [Step::Stop { gpu: 0, id }]);
    update(&client, id, ring, 0x4000, 100).unwrap();
    assert!(matches!(client.hardware.take()[..], [Step::Start { gpu: 0, .. }]));
    update(&client, id, 0, 0x4000, 100).unwrap();
    assert_eq!(client.hardware.take(), [Step::Stop { gpu: 0, id }]);
    // A queue that is parked with ring 0 still holds its ring.
    assert_eq!(client.unmap(parts.ring, 0), Err(Errno::EBUSY));
    update(&client, id, ring, 0x4000, 100).unwrap();
    client.destroy(id).unwrap();
    client.unmap(parts.ring, 0).unwrap();
}

#[test]
fn queue_goes_on_with_what_its_last_stop_left() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let id = client.create(&mut parts.args).unwrap();
    let mqd = || client.hardware.running.lock()[&(0, id)].clone();
    let words = |mqd: &Mqd| [174, 175, 176, 177, 23, 47, STOPS].map(|word| mqd.word(word));
    let fresh = [40_960, 40_960, 40_960, 46_047_232, u32::MAX, u32::MAX, 0];
    assert_eq!(words(&mqd()), fresh, "as init_mqd leaves it");
    update(&client, id, BASE + 0x1_0000, 0x4000, 0).unwrap();
    update(&client, id, BASE + 0x1_0000, 0x4000, 100).unwrap();
    assert_eq!(words(&mqd()), [40_960, 40_960, 40_960, 46_047_232, u32::MAX, u32::MAX, 1]);
    // Another ring does not change the descriptor.
    client.buffer(0, BASE + 0x5_0000, 0x2000, GTT);
    update(&client, id, BASE + 0x5_0000, 0x2000, 100).unwrap();
    assert_eq!(mqd().word(STOPS), 2);
}

#[test]
fn update_exchanges_the_ring() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let id = client.create(&mut parts.args).unwrap();
    let other = client.buffer(0, BASE + 0x5_0000, 0x2000, GTT);
    update(&client, id, BASE + 0x5_0000, 0x2000, 100).unwrap();
    client.unmap(parts.ring, 0).unwrap();
    assert_eq!(client.unmap(other, 0), Err(Errno::EBUSY));
    client.destroy(id).unwrap();
    client.unmap(other, 0).unwrap();
}

#[test]
fn update_refusals() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let id = client.create(&mut parts.args).unwrap();
    let ring = BASE + 0x1_0000;
    assert_eq!(update(&client, id, ring, 0x2000, 100), Err(Errno::EFAULT));
    assert_eq!(update(&client, id, ring, 3000, 100), Err(Errno::EINVAL));
    assert_eq!(update(&client, id, ring, 0x4000, 101), Err(Errno::EINVAL));
    assert_eq!(update(&client, id, u64::MAX, 0x4000, 100), Err(Errno::EFAULT));
    // For a ring smaller than a page only the start is compared.
    assert_eq!(update(&client, id, ring, 2048, 100), Ok(0));
}

#[test]
fn queue_created_with_percentage_zero_never_starts() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    parts.args.queue_percentage = 0;
    client.hardware.take();
    let id = client.create(&mut parts.args).unwrap();
    assert_eq!(client.hardware.take(), []);
    let (answer, args) = wave_state(&client, id, BASE + 0x10_0000);
    assert_eq!((answer, args.ctl_stack_used_size, args.save_area_used_size), (Ok(0), 0, 0));
}

#[test]
fn wave_state_of_a_parked_queue() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let id = client.create(&mut parts.args).unwrap();
    let area = BASE + 0x10_0000;
    assert_eq!(wave_state(&client, id + 1, area).0, Err(Errno::EFAULT));
    *client.hardware.saved.lock() = Some(SavedWaves {
        control_stack_offset: 40_900,
        control_stack_bytes: 60,
        wave_state_offset: 50_000,
        wave_state_bytes: 9_040,
    });
    update(&client, id, BASE + 0x1_0000, 0x4000, 0).unwrap();
    let (answer, args) = wave_state(&client, id, area);
    assert_eq!((answer, args.ctl_stack_used_size, args.save_area_used_size), (Ok(0), 60, 9_040));
    // The header is at the address where the client's own mapping shows the buffer.
    let acquired = client.process.state.lock().pdds[0].render.unwrap();
    let offset = client.process.state.lock().bo(0, 3).unwrap().mmap_offset;
    let memory = client.process.mmap(&acquired, 4096, offset).unwrap();
    let mut header = [0u32; 4];
    let bytes: &mut [u8] = bytemuck::bytes_of_mut(&mut header);
    nix::sys::uio::pread(&memory.fd, bytes, 0).unwrap();
    assert_eq!(header, [40_900, 60, 50_000, 9_040]);
    assert_eq!(wave_state(&client, id, 0x10).0, Err(Errno::EFAULT));
    assert_eq!(wave_state(&client, id, u64::MAX).0, Err(Errno::EFAULT));
}

#[test]
fn wave_state_of_a_copy_queue_is_einval() {
    let client = Client::ready();
    let mut args = client.queue_parts(0, BASE).args;
    args.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
    args.queue_percentage = 0;
    let id = client.create(&mut args).unwrap();
    assert_eq!(wave_state(&client, id, BASE).0, Err(Errno::EINVAL));
}

#[test]
fn gws_belongs_to_one_queue() {
    let client = Client::ready();
    let mut parts = client.queue_parts(0, BASE);
    let (first, second) = (client.create(&mut parts.args).unwrap(), client.create(&mut parts.args).unwrap());
    let alloc = |queue_id, num_gws| {
        let mut args = kfd_ioctl_alloc_queue_gws_args { queue_id, num_gws, first_gws: 7, pad: 0 };
        client.call(AMDKFD_IOC_ALLOC_QUEUE_GWS, &mut args).map(|_| args.first_gws)
    };
    assert_eq!(alloc(9, 1), Err(Errno::EINVAL));
    assert_eq!(alloc(first, 0), Err(Errno::EINVAL));
    assert_eq!(alloc(first, 64), Ok(0));
    assert_eq!(alloc(second, 64), Err(Errno::EBUSY));
    client.destroy(first).unwrap();
    assert_eq!(alloc(second, 64), Ok(0));
    assert_eq!(alloc(second, 0), Ok(0));
}
