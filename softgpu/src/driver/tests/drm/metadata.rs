// SPDX-License-Identifier: MIT OR Apache-2.0
//! GEM_METADATA, GET_DMABUF_INFO's copy of it, and GEM_OP.

use super::super::sharing::export;
use super::*;
use crate::driver::KernelModel;

fn metadata(handle: u32, op: u32) -> drm_amdgpu_gem_metadata {
    drm_amdgpu_gem_metadata { handle, op, ..Default::default() }
}

pub fn get(client: &Client, file: &OpenFile, handle: u32) -> drm_amdgpu_gem_metadata {
    let mut args = metadata(handle, AMDGPU_GEM_METADATA_OP_GET_METADATA);
    drm(client, file, DRM_IOCTL_AMDGPU_GEM_METADATA, &mut args).unwrap();
    args
}

pub fn set(client: &Client, file: &OpenFile, handle: u32, data: &[u8]) -> Result<u32, Errno> {
    let mut args = drm_amdgpu_gem_metadata { flags: 7, tiling_info: 0x19, ..metadata(handle, 1) };
    args.data_size_bytes = data.len() as u32;
    let room = data.len().min(256);
    bytemuck::cast_slice_mut(&mut args.data)[..room].copy_from_slice(&data[..room]);
    drm(client, file, DRM_IOCTL_AMDGPU_GEM_METADATA, &mut args)
}

#[test]
fn metadata_go_with_the_memory_to_other_files_and_processes() {
    let space = Space::new();
    let (client, file) = (&space.client, &space.file);
    let empty = get(client, file, space.handle);
    assert_eq!((empty.tiling_info, empty.flags, empty.data_size_bytes), (0, 0, 0));
    set(client, file, space.handle, b"twelve bytes").unwrap();
    let beside = Client::beside(client.gpus.clone(), client.ledger.clone());
    let (theirs, _token) = beside.render(0);
    let handle = prime_import(&beside, &theirs, &space.dmabuf).unwrap();
    let seen = get(&beside, &theirs, handle);
    assert_eq!((seen.tiling_info, seen.flags, seen.data_size_bytes), (0x19, 7, 12));
    assert_eq!(&bytemuck::cast_slice::<_, u8>(&seen.data)[..12], b"twelve bytes");
    // Without data only the tiling is new.
    let mut args = drm_amdgpu_gem_metadata { flags: 9, tiling_info: 1, ..metadata(handle, 1) };
    drm(&beside, &theirs, DRM_IOCTL_AMDGPU_GEM_METADATA, &mut args).unwrap();
    let seen = get(client, file, space.handle);
    assert_eq!((seen.tiling_info, seen.flags, seen.data_size_bytes), (1, 7, 0));
}

#[test]
fn metadata_have_at_most_256_bytes_and_one_memory() {
    let space = Space::new();
    let (client, file) = (&space.client, &space.file);
    set(client, file, space.handle, &[5; 256]).unwrap();
    assert_eq!(set(client, file, space.handle, &[5; 257]), Err(Errno::EINVAL));
    assert_eq!(get(client, file, space.handle).data, [0x0505_0505; 64]);
    assert_eq!(set(client, file, space.handle + 1, b"x"), Err(Errno::ENOENT));
    let other = export(client, client.alloc(0, 0, PAGE, GTT).unwrap()).unwrap();
    let other = prime_import(client, file, &other).unwrap();
    assert_eq!(get(client, file, other).data_size_bytes, 0);
    let mut unknown = metadata(space.handle, 3);
    drm(client, file, DRM_IOCTL_AMDGPU_GEM_METADATA, &mut unknown).unwrap();
}

#[test]
fn dmabuf_info_copies_metadata_that_fit() {
    let space = Space::new();
    set(&space.client, &space.file, space.handle, b"eight by").unwrap();
    let info = |pointer, room| {
        let memory = Memory::with(ARRAY, &[b'.'; 16]);
        let mut args = kfd_ioctl_get_dmabuf_info_args {
            metadata_ptr: pointer,
            metadata_size: room,
            dmabuf_fd: 9,
            ..Default::default()
        };
        let fds = Fds::field(28, &space.dmabuf);
        let result = space.client.call_with(AMDKFD_IOC_GET_DMABUF_INFO, &mut args, &memory, &fds);
        result.map(|_| (args.metadata_size, memory.bytes(ARRAY)))
    };
    assert_eq!(info(ARRAY, 16), Ok((8, b"eight by........".to_vec())));
    assert_eq!(info(ARRAY, 7), Err(Errno::EINVAL));
    assert_eq!(info(0, 0), Ok((8, vec![b'.'; 16])), "only the size");
    assert_eq!(info(8, 16), Err(Errno::EFAULT));
}

