// SPDX-License-Identifier: MIT OR Apache-2.0
// What the programs of this directory share: calls that must succeed, values that must agree, the last line.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdio>
#include <cstdlib>

// Ends the program when a call of HIP does not answer `wanted`.
static inline void expect_at(hipError_t answer, hipError_t wanted, const char *call, int line) {
    if (answer != wanted) {
        std::printf("line %d: %s answers %s, not %s\n", line, call, hipGetErrorName(answer), hipGetErrorName(wanted));
        std::exit(1);
    }
}

#define EXPECT(wanted, call) expect_at((call), (wanted), #call, __LINE__)
#define CHECK(call) EXPECT(hipSuccess, call)

// Ends the program when a condition does not hold.
#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::printf("line %d: not %s: ", __LINE__, #condition);                                                    \
            std::printf("" __VA_ARGS__);                                                                               \
            std::printf("\n");                                                                                         \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

static inline int passed(const char *name) {
    std::printf("PASS %s\n", name);
    return 0;
}
