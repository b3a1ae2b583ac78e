// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels of `stasis doctor`, each of which needs one thing of the device.
typedef unsigned int u32;
typedef unsigned long u64;
#define GLOBAL __attribute__((address_space(1)))
#define LOCAL __attribute__((address_space(3)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define LANE __builtin_amdgcn_workitem_id_x()
#define GROUP __builtin_amdgcn_workgroup_id_x()
#define ITEMS 64u

static inline u32 load(GLOBAL u32 *from)
{
    return __scoped_atomic_load_n(from, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}

static inline void store(GLOBAL u32 *to, u32 value)
{
    __scoped_atomic_store_n(to, value, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}

// Groups of 64 items: to[i] = from[i] * 3 + i.
KERNEL numbers(GLOBAL const u32 *from, GLOBAL u32 *to)
{
    u32 item = GROUP * ITEMS + LANE;
    to[item] = from[item] * 3 + item;
}

static LOCAL u32 part[ITEMS] __attribute__((loader_uninitialized));

// Each group of 64 items reverses its part through LDS.
KERNEL reverse(GLOBAL const u32 *from, GLOBAL u32 *to)
{
    u32 item = GROUP * ITEMS + LANE;
    part[LANE] = from[item];
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    to[item] = part[ITEMS - 1 - LANE];
}

// Through an array in private memory, since its index is not known before: to[i] = from[i] + 15.
KERNEL private_memory(GLOBAL const u32 *from, GLOBAL u32 *to)
{
    u32 item = GROUP * ITEMS + LANE;
    volatile u32 array[32];
    for (u32 at = 0; at < 32; at++)
        array[(at * 5 + LANE) % 32] = from[item] + at;
    to[item] = array[(15 * 5 + LANE) % 32];
}

// Adds 1, all items to one word.
KERNEL count(GLOBAL u32 *counter)
{
    __scoped_atomic_fetch_add(counter, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

// Counts in words[1], and the same in a register, until words[0] is set; then words[2] is 1 if they differ and 2 if not.
KERNEL until(GLOBAL u32 *words)
{
    u32 kept = 0;
    while (load(words) == 0)
        store(words + 1, ++kept);
    store(words + 2, load(words + 1) == kept ? 2 : 1);
}

KERNEL set(GLOBAL u32 *word) { store(word, 1); }

KERNEL write_at(u64 address) { *(GLOBAL volatile u32 *)address = 1; }

KERNEL trap(GLOBAL u32 *word)
{
    store(word, 1);
    __builtin_trap();
}

// SOPP opcode 127 is not an instruction of any target.
KERNEL illegal(GLOBAL u32 *word)
{
    store(word, 1);
    __asm__ volatile(".long 0xbfff0000");
    store(word, 2);
}
