// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs the kernels on the CPU, work-item by work-item, and compares with the obvious loops.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../src/fill.c"
#include "../src/copy.c"

u32 host_lane, host_group;

#define ROOM (TILE * 5 + 64)
static u8 got[ROOM] __attribute__((aligned(64))), want[ROOM] __attribute__((aligned(64)));
static u8 source[ROOM] __attribute__((aligned(64)));

#define RUN(groups, call)                                                                    \
    for (host_group = 0; host_group < (groups); host_group++)                                \
        for (host_lane = 0; host_lane < WORKGROUP; host_lane++)                              \
            call

static void check(const char *what, u64 to, u64 from, u64 bytes, u64 groups) {
    if (memcmp(got, want, ROOM) != 0) {
        printf("%s: wrong at destination+%lu source+%lu, %lu bytes, %lu groups\n", what, to, from, bytes, groups);
        exit(1);
    }
}

static void try_fill(u64 to, u64 bytes, u64 groups, u32 period) {
    u8 pattern[16];
    u64 low, high;
    for (u32 i = 0; i < 16; i++)
        pattern[i] = (u8)(0xa1 + 7 * (i % period));
    memcpy(&low, pattern, 8);
    memcpy(&high, pattern + 8, 8);
    memset(got, 0x55, ROOM);
    memset(want, 0x55, ROOM);
    for (u64 i = 0; i < bytes; i++)
        want[to + i] = pattern[i % period];
    RUN(groups, stasis_fill(got + to, bytes, low, high, groups));
    check("fill", to, period, bytes, groups);
}

static void try_copy(u64 to, u64 from, u64 bytes, u64 groups) {
    memset(got, 0x55, ROOM);
    memset(want, 0x55, ROOM);
    memcpy(want + to, source + from, bytes);
    RUN(groups, stasis_copy(got + to, source + from, bytes, groups));
    check("copy", to, from, bytes, groups);
}

int main(void) {
    for (u64 i = 0; i < ROOM; i++)
        source[i] = (u8)(i * 167 + (i >> 8) * 31);
    for (u64 to = 0; to < 17; to++) {
        for (u64 bytes = 0; bytes < 70; bytes++) {
            for (u32 period = 1; period <= 16; period *= 2)
                try_fill(to, bytes, 1, period);
            try_copy(to, 0, bytes, 1);
            try_copy(to, 5, bytes, 1);
            try_copy(to, to, bytes, 1);
        }
    }
    u64 lengths[] = {STEP - 1, STEP + 1, TILE - 1, TILE, TILE + 1, TILE + STEP + 17, 4 * TILE + 33};
    for (u32 i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (u64 groups = 1; groups < 7; groups += 2) {
            for (u64 to = 0; to < 16; to += 5) {
                try_fill(to, lengths[i], groups, 16);
                try_fill(to, lengths[i], groups, 4);
                try_copy(to, 0, lengths[i], groups);
                try_copy(to, 3, lengths[i], groups);
            }
        }
    }
    puts("ok");
    return 0;
}
