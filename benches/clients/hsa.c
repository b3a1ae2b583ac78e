// SPDX-License-Identifier: MIT OR Apache-2.0
// What calls of an HSA runtime take: `hsa init` prints how long the first hsa_init took, `hsa calls FILE` a case and nanoseconds a line, and
// `hsa steps FILE` a case and instructions a line, with the kernel of this same file.
#ifdef __AMDGCN__
__attribute__((amdgpu_kernel, visibility("protected"))) void empty(void) {}
#else
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #condition);                                                \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define OK(call) REQUIRE((call) == HSA_STATUS_SUCCESS)

enum { STEPPED = 256, RING = 4096, BURST = 256, BURSTS = 200, TRIPS = 2000, WAKES = 400, COPIES = 300, ALLOCATIONS = 300 };

static hsa_agent_t gpu, cpu;
static hsa_amd_memory_pool_t device, host;
static hsa_queue_t *queue;
static uint64_t kernel;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int by_size(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static void report(const char *name, uint64_t *times, size_t count, unsigned parts) {
    qsort(times, count, sizeof *times, by_size);
    printf("%s %.1f\n", name, (double)times[count / 2] / parts);
    fflush(stdout);
}

static hsa_status_t find_agent(hsa_agent_t agent, void *data) {
    (void)data;
    hsa_device_type_t type;
    hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
    *(type == HSA_DEVICE_TYPE_GPU ? &gpu : &cpu) = agent;
    return HSA_STATUS_SUCCESS;
}

static hsa_status_t find_pool(hsa_amd_memory_pool_t pool, void *data) {
    hsa_amd_memory_pool_t *found = data;
    hsa_amd_segment_t segment;
    uint32_t flags = 0;
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment);
    hsa_amd_memory_pool_get_info(pool, HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS, &flags);
    uint32_t wanted = found == &host ? HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED
                                     : HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
    if (segment == HSA_AMD_SEGMENT_GLOBAL && found->handle == 0 && (flags & wanted))
        *found = pool;
    return HSA_STATUS_SUCCESS;
}

static void load(const char *path) {
    hsa_code_object_reader_t reader;
    hsa_executable_t executable;
    hsa_executable_symbol_t symbol;
    int file = open(path, O_RDONLY);
    REQUIRE(file >= 0);
    OK(hsa_code_object_reader_create_from_file(file, &reader));
    OK(hsa_executable_create_alt(HSA_PROFILE_BASE, HSA_DEFAULT_FLOAT_ROUNDING_MODE_DEFAULT, NULL, &executable));
    OK(hsa_executable_load_agent_code_object(executable, gpu, reader, NULL, NULL));
    OK(hsa_executable_freeze(executable, NULL));
    OK(hsa_executable_get_symbol_by_name(executable, "empty.kd", &gpu, &symbol));
    OK(hsa_executable_symbol_get_info(symbol, HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT, &kernel));
}

static const uint16_t HEADER = HSA_PACKET_TYPE_KERNEL_DISPATCH << HSA_PACKET_HEADER_TYPE |
                               HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE |
                               HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE;

static void dispatch(hsa_signal_t done, bool rings) {
    uint64_t index = hsa_queue_add_write_index_relaxed(queue, 1);
    hsa_kernel_dispatch_packet_t *packet = (hsa_kernel_dispatch_packet_t *)queue->base_address + (index & (RING - 1));
    memset((char *)packet + 4, 0, sizeof *packet - 4);
    packet->workgroup_size_x = packet->grid_size_x = 32;
    packet->workgroup_size_y = packet->workgroup_size_z = packet->grid_size_y = packet->grid_size_z = 1;
    packet->kernel_object = kernel;
    packet->completion_signal = done;
    __atomic_store_n((uint32_t *)packet, HEADER | 1u << 16, __ATOMIC_RELEASE);
    if (rings)
        hsa_signal_store_screlease(queue->doorbell_signal, (int64_t)index);
}

