// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process with some of everything: saved, restored, saved; and what a client sees of it.

use std::os::fd::{AsFd, OwnedFd};

use kfd::sys::*;
use nix::errno::Errno;
use queues::aql::ExceptionCode;

use super::super::criu::round_trip::{with_buffers, with_events, with_queues};
use super::super::drm::contexts::{alloc as make_context, ctx};
use super::super::drm::metadata::{get as get_metadata, set as set_metadata};
use super::super::drm::{READ, close, drm, gem_mmap, prime_import, va_args};
use super::super::queues::{BASE, update};
use super::super::sharing::{export, import};
use super::super::svm;
use super::*;
use crate::driver::ledger::Resource;
use crate::driver::{KernelModel, OpenFile, UserPages, memfd};
use crate::hardware::{Interrupts, Mqd};

const PAGE: u64 = 4096;

/// A process with some of everything.
pub struct Busy {
    pub client: Client,
    pub file: OpenFile,
    pub token: OwnedFd,
    pub handle: u32,
    /// Of the buffer behind that handle.
    pub dmabuf: OwnedFd,
    pub queues: [u32; 6],
}

pub fn busy(kernel: KernelModel) -> Busy {
    let client = Client::with_svm_under(kernel, "gfx1100*2");
    let (file, token) = client.render(0);
    client.acquire_with(0, &token).unwrap();
    client.acquire(1);
    with_events(&client);
    with_buffers(&client);
    let [first, second, third, fourth, parked] = with_queues(&client);
    let ranged = with_ranges(&client);
    let queues = [first, second, third, fourth, parked, ranged];
    // Memory of the client in two files, and a part of it in a second buffer.
    let userptr = |va, user: u64, size, pages| {
        let mut args = client.alloc_args(0, va, size, KFD_IOC_ALLOC_MEM_FLAGS_USERPTR);
        args.mmap_offset = user;
        client
            .call_with(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &mut args, &Memory::default(), &Fds::of_pages(pages))
            .unwrap();
        client.map(args.handle, 0).unwrap();
        args.handle
    };
    let new = |pages: u64| {
        let bytes = pages * PAGE;
        UserPages::New { fd: memfd::create("stasis-userptr", bytes).unwrap(), bytes, writable: true }
    };
    let first = userptr(0x7a00_0000, 0x5_6000, 3 * PAGE, vec![new(1), new(2)]);
    let part = UserPages::Of { handle: first, offset: PAGE, bytes: PAGE };
    userptr(0x7b00_0000, 0x5_7000, PAGE, vec![part]);
    // A buffer with two handles of KFD and one of the render node, mapped in parts.
    let shared = client.alloc(0, 0, 8 * PAGE, GTT).unwrap();
    let dmabuf = export(&client, shared).unwrap();
    import(&client, 1, 0x7c00_0000, &dmabuf).unwrap();
    let gone = prime_import(&client, &file, export(&client, first_vram(&client)).unwrap()).unwrap();
    let handle = prime_import(&client, &file, &dmabuf).unwrap();
    close(&client, &file, gone).unwrap();
    let va = |args: drm_amdgpu_gem_va| {
        drm(&client, &file, DRM_IOCTL_AMDGPU_GEM_VA, &mut { args }).unwrap();
    };
    va(va_args(AMDGPU_VA_OP_MAP, handle, 0, 6, 2));
    va(drm_amdgpu_gem_va { flags: READ, ..va_args(AMDGPU_VA_OP_REPLACE, handle, 4, 2, 6) });
    va(va_args(AMDGPU_VA_OP_CLEAR, 0, 1, 1, 0));
    set_metadata(&client, &file, handle, b"tiled").unwrap();
    // Memory of another driver, and memory whose descriptor cannot write.
    let foreign = memfd::create("another-driver", PAGE).unwrap();
    import(&client, 0, 0, &foreign).unwrap();
    let read_only = memfd::reopen_read_only(export(&client, first_vram(&client)).unwrap().as_fd()).unwrap();
    prime_import(&client, &client.render(1).0, &read_only).unwrap();
    make_context(&client, &file).unwrap();
    let second = make_context(&client, &file).unwrap();
    make_context(&client, &file).unwrap();
    ctx(&client, &file, AMDGPU_CTX_OP_FREE_CTX, second).unwrap();
    let mut trap = kfd_ioctl_set_trap_handler_args {
        tba_addr: 0x1_2000,
        tma_addr: 0x1_3000,
        gpu_id: client.id(1),
        pad: 0,
    };
    client.call(AMDKFD_IOC_SET_TRAP_HANDLER, &mut trap).unwrap();
    let mut scratch =
        kfd_ioctl_set_scratch_backing_va_args { va_addr: 77 << 16, gpu_id: client.id(0), pad: 0 };
    client.call(AMDKFD_IOC_SET_SCRATCH_BACKING_VA, &mut scratch).unwrap();
    Busy { client, file, token, handle, dmabuf, queues }
}

