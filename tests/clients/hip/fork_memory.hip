// SPDX-License-Identifier: MIT OR Apache-2.0
// Memory that is registered when a process forks: the child has a copy of what was private, its stack too, and stores to none
// of the parent's; it shares what was shared. The parent's device goes on with the parent's pages.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const unsigned COUNT = 64 << 10;

__global__ void add(unsigned *values, unsigned count, unsigned more) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count)
        values[at] += more;
}

static void add_on_device(unsigned *values, unsigned count, unsigned more) {
    unsigned *device;
    CHECK(hipHostGetDevicePointer(reinterpret_cast<void **>(&device), values, 0));
    add<<<(count + 255) / 256, 256>>>(device, count, more);
    CHECK(hipGetLastError());
    CHECK(hipDeviceSynchronize());
}

static void require_all(const unsigned *values, unsigned count, unsigned first, const char *whose) {
    for (unsigned i = 0; i < count; i++)
        REQUIRE(values[i] == first + i, "%s: %u: %u", whose, i, values[i]);
}

// Forks while `values` and memory that is shared are registered.
static void fork_with(unsigned *values, unsigned count, std::atomic<unsigned> *shared) {
    for (unsigned i = 0; i < count; i++)
        values[i] = i;
    CHECK(hipHostRegister(values, count * sizeof *values, hipHostRegisterDefault));
    add_on_device(values, count, 1000);
    require_all(values, count, 1000, "before");
    shared->store(1);
    std::fflush(stdout);
    pid_t child = fork();
    REQUIRE(child >= 0, "%s", std::strerror(errno));
    if (child == 0) {
        bool is_equal = true;
        for (unsigned i = 0; i < count; i++)
            is_equal = is_equal && values[i] == 1000 + i;
        for (unsigned i = 0; i < count; i++)
            values[i] = 7;
        shared->store(is_equal ? 2 : 3);
        // Not before the parent has had the device store to its pages.
        while (shared->load() != 4)
            usleep(1000);
        for (unsigned i = 0; i < count; i++)
            is_equal = is_equal && values[i] == 7;
        _exit(is_equal ? 0 : 1);
    }
    while (shared->load() == 1)
        usleep(1000);
    REQUIRE(shared->load() == 2, "the child had other bytes");
    require_all(values, count, 1000, "after the fork");
    add_on_device(values, count, 500);
    require_all(values, count, 1500, "after the fork, of the device");
    shared->store(4);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %#x", status);
    CHECK(hipHostUnregister(values));
    require_all(values, count, 1500, "after the end");
}

int main() {
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    CHECK(hipHostRegister(page, 4096, hipHostRegisterDefault));
    auto *shared = new (page) std::atomic<unsigned>(0);

    // Of the heap, between other things of the heap.
    unsigned *heap = static_cast<unsigned *>(std::malloc(COUNT * sizeof *heap));
    fork_with(heap, COUNT, shared);
    std::free(heap);

    // Of the stack that is in use, of the first thread and of another one.
    unsigned stack[5000];
    fork_with(stack, 5000, shared);
    std::thread([&] {
        unsigned other[5000];
        fork_with(other, 5000, shared);
    }).join();

    CHECK(hipHostUnregister(page));
    return passed("fork_memory");
}
