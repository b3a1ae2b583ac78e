// SPDX-License-Identifier: MIT OR Apache-2.0
// A cache of rows of 256 words, one a token, to which tokens are appended.
typedef unsigned int u32;
typedef unsigned long long u64;
#define GLOBAL __attribute__((address_space(1)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"), used)) void
#define ROW __builtin_amdgcn_workgroup_id_x()
#define WORD __builtin_amdgcn_workitem_id_x()

// A stand-in for a key and a value, which the host can compute too.
static u32 entry(u32 token, u32 word) { return (token * 2654435761u) ^ (word * 40503u + 1u); }

// One work-group of 256 a token.
KERNEL append(GLOBAL u32 *cache, u32 first)
{
    const u32 token = first + ROW;
    cache[(u64)token * 256 + WORD] = entry(token, WORD);
}

// Reads the whole cache, as attention does, and counts words that differ from the appended ones.
KERNEL attend(GLOBAL const u32 *cache, GLOBAL u32 *wrong)
{
    if (cache[(u64)ROW * 256 + WORD] != entry(ROW, WORD))
        __scoped_atomic_fetch_add(wrong, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
}
