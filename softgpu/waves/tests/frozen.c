// SPDX-License-Identifier: MIT OR Apache-2.0 Kernels to freeze: each changes its buffer so that a lost or repeated
// operation shows in the result.
typedef unsigned int u32;
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"), used))
#define LOCAL __attribute__((address_space(3)))
#define GLOBAL __attribute__((address_space(1)))

static u32 item(void) { return __builtin_amdgcn_workitem_id_x(); }
static u32 group(void) { return __builtin_amdgcn_workgroup_id_x(); }
// The host's launches put the group counts first and the sizes after them, as code object v5 does.
static u32 size(void) {
    const __attribute__((address_space(4))) unsigned short *hidden =
        (const __attribute__((address_space(4))) unsigned short *)__builtin_amdgcn_implicitarg_ptr();
    return hidden[6];
}

// Every item passes a value to the next item of its workgroup through LDS, in a ring.
KERNEL void frozen_lds(GLOBAL u32 *data, u32 rounds) {
    static LOCAL __attribute__((loader_uninitialized)) u32 ring[256];
    u32 me = item(), n = size(), at = group() * n + me, value = data[at];
    for (u32 k = 0; k < rounds; k++) {
        ring[me] = value * 31 + k;
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
        __builtin_amdgcn_s_barrier();
        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
        value ^= ring[(me + 1) % n];
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
        __builtin_amdgcn_s_barrier();
        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    }
    data[at] = value;
}

// Lanes leave the loop at different times.
KERNEL void frozen_divergent(GLOBAL u32 *data, u32 limit) {
    u32 at = group() * size() + item(), value = data[at], n = at % limit + 1;
    for (u32 k = 0; k < n; k++) {
        if ((value & 1) != 0)
            value = value * 3 + 1;
        else
            value >>= 1;
        if (value == k)
            break;
    }
    data[at] = value + n;
}

// A private array with a variable index is in scratch.
KERNEL void frozen_scratch(GLOBAL u32 *data, u32 rounds) {
    u32 at = group() * size() + item(), value = data[at];
    volatile u32 table[16];
    for (u32 k = 0; k < 16; k++)
        table[k] = value + k;
    for (u32 k = 0; k < rounds; k++)
        table[(value + k) & 15] += table[(value + 3 * k) & 15] ^ k;
    u32 sum = 0;
    for (u32 k = 0; k < 16; k++)
        sum = sum * 7 + table[k];
    data[at] = sum;
}

// Two waves run alternately by a word that each polls; the last words of the buffer count the turns.
KERNEL void frozen_spin(GLOBAL u32 *data, u32 rounds) {
    u32 me = item(), wave = me / 32, n = size();
    GLOBAL u32 *turn = data + n + 3, *total = data + n;
    if (me == 0)
        __atomic_store_n(turn, 0, __ATOMIC_RELEASE);
    __builtin_amdgcn_s_barrier();
    for (u32 k = 0; k < rounds; k++) {
        while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != 2 * k + wave)
            __builtin_amdgcn_s_sleep(1);
        if ((me & 31) == 0) {
            __atomic_fetch_add(total, k + 1, __ATOMIC_RELAXED);
            __atomic_fetch_add(turn, 1, __ATOMIC_RELEASE);
        }
        data[me] = data[me] * 5 + k;
    }
}

KERNEL void frozen_sleep(GLOBAL u32 *data, u32 rounds) {
    u32 me = item();
    for (u32 k = 0; k < rounds; k++) {
        __builtin_amdgcn_s_sleep(1);
        data[me] += k + me;
    }
}

// All instructions are uniform: one item, scalar loads and arithmetic.
KERNEL void frozen_scalar(GLOBAL u32 *data, u32 rounds) {
    u32 sum = 1;
    for (u32 k = 0; k < rounds; k++)
        sum = sum * data[k] + k;
    data[15] = sum;
}
