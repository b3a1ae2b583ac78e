// SPDX-License-Identifier: MIT OR Apache-2.0
// One explicit step of the heat equation on a square grid with fixed edges: five-point stencil, f32.
typedef unsigned int u32;

// n: cells a side. rate: diffusion number, stable up to 0.25. One work-item a cell, workgroups of 64x4.
__attribute__((amdgpu_kernel, visibility("protected"))) void
heat_step(const float *restrict from, float *restrict to, u32 n, float rate)
{
    const u32 x = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
    const u32 y = __builtin_amdgcn_workgroup_id_y() * 4 + __builtin_amdgcn_workitem_id_y();
    if (x >= n || y >= n)
        return;
    const u32 at = y * n + x;
    const float here = from[at];
    if (x == 0 || y == 0 || x == n - 1 || y == n - 1) {
        to[at] = here;
        return;
    }
    const float around = (from[at - 1] + from[at + 1]) + (from[at - n] + from[at + n]);
    to[at] = here + rate * (around - 4.0f * here);
}
