// SPDX-License-Identifier: MIT OR Apache-2.0
// What came into the header after AMD's release 6.1: `newer` prints a line for each case, and how many failed. The structures are those of
// interface 1.31.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <hsa/hsa_ext_image.h>

#include "cases.h"
#include "machine.h"

enum { BYTES = 10000, PLACES = 3, XNACK_DISABLED = 48, NOT_SUPPORTED = 47 };

struct copy {
    uint16_t version, type, entries, traffic_class;
    hsa_signal_t done;
    uint64_t src;
    hsa_agent_t src_agent;
    uint64_t dst_agent, dst, size, other_size, wait[4], signal[3], reserved;
};
_Static_assert(sizeof(struct copy) == 128, "128 bytes");

struct desc {
    uint16_t version, flags;
    uint8_t engine, reserved_header[3];
    uint32_t bytes, priority;
    void (*callback)(hsa_status_t, hsa_queue_t *, void *);
    void *data;
    hsa_queue_t *queue;
    const uint32_t *mask;
    uint32_t type, private_bytes, mask_bits, reserved_compute[3], traffic_class;
    uint8_t reserved[20];
};
_Static_assert(sizeof(struct desc) == 96, "96 bytes");

struct fabric {
    uint8_t bytes[16];
};

hsa_status_t hsa_amd_memory_async_batch_copy(const struct copy *, uint32_t, uint32_t, const hsa_signal_t *);
hsa_status_t hsa_amd_queue_create(hsa_agent_t, struct desc *, uint32_t);
hsa_status_t hsa_amd_ais_file_read(uint64_t, void *, uint64_t, int64_t, uint64_t *, int32_t *);
hsa_status_t hsa_amd_ais_file_write(uint64_t, void *, uint64_t, int64_t, uint64_t *, int32_t *);
hsa_status_t hsa_amd_svm_discard_batch_async(void **, size_t *, uint32_t, uint32_t, const hsa_signal_t *, hsa_signal_t);
hsa_status_t hsa_amd_vmem_export_fabric_handle(struct fabric *, uint64_t, uint64_t);
hsa_status_t hsa_amd_vmem_import_fabric_handle(struct fabric, uint64_t *);
hsa_status_t hsa_amd_vmem_get_vmem_info(void *, void *);
hsa_status_t hsa_amd_signal_batch_create(void *, void *);
hsa_status_t hsa_amd_signal_batch_destroy(void *, void *);
hsa_status_t hsa_ext_image_create_v2(hsa_agent_t, const void *, const void *, uint32_t, uint64_t *);
hsa_status_t hsa_ext_image_destroy_v2(hsa_agent_t, uint64_t);
hsa_status_t hsa_ext_sampler_create_v2(hsa_agent_t, const void *, uint64_t *);

static unsigned char *device[PLACES], host[BYTES], back[BYTES];

static uint64_t address(const void *at) { return (uint64_t)(uintptr_t)at; }

static struct copy linear(hsa_signal_t done, void *to, hsa_agent_t to_agent, const void *from, hsa_agent_t from_agent) {
    return (struct copy){.version = 1, .done = done, .src = address(from), .src_agent = from_agent,
                         .dst_agent = to_agent.handle, .dst = address(to), .size = BYTES};
}

static bool ends(hsa_signal_t done) {
    return hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) == 0;
}

static bool holds(unsigned place, unsigned char value) {
    memset(back, value + 1, sizeof back);
    if (hsa_memory_copy(back, device[place], BYTES) != HSA_STATUS_SUCCESS)
        return false;
    for (unsigned i = 0; i < BYTES; i++)
        if (back[i] != value)
            return false;
    return true;
}

