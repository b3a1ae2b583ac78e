// SPDX-License-Identifier: MIT OR Apache-2.0
// Attention of 16 queries of one sentence and one head, 16 keys at a time: scores, softmax and context never leave the
// wave's registers.
//
// All products are computed transposed: scores as keys x queries, so that a lane has scores of one query only (number
// lane % 16; its register r has key 2 r + lane / 16), and a query's maximum needs one exchange between two lanes.
// Queries contain the factor log2(e) / sqrt(32), which is part of their weights.
#define HEAD 32

typedef f16 h2 __attribute__((ext_vector_type(2)));
// Sentences begin at any row, so a part of a row of transposed values may begin at any number.
typedef h16 h16_anywhere __attribute__((aligned(2)));

// A line for each group of 16 queries: the first one's row, and their sentence's first row and the row after its last.
typedef struct {
    u32 query, begin, end;
} Tile;

// The lane's 8 probabilities and the other lane's 8 as 16 halves in the order of the keys.
INLINE h16 interleave(f8 p)
{
    typedef u32 words __attribute__((ext_vector_type(8)));
    words line;
    for (u32 r = 0; r < 8; r += 2) {
        const h2 two = {half_of(p[r]), half_of(p[r + 1])};
        const u32 mine = __builtin_bit_cast(u32, two), other = across_u32(mine);
        const u32 lower = HIGH ? other : mine, upper = HIGH ? mine : other;
        line[r] = (lower & 0xffff) | upper << 16;
        line[r + 1] = lower >> 16 | (upper & 0xffff0000);
    }
    return __builtin_bit_cast(h16, line);
}

// qk has queries and keys, 768 numbers a row; values are transposed, `room` numbers a row. Grid: tiles, heads.
KERNEL attention_f16(IN Tile *restrict tiles, IN f16 *restrict qk, IN f16 *restrict values, GLOBAL f16 *restrict out,
    u32 room)
{
    const u32 head = GROUP_Y;
    const Tile tile = tiles[GROUP_X];
    const u32 query = tile.query + LANE_Y;
    IN f16 *from_q = qk + query * (2 * HIDDEN) + head * HEAD;
    IN f16 *from_k = qk + (tile.begin + LANE_Y) * (2 * HIDDEN) + HIDDEN + head * HEAD;
    IN f16 *from_v = values + (head * HEAD + LANE_Y) * room;
    const h16 q0 = *(IN h16 *)from_q, q1 = *(IN h16 *)(from_q + 16);
    f8 low = 0, high = 0;
    float most = -__builtin_inff(), total = 0;
    for (u32 key = tile.begin; key < tile.end; key += 16, from_k += 16 * 2 * HIDDEN) {
        h16 v0 = *(IN h16_anywhere *)(from_v + key), v1 = *(IN h16_anywhere *)(from_v + 16 * room + key);
        f8 s = 0;
        s = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(*(IN h16 *)from_k, q0, s);
        s = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(*(IN h16 *)(from_k + 16), q1, s);
        if (tile.end - key < 16) {
            // Values after the sentence belong to another sentence, or to none and may be NaN.
            const u32 left = tile.end - key;
            for (u32 r = 0; r < 8; r++)
                s[r] = 2 * r + HIGH < left ? s[r] : -__builtin_inff();
            for (u32 n = 0; n < 16; n++) {
                v0[n] = n < left ? v0[n] : (f16)0;
                v1[n] = n < left ? v1[n] : (f16)0;
            }
        }
        float top = s[0];
        for (u32 r = 1; r < 8; r++)
            top = __builtin_fmaxf(top, s[r]);
        top = __builtin_fmaxf(most, __builtin_fmaxf(top, across(top)));
        const float fade = __builtin_amdgcn_exp2f(most - top);
        f8 p;
        float sum = 0;
        for (u32 r = 0; r < 8; r++) {
            p[r] = __builtin_amdgcn_exp2f(s[r] - top);
            sum += p[r];
        }
        most = top;
        total = __builtin_fmaf(total, fade, sum);
        const h16 b = interleave(p);
        low = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(v0, b, low * fade);
        high = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(v1, b, high * fade);
    }
    const float scale = 1.0f / (total + across(total));
    float line[16];
    side_by_side(low * scale, high * scale, line);
    if (query < tile.end)
        store_halves(&out[query * HIDDEN + head * HEAD + HIGH * 16], line);
}
