// SPDX-License-Identifier: MIT OR Apache-2.0
// OpenCL, for the attributes that C has not; compiled by the tests that use it.

__attribute__((visibility("protected"), amdgpu_flat_work_group_size(1, 128)))
kernel void small(global uint *out) { out[__builtin_amdgcn_workitem_id_x()] = 1; }

__attribute__((visibility("protected"), reqd_work_group_size(32, 2, 1)))
kernel void exact(global uint *out)
{
    out[__builtin_amdgcn_workitem_id_y() * 32 + __builtin_amdgcn_workitem_id_x()] = 1;
}
