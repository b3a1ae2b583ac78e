// SPDX-License-Identifier: MIT OR Apache-2.0
//! GEM_VA: every refusal, and how its mappings coexist with KFD's own.

use super::super::sharing::export;
use super::*;
use crate::driver::KernelModel;

#[test]
fn parts_of_an_object_are_mapped_where_they_are_wanted() {
    let space = Space::new();
    space.map(0, 2, 4).unwrap();
    space.map(2, 2, 0).unwrap();
    space.map(7, 1, 0).unwrap();
    let wanted = [Some(4), Some(5), Some(0), Some(1), None, None, None, Some(0), None, None];
    assert_eq!(space.seen(), wanted);
    let entry = space.client.hardware.page(0, VA).unwrap();
    assert_eq!((entry.access.read, entry.access.write, entry.access.execute), (true, true, false));
    space.unmap(2).unwrap();
    assert_eq!(space.seen()[2..4], [None, None]);
    assert_eq!(space.unmap(2), Err(Errno::ENOENT));
    assert_eq!(space.unmap(1), Err(Errno::ENOENT), "not where a mapping starts");
}

#[test]
fn permissions_are_those_that_were_asked_for() {
    let space = Space::new();
    let all = [READ, AMDGPU_VM_PAGE_WRITEABLE, AMDGPU_VM_PAGE_EXECUTABLE, 0, READ_WRITE | 2 << 5 | 1 | 0x200];
    for (page, flags) in all.into_iter().enumerate() {
        let args = va_args(AMDGPU_VA_OP_MAP, space.handle, page as u64, 1, 0);
        space.va(drm_amdgpu_gem_va { flags, ..args }).unwrap();
        let access = space.client.hardware.page(0, VA + page as u64 * PAGE).unwrap().access;
        assert_eq!(access.read, flags & READ != 0);
        assert_eq!(access.write, flags & AMDGPU_VM_PAGE_WRITEABLE != 0);
        assert_eq!(access.execute, flags & AMDGPU_VM_PAGE_EXECUTABLE != 0);
    }
}

#[test]
fn every_bad_argument_has_its_errno() {
    let space = Space::new();
    let good = va_args(AMDGPU_VA_OP_MAP, space.handle, 0, 2, 1);
    let hole = 0x8000_0000_0000;
    let bad = [
        ("reserved bottom", drm_amdgpu_gem_va { va_address: 0xf000, ..good }, Errno::EINVAL),
        ("hole", drm_amdgpu_gem_va { va_address: hole, ..good }, Errno::EINVAL),
        ("into the hole", drm_amdgpu_gem_va { va_address: hole - PAGE, ..good }, Errno::EINVAL),
        ("wraps", drm_amdgpu_gem_va { map_size: u64::MAX - PAGE + 1, ..good }, Errno::EINVAL),
        ("address in a page", drm_amdgpu_gem_va { va_address: VA + 8, ..good }, Errno::EINVAL),
        ("offset in a page", drm_amdgpu_gem_va { offset_in_bo: 8, ..good }, Errno::EINVAL),
        ("part of a page", drm_amdgpu_gem_va { map_size: 8, ..good }, Errno::EINVAL),
        ("no page", drm_amdgpu_gem_va { map_size: 0, ..good }, Errno::EINVAL),
        ("behind the object", drm_amdgpu_gem_va { offset_in_bo: 7 * PAGE, ..good }, Errno::EINVAL),
        ("offset wraps", drm_amdgpu_gem_va { offset_in_bo: !(PAGE - 1), ..good }, Errno::EINVAL),
        ("operation 0", drm_amdgpu_gem_va { operation: 0, ..good }, Errno::EINVAL),
        ("operation 5", drm_amdgpu_gem_va { operation: 5, ..good }, Errno::EINVAL),
        ("flag", drm_amdgpu_gem_va { flags: 0x400, ..good }, Errno::EINVAL),
        ("texture and readable", drm_amdgpu_gem_va { flags: 0x12, ..good }, Errno::EINVAL),
        ("texture", drm_amdgpu_gem_va { flags: 0x10, ..good }, Errno::EINVAL),
        ("handle", drm_amdgpu_gem_va { handle: 9, ..good }, Errno::ENOENT),
        ("handle 0", drm_amdgpu_gem_va { handle: 0, ..good }, Errno::ENOENT),
        ("sync object", drm_amdgpu_gem_va { vm_timeline_syncobj_out: 1, ..good }, Errno::ENOENT),
        ("fences at no address", drm_amdgpu_gem_va { num_syncobj_handles: 1, ..good }, Errno::EFAULT),
    ];
    for (what, args, errno) in bad {
        assert_eq!(space.va(args), Err(errno), "{what}");
        let replace = drm_amdgpu_gem_va { operation: AMDGPU_VA_OP_REPLACE, ..args };
        if args.operation == AMDGPU_VA_OP_MAP {
            assert_eq!(space.va(replace), Err(errno), "{what}");
        }
    }
    for (what, page, pages) in [("no page", 0, 0), ("wraps", 0, u64::MAX / PAGE)] {
        assert_eq!(space.clear(page, pages), Err(Errno::EINVAL), "{what}");
    }
    assert_eq!(space.client.hardware.take(), [], "nothing was mapped or unmapped");
    space.va(good).unwrap();
}

