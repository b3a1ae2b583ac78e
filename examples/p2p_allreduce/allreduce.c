// SPDX-License-Identifier: MIT OR Apache-2.0
// Sums of f32, one work-item an element, work-groups of 256.
typedef unsigned int u32;

#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define AT (__builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x())

KERNEL add(float *restrict to, const float *restrict from, u32 n)
{
    if (AT < n)
        to[AT] += from[AT];
}

// count: how many of the four vectors are used; the others are not read.
KERNEL sum(float *restrict to, const float *a, const float *b, const float *c, const float *d, u32 count, u32 n)
{
    if (AT >= n)
        return;
    float all = a[AT] + b[AT];
    if (count > 2)
        all += c[AT];
    if (count > 3)
        all += d[AT];
    to[AT] = all;
}