static void copies(void) {
    hsa_signal_t done, before;
    OK(hsa_signal_create(2, 0, NULL, &done));
    OK(hsa_signal_create(1, 0, NULL, &before));
    memset(host, 7, sizeof host);
    OK(hsa_memory_copy(device[0], host, BYTES));
    OK(hsa_amd_memory_fill(device[1], 0, BYTES / 4));
    struct copy two[] = {linear(done, device[1], gpu, device[0], gpu), linear(done, back, cpu, device[0], gpu)};
    memset(back, 0, sizeof back);
    OK(hsa_amd_memory_async_batch_copy(two, 2, 1, &before));
    usleep(10000);
    CHECK(hsa_signal_load_scacquire(done) == 2);
    hsa_signal_store_screlease(before, 0);
    CHECK(ends(done) && memcmp(back, host, BYTES) == 0 && holds(1, 7));
    report("a batch waits for signals, and decrements its own for each copy");
    memset(host, 9, sizeof host);
    OK(hsa_memory_copy(device[0], host, BYTES));
    void *to[] = {device[1], device[2]}, *from[] = {device[0], device[0] + 1};
    hsa_agent_t agents[] = {gpu, gpu};
    size_t sizes[] = {BYTES, BYTES - 1};
    struct copy many = {.version = 1, .type = 1, .entries = 2, .done = done, .src = address(device[0]), .src_agent = gpu,
                        .dst_agent = address(agents), .dst = address(to), .size = BYTES};
    hsa_signal_store_relaxed(done, 1);
    OK(hsa_amd_memory_async_batch_copy(&many, 1, 0, NULL));
    CHECK(ends(done) && holds(1, 9) && holds(2, 9));
    report("a copy to several places");
    memset(host, 11, sizeof host);
    OK(hsa_memory_copy(device[0], host, BYTES));
    many.type = 0;
    many.src = address(from);
    many.size = address(sizes);
    hsa_signal_store_relaxed(done, 1);
    OK(hsa_amd_memory_async_batch_copy(&many, 1, 0, NULL));
    CHECK(ends(done) && holds(1, 11));
    OK(hsa_memory_copy(back, device[2], BYTES));
    CHECK(back[0] == 11 && back[BYTES - 2] == 11 && back[BYTES - 1] == 9);
    report("a copy of several pieces, each of its own size");
    struct copy wrong = linear(done, device[1], gpu, device[0], gpu);
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_memory_async_batch_copy(NULL, 1, 0, NULL));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_memory_async_batch_copy(&wrong, 0, 0, NULL));
    wrong.version = 2;
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_memory_async_batch_copy(&wrong, 1, 0, NULL));
    wrong.version = 1;
    wrong.type = 6;
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_memory_async_batch_copy(&wrong, 1, 0, NULL));
    wrong.type = 2;
    STATUS(NOT_SUPPORTED, hsa_amd_memory_async_batch_copy(&wrong, 1, 0, NULL));
    wrong.type = 0;
    wrong.signal[0] = 1;
    STATUS(NOT_SUPPORTED, hsa_amd_memory_async_batch_copy(&wrong, 1, 0, NULL));
    wrong.signal[0] = 0;
    wrong.src = 0;
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_memory_async_batch_copy(&wrong, 1, 0, NULL));
    wrong = linear(before, device[1], gpu, device[0], gpu);
    struct copy others[] = {linear(done, device[1], gpu, device[0], gpu), wrong};
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_memory_async_batch_copy(others, 2, 0, NULL));
    CHECK(holds(1, 11));
    report("a batch with a copy that cannot be copies nothing");
    OK(hsa_signal_destroy(done));
    OK(hsa_signal_destroy(before));
}

static void queues(void) {
    uint32_t mask[] = {0xff, 0};
    struct desc descs[] = {
        {.version = 1, .bytes = 64 * 64, .priority = HSA_AMD_QUEUE_PRIORITY_NORMAL},
        {.version = 1, .bytes = 128 * 64, .priority = HSA_AMD_QUEUE_PRIORITY_HIGH, .flags = 1, .mask = mask, .mask_bits = 64},
        {.version = 1, .bytes = 64 * 64, .engine = 1},
        {.version = 1, .bytes = 100, .queue = (hsa_queue_t *)8},
    };
    STATUS(HSA_STATUS_ERROR_INVALID_QUEUE_CREATION, hsa_amd_queue_create(gpu, descs, 4));
    CHECK(descs[0].queue && descs[1].queue && !descs[2].queue && !descs[3].queue);
    CHECK(descs[0].queue->size == 64 && descs[1].queue->size == 128);
    uint32_t set[2] = {1, 1};
    OK(hsa_amd_queue_cu_get_mask(descs[1].queue, 64, set));
    CHECK(set[0] == 0xff && set[1] == 0);
    report("several queues, of which some cannot be");
    hsa_signal_t done;
    OK(hsa_signal_create(2, 0, NULL, &done));
    for (unsigned i = 0; i < 2; i++) {
        uint64_t index = hsa_queue_add_write_index_relaxed(descs[i].queue, 1);
        hsa_barrier_and_packet_t *packet = (hsa_barrier_and_packet_t *)descs[i].queue->base_address + index;
        memset((char *)packet + 4, 0, sizeof *packet - 4);
        packet->completion_signal = done;
        __atomic_store_n((uint32_t *)packet, HSA_PACKET_TYPE_BARRIER_AND, __ATOMIC_RELEASE);
        hsa_signal_store_screlease(descs[i].queue->doorbell_signal, (int64_t)index);
    }
    CHECK(ends(done));
    OK(hsa_queue_destroy(descs[0].queue));
    OK(hsa_queue_destroy(descs[1].queue));
    OK(hsa_signal_destroy(done));
    report("they process packets");
    struct desc wrong = {.version = 2, .bytes = 4096};
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_queue_create(gpu, &wrong, 1));
    wrong = (struct desc){.version = 1, .bytes = 4096, .priority = 77};
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_queue_create(gpu, &wrong, 1));
    wrong = (struct desc){.version = 1, .bytes = 4096, .reserved = {1}};
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_queue_create(gpu, &wrong, 1));
    wrong = (struct desc){.version = 1, .bytes = 4096, .mask = mask, .mask_bits = 5};
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_queue_create(gpu, &wrong, 1));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_queue_create(gpu, NULL, 1));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_queue_create(gpu, &wrong, 0));
    STATUS(HSA_STATUS_ERROR_INVALID_AGENT, hsa_amd_queue_create((hsa_agent_t){0}, &wrong, 1));
    wrong = (struct desc){.version = 1, .bytes = 4096};
    STATUS(HSA_STATUS_ERROR_INVALID_QUEUE_CREATION, hsa_amd_queue_create(cpu, &wrong, 1));
    report("queues that cannot be");
}

