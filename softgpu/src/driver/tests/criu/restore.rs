// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks of RESTORE in their order, and what restored objects can do.

use super::super::queues::{BASE, update};
use super::*;
use crate::driver::ledger::Resource;

/// Offsets in the checkpoint of [`small`]: two devices, four buffers of the queue and one event page.
const FIRST_BO: usize = 8 + 16;
const QUEUE: usize = FIRST_BO + 5 * 272;
const EVENT: usize = QUEUE + 120 + 2048;

/// A queue, an event page and an event.
fn small(kernel: KernelModel) -> Taken {
    let client = Client::pair_under(kernel);
    let mut args = client.queue_parts(0, BASE).args;
    client.create(&mut args).unwrap();
    client.create_event(KFD_IOC_EVENT_SIGNAL, false, client.event_page()).unwrap();
    let taken = take(&client);
    assert_eq!(taken.blob.len(), EVENT + 64);
    taken
}

/// The answer to the small checkpoint after a change.
fn after(change: impl FnOnce(&mut Taken)) -> Result<(), Errno> {
    let mut taken = small(KernelModel::Fixed);
    change(&mut taken);
    let heir = elsewhere(KernelModel::Fixed);
    let outcome = restore(&heir, &taken).map(drop);
    // RESTORE undoes nothing, but no queue runs.
    assert_eq!(heir.hardware.running.lock().len(), 0);
    outcome
}

