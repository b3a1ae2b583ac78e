// SPDX-License-Identifier: MIT OR Apache-2.0
//! CTX: numbers, priorities, and what a context learns of resets.

use super::*;

pub fn ctx(client: &Client, file: &OpenFile, op: u32, ctx_id: u32) -> Result<drm_amdgpu_ctx, Errno> {
    let mut args = drm_amdgpu_ctx { op, ctx_id, ..Default::default() };
    drm(client, file, DRM_IOCTL_AMDGPU_CTX, &mut args).map(|_| args)
}

pub fn alloc(client: &Client, file: &OpenFile) -> Result<u32, Errno> {
    ctx(client, file, AMDGPU_CTX_OP_ALLOC_CTX, 0).map(|out| out.op)
}

#[test]
fn numbers_belong_to_a_file_and_are_given_again() {
    let client = Client::new("gfx1100");
    let ((first, _a), (second, _b)) = (client.render(0), client.render(0));
    assert_eq!([&first, &first, &second].map(|file| alloc(&client, file)), [Ok(1), Ok(2), Ok(1)]);
    ctx(&client, &first, AMDGPU_CTX_OP_FREE_CTX, 1).unwrap();
    for gone in [0, 1, 3] {
        assert_eq!(ctx(&client, &first, AMDGPU_CTX_OP_FREE_CTX, gone), Err(Errno::EINVAL));
        assert_eq!(ctx(&client, &first, AMDGPU_CTX_OP_QUERY_STATE2, gone), Err(Errno::EINVAL));
    }
    assert_eq!(alloc(&client, &first), Ok(1));
    let more = (0..).map_while(|_| alloc(&client, &first).ok()).count();
    assert_eq!(more, 4093);
    assert_eq!(alloc(&client, &first), Err(Errno::ENOSPC));
}

#[test]
fn priorities_above_normal_and_flags_are_refused() {
    let client = Client::new("gfx1100");
    let (file, _token) = client.render(0);
    let with = |flags, priority| {
        let mut args = drm_amdgpu_ctx { op: AMDGPU_CTX_OP_ALLOC_CTX, flags, ctx_id: 0, priority };
        drm(&client, &file, DRM_IOCTL_AMDGPU_CTX, &mut args)
    };
    assert_eq!([-2048, -512, 0, 77].map(|priority| with(0, priority)), [Ok(0); 4]);
    assert_eq!([512, 1023].map(|priority| with(0, priority)), [Err(Errno::EACCES); 2]);
    assert_eq!(with(1, 0), Err(Errno::EINVAL));
    assert_eq!(ctx(&client, &file, 9, 1), Err(Errno::EINVAL));
}

#[test]
fn reset_is_seen_once_by_the_old_question_and_always_by_the_new_one() {
    let client = Client::pair();
    let ((file, _a), (other, _b)) = (client.render(0), client.render(1));
    let (id, of_other) = (alloc(&client, &file).unwrap(), alloc(&client, &other).unwrap());
    let state = || ctx(&client, &file, AMDGPU_CTX_OP_QUERY_STATE, id).unwrap().priority;
    let flags = |file, id| ctx(&client, file, AMDGPU_CTX_OP_QUERY_STATE2, id).unwrap().op;
    assert_eq!((state(), flags(&file, id)), (AMDGPU_CTX_NO_RESET, 0));
    client.process.lose_queues(0);
    assert_eq!((state(), state()), (AMDGPU_CTX_UNKNOWN_RESET, AMDGPU_CTX_NO_RESET));
    let reset = AMDGPU_CTX_QUERY2_FLAGS_RESET;
    assert_eq!((flags(&file, id), flags(&file, id), flags(&other, of_other)), (reset, reset, 0));
    let young = alloc(&client, &file).unwrap();
    assert_eq!(flags(&file, young), 0);
}
