// SPDX-License-Identifier: MIT OR Apache-2.0
// A device assertion that does not hold: a line on standard error and a trap, for which ROCm ends the process by
// SIGABRT. What is printed last must never be reached.
#include <cassert>

#include "check.h"

__global__ void asserts(int n) { assert(n < 0 || threadIdx.x < 5); }

int main() {
    asserts<<<1, 8>>>(-1);
    CHECK(hipDeviceSynchronize());
    std::printf("one holds\n");
    std::fflush(stdout);
    asserts<<<1, 8>>>(1);
    hipError_t answer = hipDeviceSynchronize();
    std::printf("one does not hold: %s\n", hipGetErrorName(answer));
    return 1;
}
