// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies and fills of all kinds: pageable and pinned host memory, odd sizes and offsets, patterns of 1, 2 and 4 bytes,
// rows of a larger area, registered ranges that overlap.
#include "check.h"

#include <cstring>
#include <vector>

const size_t SIZE = 3 * 1024 * 1024 + 77;

static unsigned char pattern(size_t i) { return (unsigned char)(i * 2654435761u >> 17); }

static void same(const unsigned char *is, size_t size, size_t from, const char *what) {
    for (size_t i = 0; i < size; i++)
        REQUIRE(is[i] == pattern(from + i), "%s, byte %zu: %#x, not %#x", what, i, is[i], pattern(from + i));
}

static void round_trip(unsigned char *host, unsigned char *back, const char *what) {
    unsigned char *one, *other;
    CHECK(hipMalloc(&one, SIZE));
    CHECK(hipMalloc(&other, SIZE));
    for (size_t i = 0; i < SIZE; i++)
        host[i] = pattern(i);
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    CHECK(hipMemcpyAsync(one, host, SIZE, hipMemcpyHostToDevice, stream));
    CHECK(hipMemcpyAsync(other, one, SIZE, hipMemcpyDeviceToDevice, stream));
    CHECK(hipMemcpyAsync(back, other, SIZE, hipMemcpyDeviceToHost, stream));
    CHECK(hipStreamSynchronize(stream));
    same(back, SIZE, 0, what);
    // Sizes and offsets that are no multiples of a word or a page.
    const size_t pieces[][2] = {{0, 1}, {1, 1}, {3, 2}, {5, 7}, {4093, 6}, {63, 4099}, {65537, 70001}};
    for (auto [at, size] : pieces) {
        std::memset(back, 0, size + 2);
        CHECK(hipMemset(other, 0x5a, SIZE));
        CHECK(hipMemcpyAsync(other + at, host + at + 1, size, hipMemcpyDefault, stream));
        CHECK(hipMemcpyAsync(back + 1, other + at, size, hipMemcpyDefault, stream));
        unsigned char around[2];
        CHECK(hipMemcpyAsync(around + 1, other + at + size, 1, hipMemcpyDefault, stream));
        CHECK(hipStreamSynchronize(stream));
        same(back + 1, size, at + 1, what);
        REQUIRE(back[0] == 0 && back[size + 1] == 0, "%s: a copy of %zu bytes wrote more", what, size);
        REQUIRE(around[1] == 0x5a, "%s: a copy of %zu bytes wrote %#x behind it", what, size, around[1]);
    }
    CHECK(hipStreamDestroy(stream));
    CHECK(hipFree(one));
    CHECK(hipFree(other));
}

static void fills() {
    const size_t n = 100001;
    unsigned *device;
    CHECK(hipMalloc(&device, n * 4));
    std::vector<unsigned> words(n);
    auto bytes = (unsigned char *)words.data();
    CHECK(hipMemset(device, 0xa7, n * 4));
    CHECK(hipMemset((char *)device + 5, 0x31, 1003));
    CHECK(hipMemcpy(words.data(), device, n * 4, hipMemcpyDeviceToHost));
    for (size_t i = 0; i < n * 4; i++)
        REQUIRE(bytes[i] == (i >= 5 && i < 1008 ? 0x31 : 0xa7), "byte %zu: %#x", i, bytes[i]);
    CHECK(hipMemsetD16((hipDeviceptr_t)((char *)device + 2), 0xbeef, 2 * n - 3));
    CHECK(hipMemcpy(words.data(), device, n * 4, hipMemcpyDeviceToHost));
    auto halves = (unsigned short *)words.data();
    for (size_t i = 0; i < 2 * n; i++) {
        unsigned short wanted = i >= 1 && i < 2 * n - 2 ? 0xbeef : i ? 0xa7a7 : halves[0];
        REQUIRE(halves[i] == wanted, "half %zu: %#x", i, halves[i]);
    }
    CHECK(hipMemsetD32Async((hipDeviceptr_t)(device + 1), (int)0xdeadbeef, n - 2, 0));
    CHECK(hipMemsetD8((hipDeviceptr_t)device, 0x11, 3));
    CHECK(hipMemcpy(words.data(), device, n * 4, hipMemcpyDeviceToHost));
    for (size_t i = 1; i + 1 < n; i++)
        REQUIRE(words[i] == 0xdeadbeef, "word %zu: %#x", i, words[i]);
    REQUIRE((words[0] & 0xffffff) == 0x111111 && words[n - 1] == 0xa7a7a7a7, "%#x, %#x", words[0], words[n - 1]);
    CHECK(hipFree(device));
}

static void rows() {
    const size_t wide = 131, high = 17;
    size_t pitch = 0;
    unsigned char *device;
    CHECK(hipMallocPitch((void **)&device, &pitch, wide, high));
    REQUIRE(pitch >= wide, "%zu", pitch);
    std::vector<unsigned char> area(200 * high), back(150 * high, 9);
    for (size_t i = 0; i < area.size(); i++)
        area[i] = pattern(i);
    CHECK(hipMemset2D(device, pitch, 0x44, wide, high));
    CHECK(hipMemcpy2D(device, pitch, area.data(), 200, wide - 1, high, hipMemcpyHostToDevice));
    CHECK(hipMemcpy2D(back.data(), 150, device, pitch, wide, high, hipMemcpyDeviceToHost));
    for (size_t y = 0; y < high; y++) {
        same(&back[y * 150], wide - 1, y * 200, "a row");
        REQUIRE(back[y * 150 + wide - 1] == 0x44 && back[y * 150 + wide] == 9, "row %zu", y);
    }
    CHECK(hipFree(device));
}

static void overlapping() {
    // Two ranges of one allocation that share pages, neither at the start of a page.
    std::vector<unsigned char> memory(1 << 20);
    unsigned char *first = &memory[1000], *second = &memory[300000];
    const size_t first_size = 400000, second_size = 600000;
    CHECK(hipHostRegister(first, first_size, hipHostRegisterDefault));
    CHECK(hipHostRegister(second, second_size, hipHostRegisterDefault));
    for (size_t i = 0; i < memory.size(); i++)
        memory[i] = pattern(i);
    unsigned char *device;
    CHECK(hipMalloc(&device, second_size));
    CHECK(hipMemcpy(device, first, first_size, hipMemcpyHostToDevice));
    std::vector<unsigned char> back(second_size);
    CHECK(hipMemcpy(back.data(), device, first_size, hipMemcpyDeviceToHost));
    same(back.data(), first_size, 1000, "the first range");
    CHECK(hipHostUnregister(first));
    CHECK(hipMemcpy(device, second, second_size, hipMemcpyHostToDevice));
    CHECK(hipMemcpy(back.data(), device, second_size, hipMemcpyDeviceToHost));
    same(back.data(), second_size, 300000, "the second range, when the first was given back");
    CHECK(hipHostUnregister(second));
    CHECK(hipFree(device));
}

int main() {
    std::vector<unsigned char> pageable(SIZE + 8), back(SIZE + 8);
    round_trip(pageable.data(), back.data(), "pageable");
    unsigned char *pinned, *pinned_back;
    CHECK(hipHostMalloc(&pinned, SIZE + 8, 0));
    CHECK(hipHostMalloc(&pinned_back, SIZE + 8, 0));
    round_trip(pinned, pinned_back, "pinned");
    CHECK(hipHostFree(pinned));
    CHECK(hipHostFree(pinned_back));
    fills();
    rows();
    overlapping();
    return passed("copies");
}