#[test]
fn fences_that_cannot_exist_are_unknown_and_old_kernels_do_not_look() {
    for (kernel, answer) in [(KernelModel::V7_3, Err(Errno::ENOENT)), (KernelModel::V6_12, Ok(0))] {
        let space = Space::of(Client::fresh_pair(kernel));
        let mut args = drm_amdgpu_gem_va {
            num_syncobj_handles: 1,
            input_fence_syncobj_handles: ARRAY,
            ..va_args(AMDGPU_VA_OP_MAP, space.handle, 0, 1, 0)
        };
        let memory = Memory::with(ARRAY, &[0; 4]);
        let cmd = DRM_IOCTL_AMDGPU_GEM_VA;
        let found = drm_with(&space.client, &space.file, cmd, &mut args, &memory, &Fds::default());
        assert_eq!(found, answer, "{kernel}");
    }
}

#[test]
fn struct_of_an_old_client_is_extended_with_zeros() {
    let space = Space::new();
    let args = va_args(AMDGPU_VA_OP_MAP, space.handle, 0, 1, 3);
    let mut old: [u64; 5] = bytemuck::pod_read_unaligned(&bytemuck::bytes_of(&args)[..40]);
    drm(&space.client, &space.file, 0x4028_6448, &mut old).unwrap();
    assert_eq!(space.seen()[0], Some(3));
}

#[test]
fn mapping_over_a_mapping_is_refused_whoever_made_it() {
    let space = Space::new();
    let client = &space.client;
    space.map(0, 3, 0).unwrap();
    assert_eq!(space.map(2, 2, 0), Err(Errno::EINVAL));
    let kfds = client.alloc(0, VA + 2 * PAGE, 2 * PAGE, GTT).unwrap();
    assert_eq!(client.map(kfds, 0), Err(Errno::EINVAL));
    let kfds = client.buffer(0, VA + 4 * PAGE, 2 * PAGE, GTT);
    assert_eq!(space.map(5, 1, 0), Err(Errno::EINVAL));
    assert_eq!(space.unmap(4), Err(Errno::ENOENT), "not a handle's mapping");
    for pages in [1, 2, 6] {
        assert_eq!(space.clear(4, pages), Err(Errno::EINVAL));
        assert_eq!(space.va(va_args(AMDGPU_VA_OP_REPLACE, space.handle, 4, pages, 0)), Err(Errno::EINVAL));
    }
    assert_eq!(space.seen(), [0, 1, 2, 9, 0, 1, 9, 9, 9, 9].map(|page| (page != 9).then_some(page)));
    client.unmap(kfds, 0).unwrap();
    space.map(5, 1, 0).unwrap();
}

