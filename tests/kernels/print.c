// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels that call the host by the protocol of ROCm's device library, which is not linked here.
#include "device.h"

typedef struct {
    u64 next, lanes;
    u32 service, control;
} Header;

typedef struct {
    u64 kind, value;
    GLOBAL u64 *mailbox;
    u32 event;
} Signal;

typedef struct {
    GLOBAL Header *headers;
    GLOBAL u64 (*payloads)[64][8];
    GLOBAL Signal *doorbell;
    u64 free_stack, ready_stack, index_mask;
} Buffer;

typedef GLOBAL Buffer *BufferPointer;

// Where code object v5 has the buffer's address among the hidden arguments.
#define HOSTCALL_BUFFER 80
#define READY 1u
#define PRINTF 2u
#define BEGINS 1ul
#define ENDS 2ul
#define LENGTH(words) ((u64)(words) << 5)
#define WITHOUT_LENGTH (~(LENGTH(7) | BEGINS | ENDS))

#define SYSTEM __MEMORY_SCOPE_SYSTEM
#define LOAD(place, order) __scoped_atomic_load_n(place, order, SYSTEM)
#define REPLACE(place, found, with, order) \
    __scoped_atomic_compare_exchange_n(place, &(found), with, 0, order, __ATOMIC_RELAXED, SYSTEM)

static BufferPointer buffer(void)
{
    typedef const __attribute__((address_space(4))) char *Hidden;
    typedef const __attribute__((address_space(4))) BufferPointer *Place;
    return *(Place)((Hidden)__builtin_amdgcn_implicitarg_ptr() + HOSTCALL_BUFFER);
}

static u64 pop(BufferPointer from)
{
    u64 top = LOAD(&from->free_stack, __ATOMIC_ACQUIRE);
    for (;;) {
        u64 next = LOAD(&from->headers[top & from->index_mask].next, __ATOMIC_RELAXED);
        if (REPLACE(&from->free_stack, top, next, __ATOMIC_ACQUIRE)) return top;
        __builtin_amdgcn_s_sleep(1);
    }
}

static void push(BufferPointer to, GLOBAL u64 *stack, u64 pointer)
{
    u64 top = LOAD(stack, __ATOMIC_RELAXED);
    do {
        to->headers[pointer & to->index_mask].next = top;
    } while (!REPLACE(stack, top, pointer, __ATOMIC_RELEASE));
}

static void ring(GLOBAL Signal *doorbell)
{
    __scoped_atomic_fetch_add(&doorbell->value, 1, __ATOMIC_RELEASE, SYSTEM);
    if (!doorbell->mailbox) return;
    __scoped_atomic_store_n(doorbell->mailbox, (u64)doorbell->event, __ATOMIC_RELEASE, SYSTEM);
    __builtin_amdgcn_s_sendmsg(1, __builtin_amdgcn_readfirstlane(doorbell->event) & 0xffffff);
}

// Calls the host for every lane that is here; the first word of the lane's answer.
static u64 call(u32 service, u64 descriptor, u64 first, u64 second, u64 third, u64 fourth)
{
    BufferPointer host = buffer();
    u32 lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
    u32 is_leader = lane == (u32)__builtin_amdgcn_readfirstlane(lane);
    u64 pointer = is_leader ? pop(host) : 0;
    u32 low = __builtin_amdgcn_readfirstlane((u32)pointer);
    pointer = low | (u64)(u32)__builtin_amdgcn_readfirstlane((u32)(pointer >> 32)) << 32;
    GLOBAL Header *header = &host->headers[pointer & host->index_mask];
    GLOBAL u64 *slot = host->payloads[pointer & host->index_mask][lane];
    u64 lanes = __builtin_amdgcn_read_exec();
    if (is_leader) {
        header->service = service;
        header->lanes = lanes;
        header->control = READY;
    }
    slot[0] = descriptor;
    slot[1] = first;
    slot[2] = second;
    slot[3] = third;
    slot[4] = fourth;
    if (is_leader) {
        push(host, &host->ready_stack, pointer);
        ring(host->doorbell);
    }
    for (;;) {
        u32 waits = 1;
        if (is_leader) waits = LOAD(&header->control, __ATOMIC_ACQUIRE) & READY;
        if (!__builtin_amdgcn_readfirstlane(waits)) break;
        __builtin_amdgcn_s_sleep(1);
    }
    u64 answer = slot[0];
    if (is_leader) push(host, &host->free_stack, pointer + host->index_mask + 1);
    return answer;
}

// "group %u, lane %u, round %u.\n" in words.
static const __attribute__((address_space(4))) u64 FORMAT[4] = {
    0x75252070756f7267,
    0x2520656e616c202c,
    0x646e756f72202c75,
    0x0a2e752520,
};

// Each lane prints `rounds` lines.
KERNEL print(u32 rounds)
{
    for (u32 round = 0; round < rounds; round++) {
        u64 message = call(PRINTF, BEGINS | LENGTH(1), 0, 0, 0, 0) & WITHOUT_LENGTH;
        message = call(PRINTF, message | LENGTH(4), FORMAT[0], FORMAT[1], FORMAT[2], FORMAT[3]) & WITHOUT_LENGTH;
        call(PRINTF, message | ENDS | LENGTH(3), GROUP_X, LOCAL_X, round, 0);
    }
}

// The first lane of each wave prints a line, when all waves of the work-group have begun.
KERNEL print_once_a_wave(void)
{
    BARRIER();
    if (LOCAL_X % 32) return;
    u64 message = call(PRINTF, BEGINS | LENGTH(1), 0, 0, 0, 0) & WITHOUT_LENGTH;
    message = call(PRINTF, message | LENGTH(4), FORMAT[0], FORMAT[1], FORMAT[2], FORMAT[3]) & WITHOUT_LENGTH;
    call(PRINTF, message | ENDS | LENGTH(3), GROUP_X, LOCAL_X, 0, 0);
}

// Calls a service and keeps the answer.
KERNEL ask(GLOBAL u64 *out, u32 service) { *out = call(service, 0, 0, 0, 0, 0); }
