// SPDX-License-Identifier: MIT OR Apache-2.0
// A process that ends, as its argument says, while a kernel of its runs: by exit code 7, by SIGSEGV, or by the signal that
// it waits for.
#include <csignal>
#include <cstring>

#include <unistd.h>

#include "check.h"

__global__ void until(volatile unsigned *flags) {
    flags[0] = 1;
    while (!flags[1])
        __builtin_amdgcn_s_sleep(10);
}

int main(int, char **argv) {
    volatile unsigned *flags;
    CHECK(hipHostMalloc((void **)&flags, 64, hipHostMallocCoherent));
    flags[0] = flags[1] = 0;
    until<<<1, 1>>>(flags);
    CHECK(hipGetLastError());
    while (!flags[0])
        usleep(1000);
    std::printf("running\n");
    std::fflush(stdout);
    if (std::strcmp(argv[1], "exit") == 0)
        _exit(7);
    if (std::strcmp(argv[1], "crash") == 0)
        *(volatile int *)nullptr = 1;
    while (true)
        pause();
}
