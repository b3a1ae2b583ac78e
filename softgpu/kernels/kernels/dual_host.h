// SPDX-License-Identifier: MIT OR Apache-2.0
// The host's half of dual.h: items are coroutines of host.c, and a wave operation is an exchange between them.
#define GLOBAL
#define SHARED
// One workgroup runs at a time on a thread, so its arrays are the thread's.
#define LDS static _Thread_local

#define KERNEL(name, ...)                                                                           \
    struct name##_args {                                                                            \
        __VA_ARGS__                                                                                 \
    };                                                                                              \
    static void name(struct name##_args arg);                                                       \
    static void name##_item(const void *args) { name(*(const struct name##_args *)args); }          \
    void host_##name(const void *args, const u32 *grid, const u32 *group) {                         \
        host_run(name##_item, args, grid, group);                                                   \
    }                                                                                               \
    static void name(struct name##_args arg)

// Where the running item stands.
struct host_place {
    u32 item[3], group[3], group_size[3];
    // Index in the workgroup, x fastest.
    u32 index;
};
extern _Thread_local struct host_place host_here;

// What one lane gave to an exchange; `given` says whether it took part.
struct host_slot {
    u32 given;
    u32 words[16];
};

void host_run(void (*item)(const void *), const void *args, const u32 *grid, const u32 *group);
void host_barrier(void);
// Gives `bytes` (at most 64) to the wave and returns what each of its lanes gave.
const struct host_slot *host_exchange(const void *value, u32 bytes);
// The lane that lane `lane` reads by a 16-lane DPP control word, or -1.
i32 host_dpp_source(u32 lane, u32 control);

#define ITEM(axis) host_here.item[axis]
#define GROUP(axis) host_here.group[axis]
#define GROUP_SIZE(axis) host_here.group_size[axis]
#define barrier host_barrier

INLINE u32 lane_id(void) { return host_here.index % WAVE; }

INLINE u32 host_read(const struct host_slot *wave, u32 lane, u32 otherwise) {
    return wave[lane].given ? wave[lane].words[0] : otherwise;
}
INLINE u32 wave_dpp(u32 old, u32 value, u32 control, u32 rows, u32 banks, int bound) {
    const struct host_slot *wave = host_exchange(&value, 4);
    u32 lane = lane_id();
    i32 from = host_dpp_source(lane, control);
    if (!(rows >> lane / 16 % 4 & 1) || !(banks >> lane % 16 / 4 & 1))
        return old;
    return from >= 0 && wave[from].given ? wave[from].words[0] : bound ? 0 : old;
}
// Of wave64 each half permutes for itself.
INLINE u32 wave_bpermute(u32 lane, u32 value) {
    return host_read(host_exchange(&value, 4), (lane_id() & 32) | lane % 32, 0);
}
INLINE u32 wave_permute(u32 lane, u32 value) {
    u32 both[2] = {value, lane % 32};
    const struct host_slot *wave = host_exchange(both, 8);
    u32 me = lane_id(), got = 0;
    for (u32 k = me & 32; k < (me & 32) + 32; k++)
        if (wave[k].given && wave[k].words[1] == me % 32)
            got = wave[k].words[0];
    return got;
}
INLINE u32 wave_readlane(u32 value, u32 lane) { return host_exchange(&value, 4)[lane % WAVE].words[0]; }
INLINE u32 wave_writelane(u32 value, u32 lane, u32 old) { return lane_id() == lane ? value : old; }
INLINE u32 wave_other_half(u32 value) { return host_read(host_exchange(&value, 4), lane_id() ^ (WAVE & 64) / 2, 0); }
INLINE u32 wave_first(u32 value) {
    const struct host_slot *wave = host_exchange(&value, 4);
    u32 k = 0;
    while (!wave[k].given)
        k++;
    return wave[k].words[0];
}
INLINE u32 wave_permlane16(u32 value, u32 low, u32 high) {
    u32 lane = lane_id(), select = (lane % 16 < 8 ? low : high) >> 4 * (lane % 8) & 15;
    return host_read(host_exchange(&value, 4), lane / 16 * 16 + select, value);
}
INLINE u32 wave_permlanex16(u32 value, u32 low, u32 high) {
    u32 lane = lane_id(), select = (lane % 16 < 8 ? low : high) >> 4 * (lane % 8) & 15;
    return host_read(host_exchange(&value, 4), (lane / 16 ^ 1) * 16 + select, value);
}
INLINE u32 wave_swizzle(u32 value, u32 and, u32 or, u32 xor) {
    u32 lane = lane_id(), from = ((lane % 32 & and) | or) ^ xor;
    return host_read(host_exchange(&value, 4), (lane & 32) | from, 0);
}
INLINE u64 wave_ballot(int condition) {
    u32 set = condition != 0;
    const struct host_slot *wave = host_exchange(&set, 4);
    u64 mask = 0;
    for (u32 k = 0; k < WAVE; k++)
        mask |= (u64)host_read(wave, k, 0) << k;
    return mask;
}

#define TAU 6.283185307179586
#define EXP2 __builtin_exp2f
#define LOG2 __builtin_log2f
#define RCP(x) (1.0f / (x))
#define RSQ(x) ((float)(1.0 / __builtin_sqrt(x)))
#define SIN_TURNS(x) ((float)__builtin_sin((x) * TAU))
#define COS_TURNS(x) ((float)__builtin_cos((x) * TAU))

// In f64 the product is exact and the sum nearly always: one rounding, as the fused operation.
INLINE f16 fma_f16(f16 a, f16 b, f16 c) { return (f16)__builtin_fma((double)a, (double)b, (double)c); }
