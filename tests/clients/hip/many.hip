// SPDX-License-Identifier: MIT OR Apache-2.0
// Many buffers: `many device|host COUNT FILE` makes COUNT of one page each, writes into each, says "ready", and checks all when the
// file is there.
#include "check.h"

#include <unistd.h>

#include <cstdlib>
#include <vector>

__global__ void write(unsigned **buffers, unsigned count) {
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count)
        *buffers[at] = at * 2654435761u;
}

__global__ void compare(unsigned **buffers, unsigned count, unsigned *wrong) {
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count && *buffers[at] != at * 2654435761u)
        atomicAdd(wrong, 1u);
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    const unsigned count = atoi(argv[2]), blocks = (count + 63) / 64;
    const bool on_device = argv[1][0] == 'd';
    std::vector<unsigned *> buffers(count);
    for (auto &buffer : buffers)
        CHECK(on_device ? hipMalloc(&buffer, 4096) : hipHostMalloc(&buffer, 4096));
    unsigned **table, *wrong, found = 1;
    CHECK(hipMalloc(&table, count * sizeof(unsigned *)));
    CHECK(hipMalloc(&wrong, sizeof *wrong));
    CHECK(hipMemcpy(table, buffers.data(), count * sizeof(unsigned *), hipMemcpyHostToDevice));
    CHECK(hipMemset(wrong, 0, sizeof *wrong));
    write<<<blocks, 64>>>(table, count);
    CHECK(hipDeviceSynchronize());
    puts("ready");
    fflush(stdout);
    while (access(argv[3], F_OK) != 0)
        usleep(10000);
    compare<<<blocks, 64>>>(table, count, wrong);
    CHECK(hipMemcpy(&found, wrong, sizeof found, hipMemcpyDeviceToHost));
    if (found != 0) {
        printf("%u of %u are wrong\n", found, count);
        return 1;
    }
    puts("PASS many");
    return 0;
}
