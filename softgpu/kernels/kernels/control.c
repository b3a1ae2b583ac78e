// SPDX-License-Identifier: MIT OR Apache-2.0
// Where execution goes: divergence, early ends, calls, and what does not fit the registers.
#include "dual.h"

KERNEL(mandelbrot, GLOBAL u32 *out; u32 width; u32 limit;) {
    u32 x = GROUP(0) * GROUP_SIZE(0) + ITEM(0), y = GROUP(1) * GROUP_SIZE(1) + ITEM(1), steps = 0;
    float cx = (float)x * 0.04f - 2.0f, cy = (float)y * 0.06f - 1.0f, zx = 0, zy = 0;
    while (steps < arg.limit && zx * zx + zy * zy < 4.0f) {
        float next = zx * zx - zy * zy + cx;
        zy = FMA(2 * zx, zy, cy);
        zx = next;
        steps++;
    }
    arg.out[y * arg.width + x] = steps;
}

KERNEL(collatz, GLOBAL u32 *out; u32 first;) {
    u32 steps = 0;
    for (u64 n = INDEX + arg.first; n != 1; steps++)
        n = n & 1 ? 3 * n + 1 : n / 2;
    arg.out[INDEX] = steps;
}

// Loops in loops that lanes leave, skip and return from at different places.
KERNEL(nested_loops, GLOBAL const u32 *in; GLOBAL u32 *out; u32 n;) {
    u32 i = INDEX;
    if (i >= arg.n)
        return;
    u32 v = arg.in[i], sum = 0;
    for (u32 j = 0; j < (v & 15); j++) {
        if ((j & v) == 3)
            continue;
        for (u32 k = j; k < 12; k += (v >> 4 & 3) + 1) {
            sum = sum * 31 + k;
            if ((sum & 63) == (v >> 8 & 63))
                break;
            if ((sum & 1023) == 77) {
                arg.out[i] = sum ^ 0xdead;
                return;
            }
        }
        switch (sum + v & 7) {
        case 0: sum += 3; break;
        case 1: sum ^= v; /* fallthrough */
        case 2: sum -= j; break;
        case 5: j += 1; break;
        case 7: sum = sum << 3 | sum >> 29; break;
        default: sum *= 5;
        }
    }
    arg.out[i] = sum;
}

// Some waves end before the barrier that the others meet at.
KERNEL(early_end, GLOBAL const u32 *in; GLOBAL u32 *out;) {
    LDS u32 room[256];
    u32 wave = ME / WAVE;
    if ((wave & 1) == 1)
        return;
    room[ME] = arg.in[INDEX];
    barrier();
    // The partner lies in the wave after the next, or in the first again.
    u32 partner = (ME + 2 * WAVE) & (GROUP_SIZE(0) - 1);
    arg.out[INDEX] = room[partner] * 3 + 1;
}

// An array that is indexed by what it holds cannot lie in registers.
KERNEL(private_array, GLOBAL const u32 *in; GLOBAL u32 *out;) {
    u32 v = arg.in[INDEX], sum = 0;
    volatile u32 words[64];
    volatile u8 bytes[32];
    volatile u16 shorts[16];
    volatile u64 longs[8];
    for (u32 k = 0; k < 64; k++)
        words[k] = v * (k + 1);
    for (u32 k = 0; k < 32; k++)
        bytes[k] = (u8)(v >> (k & 15));
    for (u32 k = 0; k < 16; k++)
        shorts[k] = (u16)(v * k);
    for (u32 k = 0; k < 8; k++)
        longs[k] = (u64)v << k * 5;
    for (u32 k = 0; k < 100; k++) {
        u32 at = (v + k * 7) & 63;
        sum = sum * 31 + words[at] + bytes[sum & 31] + shorts[sum >> 5 & 15] + (i16)shorts[at & 15];
        words[at] = sum;
        bytes[at & 31] = (u8)(sum >> 8);
        shorts[k & 15] = (u16)sum;
        longs[sum & 7] += sum;
    }
    arg.out[INDEX] = sum ^ (u32)(longs[v & 7] >> 16);
}

// Values that live across a demand for nearly all registers go to scratch and back.
#define KEPT 96
typedef VECTOR(u32, 32) crowd;
KERNEL(forced_spills, GLOBAL const u32 *in; GLOBAL u32 *out; u32 n;) {
    u32 i = INDEX, kept[KEPT];
#pragma unroll
    for (u32 k = 0; k < KEPT; k++)
        kept[k] = arg.in[k * arg.n + i];
#ifdef __AMDGCN__
    crowd a, b, c, d, e;
    __asm__ volatile("; everything" : "=v"(a), "=v"(b), "=v"(c), "=v"(d), "=v"(e));
#endif
    u32 sum = 0;
#pragma unroll
    for (u32 k = 0; k < KEPT; k++) {
        sum = sum * 33 + (kept[k] ^ kept[(k * 7 + 5) % KEPT]);
        arg.out[k * arg.n + i] = sum;
    }
}

