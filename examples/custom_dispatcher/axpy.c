// SPDX-License-Identifier: MIT OR Apache-2.0
// y += a * x, one work-item an element, work-groups of 256.
typedef unsigned int u32;

__attribute__((amdgpu_kernel, visibility("protected"))) void
axpy(const float *restrict x, float *restrict y, float a, u32 n)
{
    const u32 at = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
    if (at < n)
        y[at] += a * x[at];
}
