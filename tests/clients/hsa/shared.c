// SPDX-License-Identifier: MIT OR Apache-2.0
// Shared virtual memory, case by case: `shared [--hostile]` prints a line for each, and how many failed. The same cases pass on AMD's
// runtime, without --hostile.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>

#include "cases.h"
#include "machine.h"

enum { PAGE = 4096, PAGES = 16 };

static char *memory;

static hsa_status_t set_at(void *at, size_t size, uint64_t attribute, uint64_t value) {
    hsa_amd_svm_attribute_pair_t pair = {attribute, value};
    return hsa_amd_svm_attributes_set(at, size, &pair, 1);
}

static hsa_status_t set(uint64_t attribute, uint64_t value) {
    return set_at(memory, PAGES * PAGE, attribute, value);
}

// What is set for the memory, or the value 4711 where that is refused.
static uint64_t get(uint64_t attribute) {
    hsa_amd_svm_attribute_pair_t pair = {attribute, 4711};
    OK(hsa_amd_svm_attributes_get(memory, PAGES * PAGE, &pair, 1));
    return pair.value;
}

static uint64_t use(hsa_agent_t agent) {
    hsa_amd_svm_attribute_pair_t pair = {HSA_AMD_SVM_ATTRIB_ACCESS_QUERY, agent.handle};
    OK(hsa_amd_svm_attributes_get(memory, PAGES * PAGE, &pair, 1));
    return pair.attribute;
}

static void refusals(void) {
    hsa_amd_svm_attribute_pair_t pair = {HSA_AMD_SVM_ATTRIB_READ_ONLY, 1};
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set_at(memory, PAGE, 77, 0));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set_at(memory, PAGE, UINT64_MAX, 0));
    report("an unknown attribute is refused");
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set(HSA_AMD_SVM_ATTRIB_PREFETCH_LOCATION, gpu.handle));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set(HSA_AMD_SVM_ATTRIB_ACCESS_QUERY, gpu.handle));
    report("what can only be asked for is not set");
    pair = (hsa_amd_svm_attribute_pair_t){HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE, gpu.handle};
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_svm_attributes_get(memory, PAGE, &pair, 1));
    pair.attribute = HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS;
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, hsa_amd_svm_attributes_get(memory, PAGE, &pair, 1));
    report("what can only be set is not asked for");
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set(HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG, 2));
    STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set(HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG, 7));
    report("a model of memory that is none is refused");
    STATUS(HSA_STATUS_ERROR_INVALID_AGENT, set(HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE, 0));
    report("access of no agent is refused");
    hsa_amd_svm_attribute_pair_t twice[] = {{HSA_AMD_SVM_ATTRIB_READ_ONLY, 1}, {HSA_AMD_SVM_ATTRIB_READ_ONLY, 0}};
    STATUS(HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS, hsa_amd_svm_attributes_set(memory, PAGE, twice, 2));
    hsa_amd_svm_attribute_pair_t both[] = {{HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE, gpu.handle},
                                           {HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS, gpu.handle}};
    STATUS(HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS, hsa_amd_svm_attributes_set(memory, PAGE, both, 2));
    report("what is given twice is refused");
    char *unmapped = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(unmapped, PAGE);
    STATUS(HSA_STATUS_ERROR, set_at(unmapped, PAGE, HSA_AMD_SVM_ATTRIB_READ_ONLY, 1));
    STATUS(HSA_STATUS_ERROR, hsa_amd_svm_attributes_get(unmapped, PAGE, &(hsa_amd_svm_attribute_pair_t){1, 0}, 1));
    report("addresses without memory are refused");
}

