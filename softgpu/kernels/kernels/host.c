// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs a kernel on the host: the items of a workgroup are coroutines of one thread that stop at barriers and at wave
// operations, so that each sees what a GPU's lockstep would have shown it.
//
// INVARIANT: an item goes on from a stop only when all others of its wave (or workgroup) that still run are at a stop of
// the same kind; nothing else makes them switch.
#include "dual.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define MAX_ITEMS 1024
#define STACK_BYTES (64 * 1024)

enum state { READY, AT_WAVE, AT_BARRIER, DONE };

struct item {
    ucontext_t context;
    struct host_place place;
    enum state state;
    // Exchanges so far; its lowest bit says which of the wave's two sets of slots is next.
    u32 exchanges;
};

struct workgroup {
    ucontext_t scheduler;
    void (*body)(const void *);
    const void *args;
    u32 count;
    struct item items[MAX_ITEMS];
    // Two sets: a lane may give to its next exchange before the others have read this one, but not to the one after.
    struct host_slot slots[2][MAX_ITEMS];
};

_Thread_local struct host_place host_here;
static _Thread_local struct workgroup *current;
static _Thread_local char *stacks;

static void stop(enum state state) {
    struct item *me = &current->items[host_here.index];
    me->state = state;
    swapcontext(&me->context, &current->scheduler);
}

void host_barrier(void) { stop(AT_BARRIER); }

const struct host_slot *host_exchange(const void *value, u32 bytes) {
    u32 index = host_here.index, set = current->items[index].exchanges++ & 1;
    struct host_slot *slot = &current->slots[set][index];
    memcpy(slot->words, value, bytes);
    stop(AT_WAVE);
    return &current->slots[set][index / WAVE * WAVE];
}

i32 host_dpp_source(u32 lane, u32 control) {
    i32 row = (i32)(lane & ~15u), at = (i32)(lane & 15), by = (i32)(control & 15);
    if (control < 0x100)
        return (i32)((lane & ~3u) | (control >> 2 * (lane & 3) & 3));
    switch (control >> 4) {
    case 0x10: return at + by < 16 ? row + at + by : -1;
    case 0x11: return at >= by ? row + at - by : -1;
    case 0x12: return row + (at - by & 15);
    case 0x14: return by == 0 ? row + 15 - at : row + (at ^ 7);
    case 0x15: return row + by;
    case 0x16: return row + (at ^ by);
    default: fprintf(stderr, "host: DPP control %#x is not of gfx11\n", control); abort();
    }
}

static void start(void) {
    current->body(current->args);
    current->items[host_here.index].state = DONE;
}

// Runs every ready item of the range up to its next stop.
static void advance(u32 from, u32 to) {
    for (u32 k = from; k < to; k++) {
        if (current->items[k].state != READY)
            continue;
        host_here = current->items[k].place;
        swapcontext(&current->scheduler, &current->items[k].context);
    }
}

// Makes the items of the range ready if all that still run are at `stop`. Returns whether there were any.
static int release(u32 from, u32 to, enum state stop) {
    u32 there = 0, running = 0, set = 0;
    for (u32 k = from; k < to; k++) {
        running += current->items[k].state != DONE;
        if (current->items[k].state == stop) {
            there++;
            set = ~current->items[k].exchanges & 1;
        }
    }
    if (there == 0 || there != running)
        return 0;
    for (u32 k = from; k < to; k++) {
        if (stop == AT_WAVE)
            current->slots[set][k].given = current->items[k].state == AT_WAVE;
        if (current->items[k].state == stop)
            current->items[k].state = READY;
    }
    return 1;
}

static void run_workgroup(void) {
    u32 count = current->count, left = count;
    while (left > 0) {
        for (u32 wave = 0; wave < count; wave += WAVE) {
            u32 end = wave + WAVE < count ? wave + WAVE : count;
            do
                advance(wave, end);
            while (release(wave, end, AT_WAVE));
        }
        left = 0;
        for (u32 k = 0; k < count; k++)
            left += current->items[k].state != DONE;
        if (left > 0 && !release(0, count, AT_BARRIER)) {
            fprintf(stderr, "host: items of a workgroup stand at different barriers or wave operations\n");
            abort();
        }
    }
}

static void make_item(u32 index, const u32 *group, const u32 *size) {
    struct item *item = &current->items[index];
    item->place.index = index;
    u32 local[3] = {index % size[0], index / size[0] % size[1], index / size[0] / size[1]};
    memcpy(item->place.item, local, sizeof local);
    memcpy(item->place.group, group, sizeof local);
    memcpy(item->place.group_size, size, sizeof local);
    item->state = READY;
    item->exchanges = 0;
    getcontext(&item->context);
    item->context.uc_stack.ss_sp = stacks + (size_t)index * STACK_BYTES;
    item->context.uc_stack.ss_size = STACK_BYTES;
    item->context.uc_link = &current->scheduler;
    makecontext(&item->context, start, 0);
}

void host_run(void (*body)(const void *), const void *args, const u32 *grid, const u32 *group) {
    if (current == NULL) {
        current = calloc(1, sizeof *current);
        stacks = malloc((size_t)MAX_ITEMS * STACK_BYTES);
    }
    u32 count = group[0] * group[1] * group[2];
    if (current == NULL || stacks == NULL || count > MAX_ITEMS) {
        fprintf(stderr, "host: no room for a workgroup of %u items\n", count);
        abort();
    }
    current->body = body;
    current->args = args;
    current->count = count;
    u32 id[3];
    for (id[2] = 0; id[2] < grid[2] / group[2]; id[2]++)
        for (id[1] = 0; id[1] < grid[1] / group[1]; id[1]++)
            for (id[0] = 0; id[0] < grid[0] / group[0]; id[0]++) {
                memset(current->slots, 0, sizeof current->slots);
                for (u32 k = 0; k < count; k++)
                    make_item(k, id, group);
                run_workgroup();
            }
}