// Registers that are picked by number: a number for all lanes, and one for each.
typedef VECTOR(u32, 16) sixteen;
KERNEL(register_index, GLOBAL const u32 *in; GLOBAL u32 *out; u32 n;) {
    u32 i = INDEX;
    sixteen row;
#pragma unroll
    for (u32 k = 0; k < 16; k++)
        row[k] = arg.in[k * arg.n + i];
    u32 sum = 0;
    for (u32 k = 0; k < 20; k++) {
        u32 uniform = (arg.n / 3 + k * 5 + GROUP(0)) & 15;
        row[uniform] += sum + k;
        sum = sum * 7 + row[(uniform ^ k) & 15];
    }
    u32 own = sum >> 3 & 15;
    row[own] ^= 0x5a5a;
    sum += row[own * 3 & 15];
#pragma unroll
    for (u32 k = 0; k < 16; k++)
        sum = sum * 31 + row[k];
    arg.out[i] = sum;
}

NOINLINE u32 fibonacci(u32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

// Ackermann's function needs a deeper stack than its values are large.
NOINLINE u32 ackermann(u32 m, u32 n) {
    if (m == 0)
        return n + 1;
    return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

KERNEL(recursion, GLOBAL u32 *out; u32 n;) {
    u32 i = INDEX;
    arg.out[i] = fibonacci(i % 9);
    arg.out[arg.n + i] = ackermann(i % 3, i / 8 % 4);
}

NOINLINE u32 by_sum(u32 a, u32 b) { return a + b * 3; }
NOINLINE u32 by_product(u32 a, u32 b) { return a * b + 1; }
NOINLINE u32 by_bits(u32 a, u32 b) { return (a ^ b) & ~(a >> 3); }
NOINLINE u32 by_loop(u32 a, u32 b) {
    for (u32 k = 0; k < (b & 7); k++)
        a = a * 5 + k;
    return a;
}
typedef u32 (*operation)(u32, u32);
static const operation operations[] = {by_sum, by_product, by_bits, by_loop};

// Lanes call different functions of a table; the table's addresses are the loader's to fill in.
KERNEL(function_table, GLOBAL const u32 *in; GLOBAL u32 *out;) {
    u32 v = arg.in[INDEX], result = INDEX;
    for (u32 k = 0; k < 6; k++)
        result = operations[(v >> 2 * k) & 3](result, v + k);
    arg.out[INDEX] = result;
}

struct wide {
    u32 words[24];
};
NOINLINE struct wide mix(struct wide w, u32 by) {
    for (u32 k = 0; k < 24; k++)
        w.words[k] = w.words[(k + by) % 24] * 7 + k;
    return w;
}

// Arguments and results too large for registers pass through the stack.
KERNEL(stack_arguments, GLOBAL const u32 *in; GLOBAL u32 *out;) {
    struct wide w;
    u32 v = arg.in[INDEX], sum = 0;
    for (u32 k = 0; k < 24; k++)
        w.words[k] = v ^ k * 0x1234567;
    for (u32 k = 0; k < 3; k++)
        w = mix(w, v >> k & 15);
    for (u32 k = 0; k < 24; k++)
        sum = sum * 3 + w.words[k];
    arg.out[INDEX] = sum;
}

// One pointer to three kinds of memory.
KERNEL(flat_addresses, GLOBAL u32 *data; u32 n;) {
    LDS u32 room[64];
    u32 i = INDEX, mine[8];
    room[ME] = i * 5;
    for (u32 k = 0; k < 8; k++)
        mine[k] = i + k * 100;
    barrier();
    u32 *any = i % 3 == 0 ? (u32 *)&room[ME] : i % 3 == 1 ? &mine[i & 7] : (u32 *)&arg.data[i];
    *(volatile u32 *)any += 1000 + i;
    volatile u16 *half = (volatile u16 *)any;
    half[1] = (u16)(half[0] + 3);
    barrier();
    arg.data[arg.n + i] = *(volatile u32 *)any + room[ME] * 3 + mine[i & 7];
}

// The whole shape of a three-dimensional grid.
KERNEL(shape, GLOBAL u32 *out; u32 width; u32 height;) {
    u32 x = GROUP(0) * GROUP_SIZE(0) + ITEM(0), y = GROUP(1) * GROUP_SIZE(1) + ITEM(1);
    u32 z = GROUP(2) * GROUP_SIZE(2) + ITEM(2);
    u32 value = (ITEM(0) | ITEM(1) << 5 | ITEM(2) << 10) ^ (GROUP(0) << 15 | GROUP(1) << 19 | GROUP(2) << 23);
    arg.out[(z * arg.height + y) * arg.width + x] = value + (lane_id() << 27);
}