#[test]
fn kfds_mapping_of_the_same_memory_is_another_matter() {
    let space = Space::new();
    let client = &space.client;
    let buffer = client.alloc(0, VA, 2 * PAGE, GTT).unwrap();
    let handle = prime_import(client, &space.file, export(client, buffer).unwrap()).unwrap();
    space.va(va_args(AMDGPU_VA_OP_MAP, handle, 4, 1, 1)).unwrap();
    client.map(buffer, 0).unwrap();
    assert_eq!(space.va(va_args(AMDGPU_VA_OP_UNMAP, handle, 0, 0, 0)), Err(Errno::ENOENT));
    client.unmap(buffer, 0).unwrap();
    assert_eq!(space.seen()[4], Some(1));
    client.free(buffer).unwrap();
    assert_eq!(space.seen()[4], Some(1), "the handle keeps what KFD freed");
    close(client, &space.file, handle).unwrap();
    assert_eq!(space.seen()[4], None);
}

#[test]
fn only_the_acquired_file_has_the_compute_address_space() {
    let space = Space::new();
    let (second, _token) = space.client.render(0);
    let handle = prime_import(&space.client, &second, &space.dmabuf).unwrap();
    let mut args = va_args(AMDGPU_VA_OP_MAP, handle, 0, 1, 0);
    assert_eq!(drm(&space.client, &second, DRM_IOCTL_AMDGPU_GEM_VA, &mut args), Err(Errno::EINVAL));
    assert_eq!(space.client.hardware.take(), []);
    close(&space.client, &second, handle).unwrap();
}

#[test]
fn memory_that_a_queue_uses_stays_mapped() {
    let space = Space::new();
    let client = &space.client;
    let mut parts = client.queue_parts(0, 0x1_0000_0000);
    client.unmap(parts.ring, 0).unwrap();
    let ring = prime_import(client, &space.file, export(client, parts.ring).unwrap()).unwrap();
    let mut args = drm_amdgpu_gem_va {
        va_address: parts.args.ring_base_address,
        ..va_args(AMDGPU_VA_OP_MAP, ring, 0, 4, 0)
    };
    space.va(args).unwrap();
    client.create(&mut parts.args).unwrap();
    for operation in [AMDGPU_VA_OP_UNMAP, AMDGPU_VA_OP_CLEAR, AMDGPU_VA_OP_REPLACE] {
        args.operation = operation;
        assert_eq!(space.va(args), Err(Errno::EBUSY), "{operation}");
    }
    assert_eq!(close(client, &space.file, ring), Err(Errno::EBUSY));
    client.destroy(0).unwrap();
    close(client, &space.file, ring).unwrap();
}

#[test]
fn hardware_that_refuses_leaves_nothing_mapped() {
    let space = Space::new();
    space.client.hardware.refuse_map.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(space.map(0, 1, 0), Err(Errno::ENOMEM));
    space.client.hardware.refuse_map.store(false, std::sync::atomic::Ordering::Relaxed);
    space.map(0, 1, 0).unwrap();
}

#[test]
fn parts_may_lie_on_both_gpus() {
    let client = Client::fresh_pair(KernelModel::default());
    let files = [client.acquire(0), client.acquire(1)];
    let dmabuf = export(&client, client.alloc(0, 0, 4 * PAGE, VRAM).unwrap()).unwrap();
    for (gpu, file) in files.iter().enumerate() {
        let handle = prime_import(&client, file, &dmabuf).unwrap();
        let mut args = va_args(AMDGPU_VA_OP_MAP, handle, gpu as u64, 2, gpu as u64);
        drm(&client, file, DRM_IOCTL_AMDGPU_GEM_VA, &mut args).unwrap();
    }
    let offset = |gpu, page| client.hardware.page(gpu, VA + page * PAGE).map(|entry| entry.offset / PAGE);
    assert_eq!([offset(0, 0), offset(0, 1), offset(0, 2)], [Some(0), Some(1), None]);
    assert_eq!([offset(1, 0), offset(1, 1), offset(1, 2)], [None, Some(1), Some(2)]);
}