/// Where the ranges are.
pub const RANGES: u64 = 0x9_0000_0000;

/// Ranges of shared virtual memory: for one GPU or two, read-only, in several pieces of memory, with attributes alone; and a
/// queue that has its save area in one.
fn with_ranges(client: &Client) -> u32 {
    let ids = [0, 1].map(|gpu| client.id(gpu));
    let attributes = [
        (svm::ACCESS, ids[0]),
        (KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, ids[1]),
        (KFD_IOCTL_SVM_ATTR_PREFETCH_LOC, 0),
    ];
    svm::set(client, RANGES, 4, &attributes, svm::new(4 * PAGE)).unwrap();
    svm::set(client, RANGES + PAGE, 2, &[(svm::IN_PLACE, ids[1])], svm::unchanged(2 * PAGE)).unwrap();
    let flags = KFD_IOCTL_SVM_FLAG_GPU_RO | KFD_IOCTL_SVM_FLAG_GPU_EXEC;
    svm::set(client, RANGES + 3 * PAGE, 1, &[(svm::SET_FLAGS, flags)], svm::unchanged(PAGE)).unwrap();
    let constants = UserPages::New { fd: memfd::create("user", PAGE).unwrap(), bytes: PAGE, writable: false };
    svm::set(client, RANGES + 4 * PAGE, 1, &[(svm::ACCESS, ids[1])], constants).unwrap();
    svm::set(client, RANGES + 6 * PAGE, 2, &[(svm::GRANULARITY, 3)], svm::unchanged(2 * PAGE)).unwrap();
    let flags = KFD_IOCTL_SVM_FLAG_GPU_ALWAYS_MAPPED;
    let (mut args, _) = svm::queue_with_range(client, BASE + 0x3_0000_0000, flags);
    client.create(&mut args).unwrap()
}

fn first_vram(client: &Client) -> u64 {
    client.alloc(0, 0, PAGE, VRAM).unwrap()
}

