// SPDX-License-Identifier: MIT OR Apache-2.0
// Two devices: each has its own memory, one reads and writes the other's when it may, copies go between them.
#include "check.h"

#include <vector>

const unsigned N = 10000;

__global__ void add(unsigned *to, const unsigned *from, unsigned by) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N)
        to[i] = from[i] + by;
}

static void expect(const unsigned *device, unsigned first, const char *what) {
    std::vector<unsigned> values(N);
    CHECK(hipMemcpy(values.data(), device, N * sizeof(unsigned), hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < N; i++)
        REQUIRE(values[i] == first + i, "%s, item %u: %u, not %u", what, i, values[i], first + i);
}

int main() {
    int devices = 0;
    CHECK(hipGetDeviceCount(&devices));
    REQUIRE(devices == 2, "%d devices", devices);
    std::vector<unsigned> values(N);
    for (unsigned i = 0; i < N; i++)
        values[i] = i;
    const size_t bytes = N * sizeof(unsigned);
    unsigned *memory[2], *results[2];
    for (int device = 0; device < 2; device++) {
        CHECK(hipSetDevice(device));
        CHECK(hipMalloc(&memory[device], bytes));
        CHECK(hipMalloc(&results[device], bytes));
        hipPointerAttribute_t attributes;
        CHECK(hipPointerGetAttributes(&attributes, memory[device]));
        REQUIRE(attributes.device == device, "%d", attributes.device);
    }
    // Each on its own.
    for (int device = 0; device < 2; device++) {
        CHECK(hipSetDevice(device));
        CHECK(hipMemcpy(memory[device], values.data(), bytes, hipMemcpyHostToDevice));
        add<<<(N + 255) / 256, 256>>>(results[device], memory[device], 1000 * (device + 1));
        CHECK(hipGetLastError());
    }
    for (int device = 0; device < 2; device++) {
        CHECK(hipSetDevice(device));
        CHECK(hipDeviceSynchronize());
        expect(results[device], 1000 * (device + 1), "a device alone");
    }
    // Copies between them, of which the kernel of the other device sees the bytes.
    CHECK(hipMemcpyPeer(memory[0], 0, results[1], 1, bytes));
    expect(memory[0], 2000, "a copy");
    CHECK(hipMemcpy(memory[1], results[0], bytes, hipMemcpyDeviceToDevice));
    expect(memory[1], 1000, "a copy by addresses");
    // In place, in both directions.
    int can[2] = {};
    CHECK(hipDeviceCanAccessPeer(&can[0], 0, 1));
    CHECK(hipDeviceCanAccessPeer(&can[1], 1, 0));
    REQUIRE(can[0] == 1 && can[1] == 1, "%d, %d", can[0], can[1]);
    for (int device = 0; device < 2; device++) {
        CHECK(hipSetDevice(device));
        CHECK(hipDeviceEnablePeerAccess(!device, 0));
        EXPECT(hipErrorPeerAccessAlreadyEnabled, hipDeviceEnablePeerAccess(!device, 0));
        (void)hipGetLastError();
        add<<<(N + 255) / 256, 256>>>(results[device], memory[!device], 5);
        CHECK(hipDeviceSynchronize());
        expect(results[device], device ? 2005 : 1005, "reads of the other's memory");
        add<<<(N + 255) / 256, 256>>>(memory[!device], results[device], 1);
        CHECK(hipDeviceSynchronize());
        expect(memory[!device], device ? 2006 : 1006, "writes to the other's memory");
    }
    CHECK(hipDeviceDisablePeerAccess(0));
    EXPECT(hipErrorPeerAccessNotEnabled, hipDeviceDisablePeerAccess(0));
    EXPECT(hipErrorInvalidDevice, hipSetDevice(2));
    return passed("peers");
}
