// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels of the Python package's tests.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void

// The place of a work-item along an axis.
#define ITEM(axis)                                                                                                           \
    (__builtin_amdgcn_workgroup_id_##axis() * __builtin_amdgcn_workgroup_size_##axis() +                                     \
     __builtin_amdgcn_workitem_id_##axis())

// out[i] += a * x[i]
KERNEL axpy(const float *x, float *out, float a, u32 n)
{
    const u32 at = ITEM(x);
    if (at < n)
        out[at] += a * x[at];
}

// Every size of an argument, as 64-bit words.
KERNEL sizes(u64 *out, u8 byte, u16 half, u32 word, u64 two, _Float16 f16, float f32, double f64)
{
    out[0] = byte;
    out[1] = half;
    out[2] = word;
    out[3] = two;
    out[4] = __builtin_bit_cast(u16, f16);
    out[5] = __builtin_bit_cast(u32, f32);
    out[6] = __builtin_bit_cast(u64, f64);
}

struct three {
    u32 x, y, z;
};

KERNEL sum(u32 *out, struct three numbers)
{
    *out = numbers.x + numbers.y + numbers.z;
}

// Its place in the grid, for shapes.
KERNEL place(u32 *out, u32 width, u32 height)
{
    const u32 x = ITEM(x), y = ITEM(y), z = ITEM(z);
    out[(z * height + y) * width + x] = x + 100 * y + 10000 * z;
}

// Ends when *stop is not 0.
KERNEL spin(volatile u32 *stop, volatile u32 *turns)
{
    while (!*stop)
        ++*turns;
}

// Writes where nothing is.
KERNEL fault(void)
{
    *(volatile u32 *)0xdead0000 = 1;
}
