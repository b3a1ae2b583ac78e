// SPDX-License-Identifier: MIT OR Apache-2.0
// Embeddings of texts as the mean of the rows of their words in a table, of length one. A workgroup of 256 a text, an item a dimension.
typedef unsigned int u32;
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define LDS __attribute__((address_space(3)))
#define SHARED static LDS __attribute__((loader_uninitialized))
#define BARRIER() do { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); } while (0)

// begins: where each text's words begin, and where the last one's end.
KERNEL embed(const float *restrict table, const u32 *restrict words, const u32 *restrict begins, float *restrict out)
{
    SHARED float squares[256];
    const u32 text = __builtin_amdgcn_workgroup_id_x(), at = __builtin_amdgcn_workitem_id_x();
    float sum = 0.0f;
    for (u32 k = begins[text]; k < begins[text + 1]; k++)
        sum += table[words[k] * 256 + at];
    squares[at] = sum * sum;
    BARRIER();
    for (u32 half = 128; half > 0; half /= 2) {
        if (at < half)
            squares[at] += squares[at + half];
        BARRIER();
    }
    const float length = __builtin_sqrtf(squares[0]);
    out[text * 256 + at] = length > 0.0f ? sum / length : 0.0f;
}

// Moves the row of a word towards a vector.
KERNEL learn(float *restrict table, const float *restrict vector, u32 word, float rate)
{
    const u32 at = word * 256 + __builtin_amdgcn_workitem_id_x();
    table[at] = __builtin_fmaf(rate, vector[__builtin_amdgcn_workitem_id_x()] - table[at], table[at]);
}
