// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoint, change, restore, checkpoint: the two checkpoints are equal.

use super::super::faults::eventually;
use super::super::queues::{BASE, update};
use super::*;
use crate::hardware::{Interrupts, SavedWaves, VmFault, mqd_field};

const SIGNAL: u32 = KFD_IOC_EVENT_SIGNAL;

fn cu_mask(client: &Client, queue_id: u32, words: &[u32]) {
    let memory = Memory::with(ARRAY, bytemuck::cast_slice(words));
    let num_cu_mask = 32 * words.len() as u32;
    let mut args = kfd_ioctl_set_cu_mask_args { queue_id, num_cu_mask, cu_mask_ptr: ARRAY };
    client.call_with(AMDKFD_IOC_SET_CU_MASK, &mut args, &memory, &Fds::default()).unwrap();
}

/// Buffers of every kind, mapped on no GPU, on some or on all, with gaps between their indices.
pub fn with_buffers(client: &Client) {
    client.buffer(0, 0x7100_0000, 8192, VRAM | KFD_IOC_ALLOC_MEM_FLAGS_EXECUTABLE);
    let gap = client.alloc(0, 0, 4096, GTT).unwrap();
    let shared = client.buffer(0, 0x7200_0000, 4096, VRAM);
    client.map(shared, 1).unwrap();
    client.free(gap).unwrap();
    // On the second GPU, mapped on the first only; read-only; without address.
    let peer = client.alloc(1, 0x7300_0000, 12288, KFD_IOC_ALLOC_MEM_FLAGS_GTT).unwrap();
    client.map(peer, 0).unwrap();
    client.alloc(1, 0, 4096, GTT).unwrap();
    client.buffer(1, 0x7400_0000, 8192, KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL);
    client.buffer(1, 0x7500_0000, 4096, KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP);
    let mut args = client.alloc_args(0, 0x7600_0000, 4096, KFD_IOC_ALLOC_MEM_FLAGS_USERPTR);
    args.mmap_offset = 0x5_5000;
    let pages = Fds::memory(memfd::create("pages", 4096).unwrap());
    client.call_with(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args, &Memory::default(), &pages).unwrap();
    // This buffer lies below the first address of the GPU: it belongs to the trap handler and is in no checkpoint.
    client.alloc(0, 0x1000, 4096, GTT).unwrap();
}

/// AQL, PM4 and SDMA queues on both GPUs, a gap in their numbers, one of them parked.
pub fn with_queues(client: &Client) -> [u32; 5] {
    let mut aql = client.queue_parts(0, BASE).args;
    let mut pm4 = client.queue_parts(1, BASE).args;
    pm4.queue_type = KFD_IOC_QUEUE_TYPE_COMPUTE;
    (pm4.queue_priority, pm4.queue_percentage) = (11, 50);
    let mut sdma = aql;
    sdma.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
    let gone = client.create(&mut aql).unwrap();
    let first = client.create(&mut aql).unwrap();
    let second = client.create(&mut pm4).unwrap();
    let third = client.create(&mut sdma).unwrap();
    sdma.queue_type = KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID;
    sdma.sdma_engine_id = 1;
    let fourth = client.create(&mut sdma).unwrap();
    let parked = client.create(&mut aql).unwrap();
    update(client, parked, BASE + 0x1_0000, 0x4000, 0).unwrap();
    client.destroy(gone).unwrap();
    cu_mask(client, first, &[0x0000_00ff, 3]);
    let mut gws = kfd_ioctl_alloc_queue_gws_args { queue_id: first, num_gws: 64, ..Default::default() };
    client.call(AMDKFD_IOC_ALLOC_QUEUE_GWS, &mut gws).unwrap();
    [first, second, third, fourth, parked]
}

/// Events of every kind that is restored, signalled or not, with their payloads.
pub fn with_events(client: &Client) {
    let page = client.event_page();
    let signalled = client.create_event(SIGNAL, false, page).unwrap();
    let gone = client.create_event(SIGNAL, false, 0).unwrap();
    let auto = client.create_event(SIGNAL, true, 0).unwrap();
    client.create_event(KFD_IOC_EVENT_DEBUG_EVENT, true, 0).unwrap();
    client.create_event(KFD_IOC_EVENT_MEMORY, false, 0).unwrap();
    let reset = client.create_event(KFD_IOC_EVENT_HW_EXCEPTION, false, 0).unwrap();
    client.set(signalled).unwrap();
    client.set(auto).unwrap();
    client.destroy_event(gone).unwrap();
    // No queue exists yet, so that the reset loses none.
    client.process.hang(1);
    eventually(|| client.process.events.lock().get(reset).unwrap().signaled);
    let fault = VmFault { address: 0xdead_b000, permission_faults: VmFault::VALID | VmFault::READ };
    client.process.memory_fault(1, fault);
}

