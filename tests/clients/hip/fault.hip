// SPDX-License-Identifier: MIT OR Apache-2.0
// A kernel that stores where nothing is mapped, for which ROCm ends the process by SIGABRT. What is printed must never be
// reached.
#include "check.h"

__global__ void store(unsigned *where) { where[threadIdx.x] = 1; }

int main() {
    store<<<1, 32>>>((unsigned *)0x7000);
    hipError_t answer = hipDeviceSynchronize();
    std::printf("the store is answered by %s\n", hipGetErrorName(answer));
    return 1;
}