static void submits(const char *name, bool each) {
    static uint64_t times[BURSTS];
    hsa_signal_t done;
    OK(hsa_signal_create(1, 0, NULL, &done));
    for (unsigned burst = 0; burst < BURSTS; burst++) {
        hsa_signal_store_relaxed(done, 1);
        uint64_t started = now();
        for (unsigned i = 1; i < BURST; i++)
            dispatch((hsa_signal_t){0}, each);
        dispatch(done, true);
        times[burst] = now() - started;
        while (hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) > 0)
            ;
    }
    report(name, times, BURSTS, BURST);
    OK(hsa_signal_destroy(done));
}

static void trips(const char *name, hsa_wait_state_t state) {
    static uint64_t times[TRIPS];
    hsa_signal_t done;
    OK(hsa_signal_create(1, 0, NULL, &done));
    for (unsigned trip = 0; trip < TRIPS; trip++) {
        hsa_signal_store_relaxed(done, 1);
        uint64_t started = now();
        dispatch(done, true);
        while (hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, state) > 0)
            ;
        times[trip] = now() - started;
    }
    report(name, times, TRIPS, 1);
    OK(hsa_signal_destroy(done));
}

// Counts the instructions of another process's thread between two marks, a SIGUSR1 each: exact where there are no counters of the processor.
static void count_steps(pid_t pid, int ready) {
    int status;
    REQUIRE(ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_EXITKILL) == 0);
    close(ready);
    for (;;) {
        uint64_t steps = 0;
        do {
            if (waitpid(pid, &status, __WALL) != pid || WIFEXITED(status) || WIFSIGNALED(status))
                _exit(0);
            REQUIRE(WIFSTOPPED(status));
            int signal = WSTOPSIG(status) == SIGUSR1 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
            if (WSTOPSIG(status) == SIGUSR1)
                break;
            REQUIRE(ptrace(PTRACE_CONT, pid, 0, signal) == 0);
        } while (1);
        do {
            REQUIRE(ptrace(PTRACE_SINGLESTEP, pid, 0, 0) == 0);
            REQUIRE(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
            steps++;
        } while (WSTOPSIG(status) == SIGTRAP);
        REQUIRE(WSTOPSIG(status) == SIGUSR1);
        printf("%" PRIu64 "\n", steps);
        fflush(stdout);
        REQUIRE(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
    }
}

static void marked(const char *name, bool each, unsigned count) {
    printf("%s ", name);
    fflush(stdout);
    raise(SIGUSR1);
    for (unsigned i = 0; i < count; i++)
        dispatch((hsa_signal_t){0}, each);
    raise(SIGUSR1);
}

static void steps(void) {
    // What marks cost themselves is counted by the case of none.
    marked("steps_0", false, 0);
    marked("steps_each", true, STEPPED);
    marked("steps_batch", false, STEPPED);
    hsa_signal_t done;
    OK(hsa_signal_create(1, 0, NULL, &done));
    dispatch(done, true);
    hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED);
    OK(hsa_signal_destroy(done));
}

static hsa_signal_t bell;
static uint64_t woken[WAKES];

static void *sleeper(void *data) {
    for (int64_t wake = 0; wake < WAKES; wake++) {
        while (hsa_signal_wait_scacquire(bell, HSA_SIGNAL_CONDITION_GTE, wake + 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED) <= wake)
            ;
        __atomic_store_n(&woken[wake], now(), __ATOMIC_RELEASE);
    }
    return data;
}

static void wakes(const char *name) {
    static uint64_t times[WAKES];
    OK(hsa_signal_create(0, 0, NULL, &bell));
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    for (int64_t wake = 0; wake < WAKES; wake++) {
        // Long after a runtime has ceased to look.
        usleep(5000);
        uint64_t started = now(), at;
        hsa_signal_store_screlease(bell, wake + 1);
        while ((at = __atomic_load_n(&woken[wake], __ATOMIC_ACQUIRE)) == 0)
            ;
        times[wake] = at - started;
    }
    pthread_join(thread, NULL);
    report(name, times, WAKES, 1);
    OK(hsa_signal_destroy(bell));
}