fn busy() -> (Client, [u32; 5]) {
    let client = Client::pair_under(KernelModel::Fixed);
    with_events(&client);
    with_buffers(&client);
    let queues = with_queues(&client);
    (client, queues)
}

#[test]
fn checkpoint_restore_checkpoint_is_equal() {
    let (client, queues) = busy();
    let info = pause(&client).unwrap();
    let taken = checkpoint(&client, &info).unwrap();
    unpause(&client).unwrap();
    // The checkpoint is a copy: a change of the process shows only in a second one.
    update(&client, queues[1], BASE + 0x1_0000, 0x4000, 7).unwrap();
    client.reset(1).unwrap();
    assert_ne!(take(&client).blob, taken.blob);

    let heir = elsewhere(KernelModel::Fixed);
    let (bos, places) = restore(&heir, &taken).unwrap();
    assert!(bos.iter().all(|bucket| bucket.dmabuf_fd == u32::MAX));
    assert_eq!(places.len(), taken.memory.len(), "one descriptor for each that the checkpoint had");
    let again = take(&heir);
    assert_eq!(again.blob, taken.blob);
    assert_eq!(again.buckets(), taken.buckets());
    assert_eq!(again.devices, taken.devices);
    assert_eq!(again.args, taken.args);
    for (bucket, restored) in again.bos.iter().zip(&bos) {
        let userptr = bucket.alloc_flags & KFD_IOC_ALLOC_MEM_FLAGS_USERPTR != 0;
        assert!(userptr || bucket.offset == restored.restored_offset, "{bucket:?} {restored:?}");
    }
}

#[test]
fn blob_holds_what_the_process_was() {
    let (client, queues) = busy();
    let taken = take(&client);
    let blob = taken.parse();
    let ids = [client.id(0), client.id(1)].map(kfd::GpuId);
    let at = |va| taken.bos.iter().position(|bucket| bucket.addr == va).unwrap();
    let mapped = |va| blob.bos[at(va)].mapped.as_slice();
    assert_eq!((mapped(0x7200_0000), mapped(0x7300_0000)), (&ids[..], &ids[..1]));
    assert_eq!(mapped(0), []);
    assert_eq!(blob.bos[at(0x7600_0000)].user_address, 0x5_5000);
    assert!(taken.bos.iter().all(|bucket| bucket.addr != 0x1000));
    let memory = |va| taken.memory.get(&at(va)).map(|fd| memfd::sealed_bytes(fd.as_fd()).unwrap());
    assert_eq!((memory(0x7100_0000), memory(0x7300_0000)), (Some(8192), Some(12288)));
    assert_eq!([0x7400_0000, 0x7500_0000, 0x7600_0000].map(memory), [None, None, None]);
    // The descriptor of a buffer that the GPU cannot write is read-only.
    let read_only = &taken.memory[&at(0x7300_0000)];
    assert!(nix::sys::uio::pwrite(read_only, b"x", 0).is_err());
    let found: Vec<_> = blob.queues.iter().map(|queue| (queue.data.q_id, queue.mqd.len())).collect();
    // Sorted by GPU, then by number.
    let [first, second, third, fourth, parked] = queues;
    assert_eq!(found, [(first, 2048), (third, 512), (fourth, 512), (parked, 2048), (second, 2048)]);
    assert!(blob.queues.iter().all(|queue| queue.control_stack.is_empty()));
    let data = blob.queues[4].data;
    assert_eq!((data.queue_type, data.format, data.priority, data.q_percent), (0, 0, 11, 50));
    assert_eq!((data.gpu_id, data.eop_ring_buffer_size), (client.id(1), 4096));
    assert_eq!((blob.queues[0].data.gws, blob.queues[0].data.format), (1, KFD_QUEUE_FORMAT_AQL));
    assert_eq!((blob.queues[3].data.q_percent, blob.queues[2].data.queue_type), (0, KFD_QUEUE_TYPE_SDMA));
    let events = &blob.events;
    assert_eq!(events[0].user_handle, u64::from(client.id(0)) << 32);
    assert!(events[1..].iter().all(|event| event.user_handle == 0));
    let brief = |at: usize| (events[at].event_id, events[at].event_type, events[at].signaled);
    assert_eq!([brief(0), brief(1), brief(2)], [(1, 0, 1), (3, 0, 1), (4, 5, 0)]);
    assert_eq!((events[0].auto_reset, events[1].auto_reset), (0, 1));
    assert_eq!((events[3].event_type, events[3].payload[2]), (KFD_IOC_EVENT_MEMORY, 0xdead_b000));
    assert_eq!(events[4].payload, [0, 1 | u64::from(client.id(1)) << 32, 0, 0]);
}