#[test]
fn saved_restored_and_saved_again_is_equal() {
    for kernel in [KernelModel::V6_12, KernelModel::V7_3, KernelModel::Fixed] {
        let before = busy(kernel);
        let (state, memories) = save(&before.client);
        let after = restore(&before.client, &state, &memories).unwrap();
        let (again, found) = after.process.save().unwrap();
        assert_eq!(again, state, "{kernel}");
        let names = |memories: &Memories| {
            memories.iter().map(|memory| (memory.name.clone(), memory.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(names(&found.into_iter().collect()), names(&memories));
        let mut wanted: Vec<_> = state.memories().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
        wanted.sort();
        assert_eq!(wanted, names(&memories));
        // As bytes and as text.
        let bytes = postcard::to_stdvec(&state).unwrap();
        assert_eq!(postcard::from_bytes::<ProcessState>(&bytes).unwrap(), state);
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<ProcessState>(&text).unwrap(), state);
    }
}

#[test]
fn every_change_is_saved() {
    let Busy { client, file, handle, queues, .. } = busy(KernelModel::V7_3);
    let mut states = vec![save(&client).0];
    type Change<'a> = Box<dyn Fn() -> bool + 'a>;
    let changes: Vec<Change<'_>> = vec![
        Box::new(|| client.render(0).0.id() > 0),
        Box::new(|| client.alloc(1, 0, PAGE, GTT).is_ok()),
        Box::new(|| client.map(u64::from(client.id(1)) << 32, 1).is_ok()),
        Box::new(|| client.set(1).is_ok()),
        Box::new(|| client.create_event(KFD_IOC_EVENT_SIGNAL, false, 0).is_ok()),
        Box::new(|| update(&client, queues[1], BASE + 0x1_0000, 0x4000, 7).is_ok()),
        Box::new(|| client.destroy(queues[2]).is_ok()),
        Box::new(|| (client.process.lose_queues(0), true).1),
        Box::new(|| make_context(&client, &file).is_ok()),
        Box::new(|| set_metadata(&client, &file, handle, b"linear").is_ok()),
        Box::new(|| {
            drop(client.process.open("/dev/kfd").unwrap());
            !client.process.forget_closed().is_empty()
        }),
        Box::new(|| close(&client, &file, handle).is_ok()),
        Box::new(|| svm::set(&client, RANGES, 1, &[(svm::GRANULARITY, 5)], svm::unchanged(PAGE)).is_ok()),
        Box::new(|| {
            svm::set(&client, RANGES + 7 * PAGE, 1, &[(svm::ACCESS, client.id(1))], svm::new(PAGE)).is_ok()
        }),
        Box::new(|| client.process.svm_unmapped(RANGES + PAGE, PAGE).is_ok()),
    ];
    for (number, change) in changes.iter().enumerate() {
        assert!(change(), "change {number}");
        let state = client.process.save().unwrap().0;
        assert!(!states.contains(&state), "change {number}");
        states.push(state);
    }
}

#[test]
fn the_client_sees_no_difference() {
    let before = busy(KernelModel::Fixed);
    // What was made last in the first process would be next in both.
    let (state, memories) = save(&before.client);
    let after = restore(&before.client, &state, &memories).unwrap();
    assert_eq!(after.hardware.running.lock().len(), 0);
    before.client.process.resume().unwrap();
    after.process.resume().unwrap();
    let running = |client: &Client| {
        client.hardware.running.lock().iter().map(|(id, mqd)| (*id, mqd.clone())).collect::<Vec<(_, Mqd)>>()
    };
    assert!(running(&before.client) == running(&after) && running(&after).len() == 5);
    let pages = |client: &Client| client.hardware.pages.lock().clone();
    assert_eq!(pages(&before.client), pages(&after), "the same memory with the same permissions");
    let trap = Step::TrapHandler { gpu: 1, code: 0x1_2000, data: 0x1_3000 };
    assert!(after.hardware.take().contains(&trap));
    assert_eq!(before.client.process.gpu_settings(0), after.process.gpu_settings(0));
    assert_eq!(before.client.process.object_counts(), after.process.object_counts());

    let Busy { file, handle, ref dmabuf, .. } = before;
    let look = |client: &Client| {
        let path = format!("/dev/dri/renderD{}", client.gpus[0].render_minor());
        assert_eq!(client.process.adopt(&path, before.token.as_fd()).unwrap(), file);
        // One that was given out before finds the memory that it did.
        let offset = gem_mmap(client, &file, handle).unwrap();
        let mapped = client.process.mmap(&file, 8 * PAGE, offset).unwrap();
        assert_eq!(memfd::identity(mapped.fd.as_fd()), memfd::identity(dmabuf.as_fd()));
        assert_eq!(prime_import(client, &file, dmabuf).unwrap(), handle, "it has one handle");
        assert_eq!(bytemuck::cast_slice::<_, u8>(&get_metadata(client, &file, handle).data)[..5], *b"tiled");
        let asked = [(svm::GRANULARITY, 0), (svm::SET_FLAGS, 0), (svm::ACCESS, client.id(0))];
        let pages = (0..8).map(|page| svm::get(client, RANGES + page * PAGE, 1, &asked).unwrap());
        let ranges: Vec<_> = pages.collect();
        let ages: Vec<_> = [1, 3].map(|id| client.process.events.lock().get(id).unwrap().age).into();
        let next = [
            client.alloc(0, 0, PAGE, GTT).unwrap(),
            import(client, 1, 0, dmabuf).unwrap(),
            client.render(1).0.id(),
            u64::from(make_context(client, &file).unwrap()),
            u64::from(client.create_event(KFD_IOC_EVENT_SIGNAL, false, 0).unwrap()),
            u64::from(client.create_event(KFD_IOC_EVENT_MEMORY, false, 0).unwrap()),
        ];
        let mut args = client.queue_parts(0, BASE + 0x1_0000_0000).args;
        let id = client.create(&mut args).unwrap();
        let mut copies = kfd_ioctl_create_queue_args { queue_type: KFD_IOC_QUEUE_TYPE_SDMA, ..args };
        let copier = client.create(&mut copies).unwrap();
        (ranges, ages, next, id, args.doorbell_offset, copier, copies.doorbell_offset)
    };
    assert_eq!(look(&before.client), look(&after));
    assert_eq!(after.free(u64::from(after.id(0)) << 32), Err(Errno::EPERM), "the event page");
    after.wait(&[(1, 0)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
}

#[test]
fn the_ledger_is_as_it_was_and_everything_can_be_given_back() {
    let before = busy(KernelModel::V7_3);
    let (state, memories) = save(&before.client);
    let after = restore(&before.client, &state, &memories).unwrap();
    let used = |ledger: &Ledger| {
        [
            Resource::Vram(0),
            Resource::Vram(1),
            Resource::Queues(0),
            Resource::Queues(1),
            Resource::System,
            Resource::Ttm,
        ]
        .map(|resource| ledger.used(resource))
    };
    let full = used(&before.client.ledger);
    assert_eq!(used(&after.ledger), full);
    // A device that has not enough left is left as it is.
    let ledger = ledger_of(&after.gpus);
    let other = ledger.claim(9).unwrap();
    let spare = ledger.capacity(Resource::Vram(0)) - (full[0] / 2);
    other.reserve(Resource::Vram(0), spare).unwrap();
    let empty = used(&ledger);
    match restore_with(&before.client, &ledger, &state, &memories) {
        Err(PersistError::Exhausted { resource: Resource::Vram(0), .. }) => {}
        other => panic!("{:?}", other.map(drop)),
    }
    other.release(Resource::Vram(0), spare);
    let copier = other.reserve_sdma(0, after.gpus[0].sdma_queue_ids()).unwrap();
    match restore_with(&before.client, &ledger, &state, &memories) {
        Err(PersistError::CopyQueueTaken { gpu: 0, id }) => assert_eq!(id, copier),
        other => panic!("{:?}", other.map(drop)),
    }
    other.release_sdma(0, copier);
    assert_eq!(used(&ledger), [0, empty[1], 0, 0, 0, 0]);
    let third = restore_with(&before.client, &ledger, &state, &memories).unwrap();
    assert_eq!(used(&ledger), full);

    third.process.resume().unwrap();
    before.queues.into_iter().for_each(|id| assert_eq!(third.destroy(id), Ok(0)));
    let handles: Vec<u64> = {
        let state = third.process.state.lock();
        let of = |(gpu, pdd): (usize, &crate::driver::process::Pdd)| {
            pdd.bos
                .iter()
                .map(|(index, bo)| (u64::from(third.id(gpu)) << 32 | u64::from(index), bo.mapped))
                .collect::<Vec<_>>()
        };
        let all: Vec<_> = state.pdds.iter().enumerate().flat_map(of).collect();
        drop(state);
        for (handle, mapped) in &all {
            for gpu in (0..2).filter(|gpu| mapped & 1 << gpu != 0) {
                assert_eq!(third.unmap(*handle, gpu), Ok(0));
            }
        }
        all.into_iter().map(|(handle, _)| handle).collect()
    };
    close(&third, &before.file, before.handle).unwrap();
    third.process.svm_unmapped(0, 1 << 47).unwrap();
    let freed = handles.into_iter().filter(|handle| third.free(*handle).is_ok()).count();
    assert!(freed > 10, "{freed}");
    // The event page, and the memory whose handle the other render file has.
    assert_eq!(used(&ledger), [2 << 20, 0, 0, 0, 32768, 32768]);
}

#[test]
fn reasons_for_eviction_and_lost_queues_outlive_it() {
    let client = Client::pair();
    let ids = [0, 1].map(|gpu| client.create(&mut client.queue_parts(gpu, BASE).args).unwrap());
    client.process.lose_queues(1);
    let fault = crate::hardware::VmFault { address: 0, permission_faults: crate::hardware::VmFault::VALID };
    client.process.memory_fault(0, fault);
    let (state, memories) = save(&client);
    let after = restore(&client, &state, &memories).unwrap();
    after.process.resume().unwrap();
    assert_eq!(after.hardware.running.lock().len(), 0);
    assert_eq!(update(&after, ids[1], BASE + 0x1_0000, 0x4000, 100), Err(Errno::EACCES));
    ids.into_iter().for_each(|id| assert_eq!(after.destroy(id), Ok(0)));
}

#[test]
fn the_drivers_own_event_page_comes_back_with_its_slots() {
    let client = Client::ready();
    let first = client.create_event(KFD_IOC_EVENT_SIGNAL, false, 0).unwrap();
    let second = client.create_event(KFD_IOC_EVENT_SIGNAL, true, 0).unwrap();
    let page = client.process.mmap(&client.kfd, 4096, KFD_MMAP_TYPE_EVENTS).unwrap();
    for _ in 0..5 {
        client.set(first).unwrap();
    }
    // The GPU has written, and its interrupt is still to come.
    nix::sys::uio::pwrite(&page.fd, &7u64.to_le_bytes(), 8 * i64::from(second)).unwrap();
    let (state, memories) = save(&client);
    let after = restore(&client, &state, &memories).unwrap();
    after.process.resume().unwrap();
    assert_eq!(after.process.events.lock().get(first).unwrap().age, 6);
    after.wait(&[(first, 6)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    after.process.end_of_pipe(second);
    after.wait(&[(second, 0)], false, 0).is(Ok(0), KFD_IOC_WAIT_RESULT_COMPLETE);
    let again = after.process.mmap(&after.kfd, 4096, KFD_MMAP_TYPE_EVENTS).unwrap();
    assert_eq!(memfd::identity(again.fd.as_fd()), memfd::identity(page.fd.as_fd()));
}

#[test]
fn runtime_and_pause_of_criu_op_come_back() {
    let client = Client::pair();
    let mut args = kfd_ioctl_runtime_enable_args { r_debug: 0x1234, mode_mask: 3, capabilities_mask: 0 };
    client.call(AMDKFD_IOC_RUNTIME_ENABLE, &mut args).unwrap();
    client.create(&mut client.queue_parts(0, BASE).args).unwrap();
    let (state, memories) = save(&client);
    let after = restore(&client, &state, &memories).unwrap();
    assert_eq!(after.process.runtime(), client.process.runtime());
    assert_eq!(after.call(AMDKFD_IOC_RUNTIME_ENABLE, &mut args), Err(Errno::EBUSY));
    after.process.queue_exception(0, 0, ExceptionCode::WaveTrap);
}

#[test]
fn only_a_paused_process_on_the_same_gpus_is_saved_and_restored() {
    let client = Client::ready();
    assert!(matches!(client.process.save(), Err(PersistError::NotPaused)));
    let (state, memories) = save(&client);
    let pair = Client::pair();
    match restore(&pair, &state, &memories) {
        Err(PersistError::Gpus { saved, found }) => assert_eq!((saved.len(), found.len()), (1, 2)),
        other => panic!("{:?}", other.map(drop)),
    }
    let none = Memories::new();
    assert!(matches!(restore(&client, &state, &none), Err(PersistError::NoMemory { .. })));
}