static void allocations(const char *name, hsa_amd_memory_pool_t pool, size_t size) {
    static uint64_t times[ALLOCATIONS];
    for (unsigned i = 0; i < ALLOCATIONS; i++) {
        void *memory = NULL;
        uint64_t started = now();
        OK(hsa_amd_memory_pool_allocate(pool, size, 0, &memory));
        OK(hsa_amd_memory_pool_free(memory));
        times[i] = now() - started;
    }
    report(name, times, ALLOCATIONS, 1);
}

static void copies(const char *name, size_t size) {
    static uint64_t times[COPIES];
    void *from = NULL, *to = NULL;
    OK(hsa_amd_memory_pool_allocate(host, size, 0, &from));
    OK(hsa_amd_agents_allow_access(1, &gpu, NULL, from));
    OK(hsa_amd_memory_pool_allocate(device, size, 0, &to));
    OK(hsa_amd_agents_allow_access(1, &cpu, NULL, to));
    hsa_signal_t done;
    OK(hsa_signal_create(1, 0, NULL, &done));
    for (unsigned i = 0; i < COPIES; i++) {
        memset(from, (int)i, size);
        hsa_signal_store_relaxed(done, 1);
        uint64_t started = now();
        OK(hsa_amd_memory_async_copy(to, gpu, from, cpu, size, 0, NULL, done));
        while (hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_ACTIVE) > 0)
            ;
        times[i] = now() - started;
        REQUIRE(memcmp(from, to, size) == 0);
    }
    report(name, times, COPIES, 1);
    OK(hsa_signal_destroy(done));
    OK(hsa_amd_memory_pool_free(from));
    OK(hsa_amd_memory_pool_free(to));
}

int main(int count, char **arguments) {
    REQUIRE(count >= 2);
    bool counts = strcmp(arguments[1], "steps") == 0;
    if (counts) {
        int ready[2];
        REQUIRE(pipe(ready) == 0);
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        pid_t traced = getpid();
        if (fork() == 0) {
            close(ready[0]);
            count_steps(traced, ready[1]);
        }
        close(ready[1]);
        char none;
        // Ends when the tracer is there.
        REQUIRE(read(ready[0], &none, 1) == 0);
        close(ready[0]);
    }
    uint64_t started = now();
    OK(hsa_init());
    uint64_t times[] = {now() - started};
    if (count == 2) {
        report("init", times, 1, 1);
        return hsa_shut_down() != HSA_STATUS_SUCCESS;
    }
    OK(hsa_iterate_agents(find_agent, NULL));
    OK(hsa_amd_agent_iterate_memory_pools(gpu, find_pool, &device));
    OK(hsa_amd_agent_iterate_memory_pools(cpu, find_pool, &host));
    load(arguments[2]);
    OK(hsa_queue_create(gpu, RING, HSA_QUEUE_TYPE_SINGLE, NULL, NULL, 0, 0, &queue));
    // Not counted: the kernel is compiled, threads start.
    hsa_signal_t done;
    OK(hsa_signal_create(1, 0, NULL, &done));
    dispatch(done, true);
    hsa_signal_wait_scacquire(done, HSA_SIGNAL_CONDITION_LT, 1, UINT64_MAX, HSA_WAIT_STATE_BLOCKED);
    if (counts) {
        steps();
        return 0;
    }
    submits("submit_each", true);
    submits("submit_batch", false);
    trips("trip_active", HSA_WAIT_STATE_ACTIVE);
    trips("trip_blocked", HSA_WAIT_STATE_BLOCKED);
    wakes("wake");
    allocations("allocate_device_64k", device, 64 << 10);
    allocations("allocate_device_16m", device, 16 << 20);
    allocations("allocate_host_64k", host, 64 << 10);
    copies("copy_4k", 4 << 10);
    copies("copy_4m", 4 << 20);
    return 0;
}
#endif