#[test]
fn queues_come_back_stopped_and_run_from_where_they_were() {
    let (client, [first, second, third, fourth, _]) = busy();
    let waves = SavedWaves {
        control_stack_offset: 40_000,
        control_stack_bytes: 960,
        wave_state_offset: 60_000,
        wave_state_bytes: 19_040,
    };
    // The queues stop in the order of their numbers.
    *client.hardware.saved.lock() = Some(waves);
    let taken = take(&client);
    let heir = elsewhere(KernelModel::Fixed);
    restore(&heir, &taken).unwrap();
    assert_eq!(heir.hardware.running.lock().len(), 0);
    let masks = client.process.cu_mask(first);
    assert_eq!(masks.unwrap()[..2], [3, 3]);
    assert_eq!(heir.process.cu_mask(first), masks);
    heir.hardware.take();
    resume(&heir).unwrap();
    let started: Vec<_> = heir.hardware.take();
    assert_eq!(started.len(), 4, "all but the parked one: {started:?}");
    let running = heir.hardware.running.lock();
    assert_eq!(running[&(0, first)].waves(), waves);
    assert_eq!(running[&(0, first)].word(mqd_field::SAVE_AREA_SIZE), 46_047_232);
    for (gpu, id) in [(0, first), (1, second), (0, third), (0, fourth)] {
        assert_eq!(running[&(gpu, id)].word(STOPS), 1, "{id}");
    }
    drop(running);
    assert_eq!(resume(&heir), Err(Errno::EINVAL), "once");
}

#[test]
fn doorbells_ids_and_handles_go_on_where_they_were() {
    let (client, _) = busy();
    let taken = take(&client);
    unpause(&client).unwrap();
    let heir = elsewhere(KernelModel::Fixed);
    restore(&heir, &taken).unwrap();
    resume(&heir).unwrap();
    // Both processes give the next object of each kind the same number.
    let next = |client: &Client| {
        let [mut aql, mut sdma] = [client.queue_parts(0, BASE + 0x1_0000_0000).args; 2];
        sdma.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
        let ids = [client.create(&mut aql).unwrap(), client.create(&mut sdma).unwrap()];
        let event = client.create_event(SIGNAL, false, 0).unwrap();
        let handle = client.alloc(0, 0, 4096, GTT).unwrap();
        (ids, aql.doorbell_offset, sdma.doorbell_offset, event, handle)
    };
    let (mine, theirs) = (next(&client), next(&heir));
    // The index of the buffer that the checkpoint left out is free.
    assert_eq!((mine.0, mine.1, mine.2, mine.3), (theirs.0, theirs.1, theirs.2, theirs.3));
    assert_eq!(heir.free(u64::from(heir.id(0)) << 32), Err(Errno::EPERM), "the event page");
    heir.wait(&[(1, 0)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    // Ages begin at 0 again: a wait with an old age ends at once.
    let waited = heir.wait(&[(4, 0)], false, 0);
    waited.is(Ok(0), KFD_IOC_WAIT_RESULT_TIMEOUT);
}

#[test]
fn mappings_are_entered_with_their_permissions() {
    let (client, _) = busy();
    let taken = take(&client);
    let heir = elsewhere(KernelModel::Fixed);
    heir.hardware.take();
    restore(&heir, &taken).unwrap();
    let steps = heir.hardware.take();
    let map = |gpu, va, bytes, write, execute| Step::Map { gpu, va, bytes, write, execute };
    assert!(steps.contains(&map(0, 0x7100_0000, 8192, true, true)));
    assert!(steps.contains(&map(1, 0x7200_0000, 4096, true, false)));
    assert!(steps.contains(&map(0, 0x7300_0000, 12288, false, false)));
    assert!(steps.iter().all(|step| matches!(step, Step::Map { .. })), "nothing else happened");
}