static void attributes(void) {
    CHECK(get(HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG) == HSA_AMD_SVM_GLOBAL_FLAG_FINE_GRAINED);
    CHECK(get(HSA_AMD_SVM_ATTRIB_READ_ONLY) == 0 && get(HSA_AMD_SVM_ATTRIB_READ_MOSTLY) == 0);
    CHECK(get(HSA_AMD_SVM_ATTRIB_HIVE_LOCAL) == 0 && get(HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY) == 9);
    CHECK(get(HSA_AMD_SVM_ATTRIB_PREFERRED_LOCATION) == 0 && get(HSA_AMD_SVM_ATTRIB_PREFETCH_LOCATION) == 0);
    report("memory for which nothing was set has the defaults");
    OK(set(HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG, HSA_AMD_SVM_GLOBAL_FLAG_COARSE_GRAINED));
    CHECK(get(HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG) == HSA_AMD_SVM_GLOBAL_FLAG_COARSE_GRAINED);
    OK(set_at(memory, PAGE, HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG, HSA_AMD_SVM_GLOBAL_FLAG_FINE_GRAINED));
    CHECK(get(HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG) == HSA_AMD_SVM_GLOBAL_FLAG_INDETERMINATE);
    OK(set(HSA_AMD_SVM_ATTRIB_GLOBAL_FLAG, HSA_AMD_SVM_GLOBAL_FLAG_FINE_GRAINED));
    report("the model of memory is told, also where it differs");
    for (uint64_t value = 1;; value--) {
        OK(set(HSA_AMD_SVM_ATTRIB_READ_MOSTLY, value));
        CHECK(!get(HSA_AMD_SVM_ATTRIB_READ_MOSTLY) == !value);
        OK(set(HSA_AMD_SVM_ATTRIB_HIVE_LOCAL, value));
        CHECK(!get(HSA_AMD_SVM_ATTRIB_HIVE_LOCAL) == !value);
        OK(set(HSA_AMD_SVM_ATTRIB_READ_ONLY, value));
        CHECK(!get(HSA_AMD_SVM_ATTRIB_READ_ONLY) == !value);
        if (!value)
            break;
    }
    report("flags are set and cleared");
    OK(set(HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY, 3));
    CHECK(get(HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY) == 3);
    OK(set(HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY, 1000));
    CHECK(get(HSA_AMD_SVM_ATTRIB_MIGRATION_GRANULARITY) == 18);
    report("granularity has a largest value");
    hsa_agent_t places[] = {gpu, cpu, {0}};
    for (unsigned i = 0; i < 3; i++) {
        OK(set(HSA_AMD_SVM_ATTRIB_PREFERRED_LOCATION, places[i].handle));
        CHECK(get(HSA_AMD_SVM_ATTRIB_PREFERRED_LOCATION) == places[i].handle);
    }
    report("the preferred location is an agent or none");
    hsa_amd_svm_attribute_pair_t many[] = {{HSA_AMD_SVM_ATTRIB_READ_MOSTLY, 1}, {HSA_AMD_SVM_ATTRIB_HIVE_LOCAL, 1}};
    OK(hsa_amd_svm_attributes_set(memory + 5, 10, many, 2));
    hsa_amd_svm_attribute_pair_t asked[] = {{HSA_AMD_SVM_ATTRIB_HIVE_LOCAL, 9}, {HSA_AMD_SVM_ATTRIB_READ_MOSTLY, 9}};
    OK(hsa_amd_svm_attributes_get(memory + PAGE - 1, 1, asked, 2));
    CHECK(asked[0].value && asked[1].value);
    OK(hsa_amd_svm_attributes_get(memory + PAGE, 1, asked, 2));
    CHECK(asked[0].value == 0 && asked[1].value == 0);
    report("attributes are those of whole pages, several at once");
}

static void uses(void) {
    CHECK(use(gpu) == HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS);
    OK(set(HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE, gpu.handle));
    CHECK(use(gpu) == HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE);
    OK(set(HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE, gpu.handle));
    CHECK(use(gpu) == HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE);
    OK(set_at(memory + PAGE, PAGE, HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS, gpu.handle));
    CHECK(use(gpu) == HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS);
    report("access of a GPU is given, taken, and told of all of a range");
    CHECK(use(cpu) == HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE);
    OK(set(HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS, cpu.handle));
    OK(set(HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE, cpu.handle));
    CHECK(use(cpu) == HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE);
    report("access of the host is a flag");
    OK(set(HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE, gpu.handle));
    memset(memory, 0x5a, PAGES * PAGE);
    void *device;
    hsa_signal_t done;
    OK(hsa_amd_memory_pool_allocate(vram, PAGE, 0, &device));
    OK(hsa_signal_create(1, 0, NULL, &done));
    OK(hsa_amd_memory_async_copy(device, gpu, memory, gpu, PAGE, 0, NULL, done));
    CHECK(hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) == 0);
    hsa_signal_store_relaxed(done, 1);
    OK(hsa_amd_memory_async_copy(memory + 2 * PAGE, gpu, device, gpu, PAGE, 0, NULL, done));
    CHECK(hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) == 0);
    CHECK(memcmp(memory, memory + 2 * PAGE, PAGE) == 0);
    OK(hsa_signal_destroy(done));
    OK(hsa_amd_memory_pool_free(device));
    report("an agent copies between shared memory and its own");
}