/// Writes a u32 into the blob.
fn word(taken: &mut Taken, offset: usize, value: u32) {
    taken.blob[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

fn after_word(offset: usize, value: u32) -> Result<(), Errno> {
    after(|taken| word(taken, offset, value))
}

#[test]
fn restore_takes_its_own_checkpoint() {
    assert_eq!(after(|_| {}), Ok(()));
}

#[test]
fn arguments_are_checked_first() {
    let null: [fn(&mut kfd_ioctl_criu_args); 3] =
        [|args| args.priv_data_size = 0, |args| args.num_devices = 0, |args| args.num_bos = 0];
    for change in null {
        assert_eq!(after(|taken| change(&mut taken.args)), Err(Errno::EINVAL));
    }
    assert_eq!(after(|taken| taken.args.priv_data = 0), Err(Errno::EINVAL));
    assert_eq!(after(|taken| taken.args.devices = 0x10), Err(Errno::EFAULT));
    assert_eq!(after(|taken| taken.args.bos = 0x10), Err(Errno::EFAULT));
    assert_eq!(after(|taken| taken.args.priv_data = u64::MAX - 4), Err(Errno::EFAULT));
}

#[test]
fn sizes_must_agree_with_what_is_there() {
    for (change, errno) in [(-1_i64, Errno::EINVAL), (1, Errno::EINVAL), (-300, Errno::EINVAL)] {
        let wrong = |taken: &mut Taken| {
            taken.args.priv_data_size = taken.args.priv_data_size.saturating_add_signed(change)
        };
        assert_eq!(after(wrong), Err(errno), "{change}");
    }
    assert_eq!(after(|taken| taken.args.num_objects -= 1), Err(Errno::EINVAL));
    assert_eq!(after(|taken| taken.args.num_objects = u32::MAX), Err(Errno::EINVAL));
    assert_eq!(after(|taken| taken.args.num_bos = u32::MAX), Err(Errno::EINVAL));
    let huge = |taken: &mut Taken| (taken.args.num_bos, taken.args.priv_data_size) = (u32::MAX, u64::MAX);
    assert_eq!(after(huge), Err(Errno::EFAULT), "the buckets end first");
}

#[test]
fn process_and_devices_must_fit() {
    assert_eq!(after_word(0, 2), Err(Errno::EINVAL), "version");
    assert_eq!(after_word(4, 1), Err(Errno::EPERM), "xnack");
    assert_eq!(after(|taken| taken.args.num_devices = 1), Err(Errno::EINVAL));
    assert_eq!(after(|taken| taken.devices[0].user_gpu_id = 0), Err(Errno::EINVAL));
    assert_eq!(after(|taken| taken.devices[1].actual_gpu_id = 7), Err(Errno::EINVAL));
    assert_eq!(after(|taken| taken.devices[1] = taken.devices[0]), Err(Errno::EINVAL), "acquired twice");
}

#[test]
fn render_nodes_must_be_fresh_and_the_gpus_own() {
    let taken = small(KernelModel::Fixed);
    let heir = elsewhere(KernelModel::Fixed);
    let nodes = [heir.render(1).1, heir.render(0).1];
    assert_eq!(restore_with(&heir, &taken, nodes.iter()).err(), Some(Errno::EINVAL), "exchanged");
    let heir = elsewhere(KernelModel::Fixed);
    let no_nodes: [OwnedFd; 0] = [];
    assert_eq!(restore_with(&heir, &taken, no_nodes.iter()).err(), Some(Errno::EINVAL));
    let heir = elsewhere(KernelModel::Fixed);
    heir.acquire(1);
    assert_eq!(restore(&heir, &taken).err(), Some(Errno::EINVAL), "acquired before");
    let null = std::fs::File::open("/dev/null").unwrap();
    let heir = elsewhere(KernelModel::Fixed);
    assert_eq!(restore_with(&heir, &taken, [&null, &null].into_iter()).err(), Some(Errno::EINVAL));
}

#[test]
fn buffers_must_fit() {
    assert_eq!(after(|taken| taken.bos[0].gpu_id = 7), Err(Errno::ENODEV));
    assert_eq!(after(|taken| taken.bos[0].size = 0), Err(Errno::EINVAL));
    assert_eq!(after(|taken| taken.bos[0].size = u64::MAX), Err(Errno::ENOMEM));
    assert_eq!(after(|taken| taken.bos[0].size = 1 << 60), Err(Errno::ENOMEM));
    assert_eq!(after(|taken| taken.bos[0].alloc_flags = 0), Err(Errno::EINVAL));
    for flags in [KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL, KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP] {
        let wrong = |taken: &mut Taken| (taken.bos[0].alloc_flags, taken.bos[0].size) = (flags, 12288);
        assert_eq!(after(wrong), Err(Errno::EINVAL));
    }
    assert_eq!(after_word(FIRST_BO + 8, 1), Err(Errno::ENOMEM), "the index is the next buffer's too");
    assert_eq!(after_word(FIRST_BO + 8, u32::MAX), Err(Errno::ENOMEM));
    assert_eq!(after_word(FIRST_BO + 12, 7), Err(Errno::EINVAL), "mapped on a GPU that is not there");
    assert_eq!(after(|taken| taken.bos[0].addr = 0), Err(Errno::EINVAL), "mapped without address");
    let overlap = |taken: &mut Taken| taken.bos[1].addr = taken.bos[0].addr;
    assert_eq!(after(overlap), Err(Errno::EINVAL));
}

#[test]
fn queues_must_fit() {
    let field = |offset, value| after_word(QUEUE + offset, value);
    assert_eq!(field(0, 2), Err(Errno::EINVAL), "no ranges here");
    assert_eq!(field(0, 77), Err(Errno::EINVAL));
    assert_eq!(field(64, 7), Err(Errno::EINVAL), "GPU");
    assert_eq!(field(112, 512), Err(Errno::EINVAL), "the descriptor of another kind");
    assert_eq!(field(112, u32::MAX), Err(Errno::EINVAL));
    assert_eq!(field(108, 40_961), Err(Errno::EINVAL), "control stack beyond the blob");
    assert_eq!(field(108, u32::MAX), Err(Errno::EINVAL));
    assert_eq!(field(76, 1024), Err(Errno::EINVAL), "queue number");
    assert_eq!(field(88, 1024), Err(Errno::EINVAL), "doorbell");
    assert_eq!(field(88, 0x100), Err(Errno::EINVAL), "an SDMA engine's doorbell");
    assert_eq!(field(88, u32::MAX), Err(Errno::EINVAL));
    for (offset, value) in [(68, 2), (68, 9), (72, 2), (16, 3000), (16, 0), (20, 1), (80, 16), (84, 101)] {
        assert_eq!(field(offset, value), Err(Errno::EINVAL), "{offset} {value}");
    }
    // The descriptor of another kind of queue would have another size.
    assert_eq!(field(68, 1), Err(Errno::EINVAL));
}

#[test]
fn numbers_that_are_taken_are_refused() {
    let twice = |taken: &mut Taken, change: &dyn Fn(&mut [u8])| {
        let mut copy = taken.blob[QUEUE..EVENT].to_vec();
        change(&mut copy);
        taken.blob.splice(EVENT..EVENT, copy);
        taken.args.num_objects += 1;
        taken.args.priv_data_size = taken.blob.len() as u64;
    };
    assert_eq!(after(|taken| twice(taken, &|_| {})), Err(Errno::ENOSPC));
    assert_eq!(after(|taken| twice(taken, &|queue| queue[76] = 9)), Err(Errno::EINVAL), "the doorbell too");
    let another = |queue: &mut [u8]| (queue[76], queue[88]) = (9, 3);
    assert_eq!(after(|taken| twice(taken, &another)), Ok(()));
    let event_twice = |taken: &mut Taken| {
        let mut copy = taken.blob[EVENT..].to_vec();
        copy[8..16].fill(0);
        taken.blob.extend(copy);
        taken.args.num_objects += 1;
        taken.args.priv_data_size = taken.blob.len() as u64;
    };
    assert_eq!(after(event_twice), Err(Errno::ENOSPC));
}

#[test]
fn sdma_queues_must_fit() {
    let client = Client::pair_under(KernelModel::Fixed);
    let mut args = client.queue_parts(0, BASE).args;
    args.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
    client.create(&mut args).unwrap();
    let taken = || take(&client);
    let queue = FIRST_BO + 4 * 272;
    let with = |offset, value| {
        let mut taken = taken();
        word(&mut taken, queue + offset, value);
        restore(&elsewhere(KernelModel::Fixed), &taken).map(drop)
    };
    assert_eq!(with(72, 0), Ok(()));
    assert_eq!(with(88, 5), Err(Errno::EINVAL), "its doorbell follows from its number");
    assert_eq!(with(96, 3), Err(Errno::EBUSY), "the kernel's own");
    assert_eq!(with(96, u32::MAX), Err(Errno::EBUSY));
    // The first process still holds the SDMA queue on this device.
    let beside = Client::under(KernelModel::Fixed, client.gpus.clone(), client.ledger.clone());
    assert_eq!(restore(&beside, &taken()).err(), Some(Errno::EBUSY));
}

#[test]
fn events_must_fit() {
    let field = |offset, value| after_word(EVENT + offset, value);
    for event_type in [1, 2, 4, 6, 7, 99] {
        assert_eq!(field(24, event_type), Err(Errno::EINVAL), "{event_type}");
    }
    assert_eq!(field(16, 4096), Err(Errno::EINVAL));
    assert_eq!(field(16, u32::MAX), Err(Errno::EINVAL));
    assert_eq!(field(16, 4095), Ok(()));
    assert_eq!(field(8, 0xffff), Err(Errno::EINVAL), "no such event page");
    let no_page = |taken: &mut Taken| taken.blob[EVENT + 8..EVENT + 16].fill(0);
    assert_eq!(after(no_page), Err(Errno::ENOMEM));
}

#[test]
fn kernels_before_cannot_restore_queues_of_this_gpu() {
    for kernel in [KernelModel::V6_12, KernelModel::V7_3] {
        let taken = small(kernel);
        assert_eq!(restore(&elsewhere(kernel), &taken).err(), Some(Errno::EINVAL), "{kernel}");
        let client = Client::pair_under(kernel);
        client.create_event(KFD_IOC_EVENT_SIGNAL, false, client.event_page()).unwrap();
        let taken = take(&client);
        let heir = elsewhere(kernel);
        restore(&heir, &taken).unwrap();
        resume(&heir).unwrap();
        assert_eq!(take(&heir).blob, taken.blob, "without queues it works on {kernel}");
    }
}

#[test]
fn restored_queue_holds_its_buffers() {
    let taken = small(KernelModel::Fixed);
    let heir = elsewhere(KernelModel::Fixed);
    restore(&heir, &taken).unwrap();
    let handle = |index: u64| u64::from(heir.id(0)) << 32 | index;
    for index in 0..4 {
        assert_eq!(heir.unmap(handle(index), 0), Err(Errno::EBUSY));
    }
    resume(&heir).unwrap();
    heir.destroy(0).unwrap();
    for index in 0..4 {
        heir.unmap(handle(index), 0).unwrap();
        heir.free(handle(index)).unwrap();
    }
    assert_eq!(heir.ledger.used(Resource::Queues(0)), 0);
    // RESTORE checks that every buffer of the queue is mapped.
    assert_eq!(after_word(FIRST_BO + 272 + 12, 0), Err(Errno::EINVAL));
}

#[test]
fn queue_parked_with_ring_0_comes_back_parked() {
    let client = Client::pair();
    let mut args = client.queue_parts(0, BASE).args;
    let id = client.create(&mut args).unwrap();
    update(&client, id, 0, 0x4000, 100).unwrap();
    let taken = take(&client);
    let heir = elsewhere(KernelModel::Fixed);
    restore(&heir, &taken).unwrap();
    resume(&heir).unwrap();
    assert_eq!(heir.hardware.running.lock().len(), 0);
    update(&heir, id, BASE + 0x1_0000, 0x4000, 100).unwrap();
    assert_eq!(heir.hardware.running.lock().len(), 1);
    heir.destroy(id).unwrap();
    heir.unmap(u64::from(heir.id(0)) << 32 | 1, 0).unwrap();
}

#[test]
fn descriptor_is_brought_into_the_save_areas_bounds() {
    let mut taken = small(KernelModel::Fixed);
    for dword in 174..178 {
        word(&mut taken, QUEUE + 120 + 4 * dword, 0xffff_fff0);
    }
    let heir = elsewhere(KernelModel::Fixed);
    restore(&heir, &taken).unwrap();
    resume(&heir).unwrap();
    let running = heir.hardware.running.lock();
    let waves = running[&(0, 0)].waves();
    assert_eq!((waves.control_stack_offset, waves.control_stack_bytes), (40_960, 0));
    assert_eq!((waves.wave_state_offset, running[&(0, 0)].word(177)), (46_047_232, 46_047_232));
}

#[test]
fn process_keeps_the_gpu_ids_it_knew() {
    let mut taken = small(KernelModel::Fixed);
    let actual = taken.devices[0].actual_gpu_id;
    // The ids that the process knew on another machine.
    let known = [0x1111, 0x2222];
    for (bucket, id) in taken.devices.iter_mut().zip(known) {
        bucket.user_gpu_id = id;
    }
    for bucket in &mut taken.bos {
        bucket.gpu_id = known[0];
    }
    for bo in 0..5 {
        word(&mut taken, FIRST_BO + 272 * bo + 12, known[0]);
    }
    word(&mut taken, QUEUE + 64, known[0]);
    word(&mut taken, EVENT + 12, known[0]);
    for kernel in [KernelModel::V7_3, KernelModel::Fixed] {
        let heir = elsewhere(kernel);
        let outcome = restore(&heir, &taken);
        assert_eq!(outcome.is_ok(), kernel == KernelModel::Fixed);
        assert_eq!(
            heir.unmap(u64::from(known[0]) << 32 | 4, 0),
            Err(Errno::EINVAL),
            "known by the old id only"
        );
        let cookie = |id: u32| 3 << 62 | u64::from(id) << 46;
        assert!(heir.process.mmap(&heir.kfd, 8192, cookie(known[0])).is_ok());
        assert_eq!(heir.process.mmap(&heir.kfd, 8192, cookie(actual)).unwrap_err(), Errno::ENODEV);
        // EXPORT_DMABUF compares with the hardware's own id.
        let mut export =
            kfd_ioctl_export_dmabuf_args { handle: u64::from(known[0]) << 32, ..Default::default() };
        assert_eq!(heir.call(AMDKFD_IOC_EXPORT_DMABUF, &mut export), Err(Errno::EINVAL));
    }
    let old = elsewhere(KernelModel::V6_12);
    assert_eq!(restore(&old, &taken).err(), Some(Errno::EINVAL), "the queue");
    let mmap = |id: u32| old.process.mmap(&old.kfd, 8192, 3 << 62 | u64::from(id) << 46).is_ok();
    assert_eq!((mmap(actual), mmap(known[0])), (true, false));
}
