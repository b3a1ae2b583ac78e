// SPDX-License-Identifier: MIT OR Apache-2.0
// printf in kernels, by calls of the host from device code. The test compares what arrives: the lines of one lane come in
// order, those of several in any.
#include "check.h"

#include <cstdint>

__device__ const char *const names[] = {"zero", "one", "two", "three"};

__global__ void formats(int n, double x, const char *text) {
    printf("d %d %i %+d %05d %-6d| % d\n", n, -n, n, n, n, n);
    printf("u %u %x %X %#x %o %#o\n", 3000000000u, 0xbeefu, 0xBEEFu, 255u, 8u, 8u);
    printf("l %ld %lu %lx %lld %llx %zu\n", -5000000000l, 5000000000ul, 0x123456789abul, (long long)INT64_MIN,
           ~0ull, (size_t)77);
    printf("h %hd %hhd %hu\n", (short)-3, (signed char)-4, (unsigned short)65535);
    printf("f %f %.2f %10.3f %-10.1f| %+.0f\n", x, x, x, x, x);
    printf("e %e %.3E %g %G %a\n", x, x, x, x * 1e10, 1.0);
    printf("c %c%c%c %5c|\n", 'a', 'b', n % 26 + 'a', 'z');
    // The host goes on as many bytes as it printed: HIP 5.7 loses its place behind a wide field.
    printf("s %s %7s %-7s| %.2s| %10s\n", text, text, text, text, text);
    printf("star %*d %-*d| %.*f\n", 6, n, 6, n, 3, x);
    printf("special %f %f %f\n", __builtin_inff(), -__builtin_inff(), __builtin_nanf(""));
    printf("percent %% and nothing\n");
    printf("pointer %p\n", (void *)0x1234);
    printf("many %d %d %d %d %d %d %d %d %d %d %d %d\n", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
    printf("a string of more than the seven doublewords that one packet of the host call carries: %s, and %d\n",
           "0123456789012345678901234567890123456789012345678901234567890123456789", n);
}

__global__ void lanes() {
    unsigned lane = threadIdx.x, block = blockIdx.x;
    if (lane % 3 != 1)
        printf("block %02u lane %02u %s\n", block, lane, names[lane % 4]);
}

__global__ void results(int *out) { out[threadIdx.x] = printf("%d\n", 1000 + (int)threadIdx.x); }

int main() {
    const char text[] = "hello";
    char *device_text;
    int *answers, host[3] = {};
    CHECK(hipMalloc(&device_text, sizeof text));
    CHECK(hipMalloc(&answers, sizeof host));
    CHECK(hipMemcpy(device_text, text, sizeof text, hipMemcpyHostToDevice));
    formats<<<1, 1>>>(42, 3.14159, device_text);
    CHECK(hipDeviceSynchronize());
    lanes<<<6, 48>>>();
    CHECK(hipDeviceSynchronize());
    results<<<1, 3>>>(answers);
    CHECK(hipMemcpy(host, answers, sizeof host, hipMemcpyDeviceToHost));
    // The number of characters, as on the host.
    for (int answer : host)
        REQUIRE(answer == 5, "printf answered %d", answer);
    return passed("printf");
}