#[test]
fn handles_of_a_file_are_listed_if_there_is_room_for_all() {
    let space = Space::of(Client::new("gfx1100*2"));
    let (client, file) = (&space.client, &space.file);
    client.acquire(1);
    let of_peer = export(client, client.alloc(1, 0, 3 * PAGE, VRAM).unwrap()).unwrap();
    let of_peer = prime_import(client, file, &of_peer).unwrap();
    let list = |file: &OpenFile, room: u32, entries| {
        let memory = Memory::with(ARRAY, &[0; 80]);
        let mut args = drm_amdgpu_gem_list_handles { entries, num_entries: room, padding: 0 };
        let command = DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES;
        drm_with(client, file, command, &mut args, &memory, &Fds::default())?;
        let bytes = memory.bytes(ARRAY);
        let entries = bytes.chunks_exact(40).map(bytemuck::pod_read_unaligned);
        Ok((args.num_entries, entries.collect::<Vec<drm_amdgpu_gem_list_handles_entry>>()))
    };
    let (count, entries) = list(file, 2, ARRAY).unwrap();
    let seen = |entry: &drm_amdgpu_gem_list_handles_entry| {
        (entry.gem_handle, entry.flags, entry.size, entry.preferred_domains, entry.alloc_flags)
    };
    assert_eq!(count, 2);
    assert_eq!(seen(&entries[0]), (space.handle, 0, 8 * PAGE, 2, 0));
    assert_eq!(seen(&entries[1]), (of_peer, 1, 3 * PAGE, 4, 0x201));
    let (count, entries) = list(file, 1, ARRAY).unwrap();
    assert_eq!((count, entries[0].gem_handle), (2, 0), "nothing is written");
    assert_eq!(list(file, 2, 8), Err(Errno::EFAULT));
    let (empty, _token) = client.render(0);
    assert_eq!(list(&empty, 0, 8).unwrap().0, 0);
}

#[test]
fn linux_6_12_lists_no_handles() {
    let client = Client::fresh_pair(KernelModel::V6_12);
    let (file, _token) = client.render(0);
    let mut args = drm_amdgpu_gem_list_handles::default();
    assert_eq!(drm(&client, &file, DRM_IOCTL_AMDGPU_GEM_LIST_HANDLES, &mut args), Err(Errno::EINVAL));
}

#[test]
fn gem_op_says_what_a_memory_was_made_with() {
    let space = Space::new();
    let (client, file) = (&space.client, &space.file);
    let made = |flags, op, value| {
        let fd = export(client, client.alloc(0, 0, 5 * PAGE, flags).unwrap()).unwrap();
        let handle = prime_import(client, file, &fd).unwrap();
        let memory = Memory::with(ARRAY, &[0; 32]);
        let mut args = drm_amdgpu_gem_op { handle, op, value, ..Default::default() };
        drm_with(client, file, DRM_IOCTL_AMDGPU_GEM_OP, &mut args, &memory, &Fds::default())?;
        let info: drm_amdgpu_gem_create_in = bytemuck::pod_read_unaligned(&memory.bytes(ARRAY));
        assert_eq!((info.bo_size, info.alignment), (5 * PAGE, PAGE));
        Ok((info.domains, info.domain_flags))
    };
    assert_eq!(made(GTT, 0, ARRAY), Ok((2, 0)));
    assert_eq!(made(VRAM, 0, ARRAY), Ok((4, 0x201)));
    assert_eq!(made(KFD_IOC_ALLOC_MEM_FLAGS_VRAM, 0, ARRAY), Ok((4, 0x200)));
    assert_eq!(made(GTT, 0, 8), Err(Errno::EFAULT));
    assert_eq!(made(GTT, 1, ARRAY), Err(Errno::EINVAL));
    let mut unknown = drm_amdgpu_gem_op { handle: 99, op: 0, value: ARRAY, ..Default::default() };
    assert_eq!(drm(client, file, DRM_IOCTL_AMDGPU_GEM_OP, &mut unknown), Err(Errno::ENOENT));
}