// Of locks that overlap, and of access that the program has given itself.
static void locks(void) {
    void *first = NULL, *second = NULL;
    OK(set(HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS, gpu.handle));
    OK(hsa_amd_memory_lock(memory, PAGES * PAGE, &gpu, 1, &first));
    OK(hsa_amd_memory_lock(memory + 4 * PAGE, 4 * PAGE, &gpu, 1, &second));
    CHECK(first == memory && second == memory + 4 * PAGE);
    CHECK(use(gpu) == HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE);
    OK(hsa_amd_memory_unlock(memory));
    CHECK(use(gpu) == HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS);
    hsa_amd_svm_attribute_pair_t pair = {HSA_AMD_SVM_ATTRIB_ACCESS_QUERY, gpu.handle};
    OK(hsa_amd_svm_attributes_get(memory + 4 * PAGE, 4 * PAGE, &pair, 1));
    CHECK(pair.attribute == HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE_IN_PLACE);
    hsa_amd_pointer_info_t info = {.size = sizeof info};
    uint32_t count = 0;
    hsa_agent_t *agents = NULL;
    OK(hsa_amd_pointer_info(memory + 5 * PAGE, &info, malloc, &count, &agents));
    CHECK(info.type == HSA_EXT_POINTER_TYPE_LOCKED && count == 1 && agents[0].handle == gpu.handle);
    free(agents);
    OK(hsa_amd_memory_unlock(memory + 4 * PAGE));
    pair.attribute = HSA_AMD_SVM_ATTRIB_ACCESS_QUERY;
    OK(hsa_amd_svm_attributes_get(memory + 4 * PAGE, 4 * PAGE, &pair, 1));
    CHECK(pair.attribute == HSA_AMD_SVM_ATTRIB_AGENT_NO_ACCESS);
    report("the last lock of a page takes its access");
    OK(set_at(memory + PAGE, PAGE, HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE, gpu.handle));
    OK(hsa_amd_memory_lock(memory, 3 * PAGE, &gpu, 1, &first));
    OK(hsa_amd_memory_unlock(memory));
    pair.attribute = HSA_AMD_SVM_ATTRIB_ACCESS_QUERY;
    OK(hsa_amd_svm_attributes_get(memory + PAGE, PAGE, &pair, 1));
    CHECK(pair.attribute == HSA_AMD_SVM_ATTRIB_AGENT_ACCESSIBLE);
    report("access that the program gave itself is no lock's to take");
}

static void prefetches(void) {
    hsa_signal_t before, done;
    OK(hsa_signal_create(1, 0, NULL, &before));
    OK(hsa_signal_create(1, 0, NULL, &done));
    OK(hsa_amd_svm_prefetch_async(memory, PAGES * PAGE, gpu, 1, &before, done));
    usleep(20000);
    CHECK(hsa_signal_load_scacquire(done) == 1);
    hsa_signal_store_screlease(before, 0);
    CHECK(hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) == 0);
    CHECK(get(HSA_AMD_SVM_ATTRIB_PREFETCH_LOCATION) == gpu.handle);
    report("a prefetch waits for signals and completes one");
    hsa_signal_store_relaxed(done, 1);
    OK(hsa_amd_svm_prefetch_async(memory, PAGES * PAGE, cpu, 0, NULL, done));
    CHECK(hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) == 0);
    CHECK(get(HSA_AMD_SVM_ATTRIB_PREFETCH_LOCATION) == cpu.handle);
    report("a prefetch to the host");
    OK(hsa_signal_destroy(before));
    OK(hsa_signal_destroy(done));
}

int main(int count, char **arguments) {
    (void)arguments;
    OK(hsa_init());
    find_machine();
    bool supported = false, by_default = true;
    OK(hsa_system_get_info(HSA_AMD_SYSTEM_INFO_SVM_SUPPORTED, &supported));
    OK(hsa_system_get_info(HSA_AMD_SYSTEM_INFO_SVM_ACCESSIBLE_BY_DEFAULT, &by_default));
    CHECK(supported && !by_default);
    report("the system has shared virtual memory");
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    refusals();
    attributes();
    uses();
    prefetches();
    if (count > 1)
        locks();
    munmap(memory, PAGES * PAGE);
    if (count > 1) {
        // Of which AMD's runtime crashes.
        hsa_signal_t done = {0};
        STATUS(HSA_STATUS_ERROR_INVALID_AGENT, hsa_amd_svm_prefetch_async(memory, PAGE, (hsa_agent_t){0}, 0, NULL, done));
        STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set_at(NULL, PAGE, HSA_AMD_SVM_ATTRIB_READ_ONLY, 1));
        STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set_at(memory, 0, HSA_AMD_SVM_ATTRIB_READ_ONLY, 1));
        STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set_at(memory, SIZE_MAX, HSA_AMD_SVM_ATTRIB_READ_ONLY, 1));
        STATUS(HSA_STATUS_ERROR_INVALID_ARGUMENT, set_at((void *)-8, 64, HSA_AMD_SVM_ATTRIB_READ_ONLY, 1));
        report("arguments that cannot be are refused");
    }
    printf("%u cases, %u failed\n", cases, failures);
    fflush(stdout);
    _exit(failures != 0);
}
