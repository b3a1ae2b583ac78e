// SPDX-License-Identifier: MIT OR Apache-2.0
// A client that asks the runtime for nothing once it has a queue: `ring FILE` reserves packets in the `amd_queue_t`, writes them into the
// ring and stores to the doorbell itself, from two threads, until the file is there. Then every packet must have been processed, once, and
// no index may ever have been another one than this program made it.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pthread.h>

#include <hsa/amd_hsa_queue.h>
#include <hsa/amd_hsa_signal.h>
#include <hsa/hsa.h>

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: not %s\n", __LINE__, #condition);                                                         \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static hsa_agent_t gpu;
static amd_queue_t *queue;
static volatile int64_t *value;
static hsa_signal_t done;
static bool stop;
static uint64_t written[2];

static hsa_status_t find(hsa_agent_t agent, void *data) {
    (void)data;
    hsa_device_type_t type;
    hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
    if (type == HSA_DEVICE_TYPE_GPU)
        gpu = agent;
    return HSA_STATUS_SUCCESS;
}

static const uint16_t HEADER = HSA_PACKET_TYPE_BARRIER_AND << HSA_PACKET_HEADER_TYPE |
                               HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE |
                               HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE;

static void *produce(void *data) {
    unsigned me = *(unsigned *)data;
    hsa_barrier_and_packet_t *ring = queue->hsa_queue.base_address;
    const uint64_t size = queue->hsa_queue.size;
    volatile uint64_t *bell =
        ((amd_signal_t *)queue->hsa_queue.doorbell_signal.handle)->hardware_doorbell_ptr;
    uint64_t last = 0;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        uint64_t index = __atomic_fetch_add(&queue->write_dispatch_id, 1, __ATOMIC_RELAXED);
        REQUIRE(written[me] == 0 || index > last);
        last = index;
        // Reserved first, as runtimes do that spin: the ring may be full by then.
        for (uint64_t read; index - (read = __atomic_load_n(&queue->read_dispatch_id, __ATOMIC_ACQUIRE)) >= size;)
            REQUIRE(read <= index);
        hsa_barrier_and_packet_t *packet = &ring[index & (size - 1)];
        memset((char *)packet + 4, 0, sizeof *packet - 4);
        packet->completion_signal = done;
        __atomic_store_n((uint32_t *)packet, HEADER, __ATOMIC_RELEASE);
        __atomic_store_n(bell, index, __ATOMIC_RELEASE);
        written[me]++;
    }
    return NULL;
}

int main(int count, char **arguments) {
    REQUIRE(count == 2 && hsa_init() == HSA_STATUS_SUCCESS);
    hsa_iterate_agents(find, NULL);
    hsa_queue_t *made = NULL;
    REQUIRE(hsa_queue_create(gpu, 256, HSA_QUEUE_TYPE_MULTI, NULL, NULL, 0, 0, &made) == HSA_STATUS_SUCCESS);
    queue = (amd_queue_t *)made;
    REQUIRE(hsa_signal_create(0, 0, NULL, &done) == HSA_STATUS_SUCCESS);
    value = &((amd_signal_t *)done.handle)->value;
    pthread_t threads[2];
    unsigned numbers[2] = {0, 1};
    for (unsigned i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, produce, &numbers[i]);
    while (access(arguments[1], F_OK) != 0) {
        usleep(20000);
        printf("round %lld\n", -(long long)*value);
        fflush(stdout);
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    const uint64_t all = written[0] + written[1];
    REQUIRE(all > 1000 && queue->write_dispatch_id == all);
    hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_EQ, -(int64_t)all, 60000000000ull, HSA_WAIT_STATE_BLOCKED);
    REQUIRE(*value == -(int64_t)all);
    usleep(100000);
    REQUIRE(*value == -(int64_t)all && queue->read_dispatch_id == all);
    printf("PASS ring\n");
    return 0;
}
