// SPDX-License-Identifier: MIT OR Apache-2.0
// What the benchmarks run. Workgroup shapes are fixed here and where the kernels are launched.
typedef unsigned int u32;

#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define GLOBAL __attribute__((address_space(1)))
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

// x[i] goes through `turns` turns of the smallest loop that computes something; workgroups of 256.
KERNEL turn(float *restrict x, u32 turns)
{
    const u32 i = GROUP_X * 256 + X;
    float value = x[i];
#pragma clang loop unroll(disable)
    for (u32 k = 0; k < turns; k++)
        value = __builtin_fmaf(value, 0.999f, 0.25f);
    x[i] = value;
}

static inline __attribute__((always_inline)) u32 load(GLOBAL u32 *from)
{
    return __scoped_atomic_load_n(from, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}

// Looks at `*stop` so many times, or until it is no longer 0. Every workgroup that ends counts itself in `*ended`.
KERNEL busy(GLOBAL u32 *ended, GLOBAL u32 *stop, u32 turns)
{
    for (u32 k = 0; k < turns && load(stop) == 0; k++)
        ;
    if (X == 0)
        __scoped_atomic_fetch_add(ended, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}

// Counts in memory and in a register until told to stop: `out` is {counts[n], kept[n], broken[n]} for n items, where kept
// is the register at the end, and broken how often memory was not what the register had put there. Workgroups of `group` items.
KERNEL endless(GLOBAL u32 *out, GLOBAL u32 *stop, u32 items, u32 group)
{
    const u32 item = GROUP_X * group + X;
    u32 count = 0, wrong = 0;
    while (load(stop) == 0) {
        wrong += load(&out[item]) != count;
        __scoped_atomic_store_n(&out[item], ++count, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
    }
    out[items + item] = count;
    out[2 * items + item] = wrong;
}