static void files(void) {
    int file = memfd_create("numbers", 0);
    uint64_t handle = (uint32_t)file, copied = 4711;
    int32_t status = 4711;
    for (unsigned i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i * 7);
    CHECK(pwrite(file, host, BYTES, 100) == BYTES);
    OK(hsa_amd_ais_file_read(handle, device[0], BYTES, 100, &copied, &status));
    CHECK(copied == BYTES && status == 0);
    OK(hsa_memory_copy(back, device[0], BYTES));
    CHECK(memcmp(back, host, BYTES) == 0);
    OK(hsa_amd_ais_file_read(handle, device[1], BYTES, BYTES, &copied, NULL));
    CHECK(copied == 100);
    OK(hsa_amd_ais_file_write(handle, device[0], BYTES, 50000, &copied, &status));
    CHECK(copied == BYTES && pread(file, back, BYTES, 50000) == BYTES && memcmp(back, host, BYTES) == 0);
    report("a file goes into memory and back");
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_ais_file_read(handle, NULL, 8, 0, NULL, NULL));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_ais_file_read(handle, device[0], 0, 0, NULL, NULL));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_ais_file_read(handle, device[0], 8, -1, NULL, NULL));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_ais_file_read(1000000, device[0], 8, 0, NULL, NULL));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_ais_file_read(UINT64_MAX, device[0], 8, 0, NULL, NULL));
    STATUS(HSA_STATUS_ERROR_INVALID_ALLOCATION, hsa_amd_ais_file_read(handle, back, 8, 0, NULL, NULL));
    STATUS(HSA_STATUS_ERROR_INVALID_ALLOCATION, hsa_amd_ais_file_read(handle, device[0], UINT64_MAX, 0, NULL, NULL));
    int ends_of[2];
    CHECK(pipe(ends_of) == 0);
    STATUS(HSA_STATUS_ERROR, hsa_amd_ais_file_read((uint32_t)ends_of[0], device[0], 8, 0, &copied, NULL));
    report("files and memory that are none are refused");
}

static void refusals(void) {
    void *at = device[0];
    size_t size = BYTES;
    uint64_t word = 0;
    struct fabric fabric = {{0}};
    uint64_t many[16] = {0};
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_svm_discard_batch_async(NULL, &size, 1, 0, NULL, (hsa_signal_t){0}));
    STATUS(XNACK_DISABLED, hsa_amd_svm_discard_batch_async(&at, &size, 1, 0, NULL, (hsa_signal_t){0}));
    STATUS(NOT_SUPPORTED, hsa_amd_vmem_export_fabric_handle(&fabric, 1, 0));
    STATUS(NOT_SUPPORTED, hsa_amd_vmem_import_fabric_handle(fabric, &word));
    STATUS(NOT_SUPPORTED, hsa_amd_vmem_get_vmem_info(at, many));
    STATUS(NOT_SUPPORTED, hsa_amd_signal_batch_create(many, many));
    STATUS(NOT_SUPPORTED, hsa_amd_signal_batch_destroy(many, many));
    STATUS(HSA_EXT_STATUS_ERROR_IMAGE_FORMAT_UNSUPPORTED, hsa_ext_image_create_v2(gpu, many, at, 3, &word));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_ext_image_create_v2(gpu, NULL, at, 3, &word));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_ext_image_destroy_v2(gpu, 1));
    STATUS(HSA_EXT_STATUS_ERROR_SAMPLER_DESCRIPTOR_UNSUPPORTED, hsa_ext_sampler_create_v2(gpu, many, &word));
    report("what is not offered is refused");
}

int main(void) {
    OK(hsa_init());
    find_machine();
    for (unsigned place = 0; place < PLACES; place++)
        OK(hsa_amd_memory_pool_allocate(vram, BYTES, 0, (void **)&device[place]));
    copies();
    queues();
    files();
    refusals();
    OK(hsa_shut_down());
    report("the runtime is shut down");
    printf("%u cases, %u failed\n", cases, failures);
    return failures != 0;
}
