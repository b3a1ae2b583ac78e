// SPDX-License-Identifier: MIT OR Apache-2.0
// What the benchmarks run. Workgroup shapes are fixed here and in src/interpreter/jobs.rs.
typedef unsigned int u32;

#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define LDS __attribute__((address_space(3), loader_uninitialized))
#define X __builtin_amdgcn_workitem_id_x()
#define Y __builtin_amdgcn_workitem_id_y()
#define GROUP_X __builtin_amdgcn_workgroup_id_x()
#define GROUP_Y __builtin_amdgcn_workgroup_id_y()

static inline __attribute__((always_inline)) void barrier(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Nothing: what is left is the way there and back.
KERNEL empty(void)
{
}

// y += a * x, one work-item an element, workgroups of 256.
KERNEL axpy(const float *restrict x, float *restrict y, float a, u32 n)
{
    const u32 i = GROUP_X * 256 + X;
    if (i < n)
        y[i] = __builtin_fmaf(a, x[i], y[i]);
}

// Five-point stencil on w x h cells, the edge left alone; workgroups of 32x8.
KERNEL stencil(const float *restrict from, float *restrict to, u32 w, u32 h)
{
    const u32 x = GROUP_X * 32 + X, y = GROUP_Y * 8 + Y;
    if (x == 0 || y == 0 || x >= w - 1 || y >= h - 1)
        return;
    const u32 at = y * w + x;
    const float around = (from[at - 1] + from[at + 1]) + (from[at - w] + from[at + w]);
    to[at] = __builtin_fmaf(0.125f, around, 0.5f * from[at]);
}

// c = a * b for n x n matrices, n a multiple of 16; tiles of 16x16 in LDS, workgroups of 16x16.
KERNEL gemm(const float *restrict a, const float *restrict b, float *restrict c, u32 n)
{
    static LDS float tile_a[16][16], tile_b[16][16];
    const u32 x = X, y = Y, row = GROUP_Y * 16 + y, column = GROUP_X * 16 + x;
    float sum = 0;
    for (u32 k = 0; k < n; k += 16) {
        tile_a[y][x] = a[row * n + k + x];
        tile_b[y][x] = b[(k + y) * n + column];
        barrier();
        for (u32 j = 0; j < 16; j++)
            sum = __builtin_fmaf(tile_a[y][j], tile_b[j][x], sum);
        barrier();
    }
    c[row * n + column] = sum;
}
