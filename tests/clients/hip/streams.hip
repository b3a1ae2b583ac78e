// SPDX-License-Identifier: MIT OR Apache-2.0
// Streams, the order that events make between them, and the times that events tell.
#include "check.h"

#include <vector>

__global__ void append(unsigned *log, unsigned *length, unsigned value) {
    log[atomicAdd(length, 1u)] = value;
}

__global__ void scale(float *values, float by, unsigned rounds) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = values[i];
    for (unsigned round = 0; round < rounds; round++)
        value = value * by + 1.0f;
    values[i] = value;
}

static void host_function(hipStream_t, hipError_t status, void *data) {
    *(int *)data += status == hipSuccess ? 1 : 1000;
}

int main() {
    const unsigned STREAMS = 4, N = 1024, ROUNDS = 200;
    hipStream_t streams[STREAMS];
    for (unsigned i = 0; i < STREAMS; i++)
        CHECK(hipStreamCreateWithFlags(&streams[i], hipStreamNonBlocking));

    // Each stream's own work, in its own order.
    float *values[STREAMS];
    std::vector<float> from(N), to[STREAMS];
    for (unsigned i = 0; i < N; i++)
        from[i] = i % 13;
    hipEvent_t begin, end;
    CHECK(hipEventCreate(&begin));
    CHECK(hipEventCreate(&end));
    CHECK(hipEventRecord(begin, streams[0]));
    int called = 0;
    for (unsigned i = 0; i < STREAMS; i++) {
        CHECK(hipMalloc(&values[i], N * sizeof(float)));
        CHECK(hipMemcpyAsync(values[i], from.data(), N * sizeof(float), hipMemcpyHostToDevice, streams[i]));
        scale<<<N / 64, 64, 0, streams[i]>>>(values[i], 0.5f + i * 0.125f, ROUNDS);
        to[i].resize(N);
        CHECK(hipMemcpyAsync(to[i].data(), values[i], N * sizeof(float), hipMemcpyDeviceToHost, streams[i]));
    }
    CHECK(hipEventRecord(end, streams[0]));
    CHECK(hipStreamAddCallback(streams[0], host_function, &called, 0));
    for (unsigned i = 0; i < STREAMS; i++)
        CHECK(hipStreamSynchronize(streams[i]));
    CHECK(hipStreamQuery(streams[1]));
    REQUIRE(called == 1, "the host function was called %d times", called);
    for (unsigned i = 0; i < STREAMS; i++)
        for (unsigned at = 0; at < N; at++) {
            float value = from[at];
            for (unsigned round = 0; round < ROUNDS; round++)
                value = __builtin_fmaf(value, 0.5f + i * 0.125f, 1.0f);
            REQUIRE(to[i][at] == value, "stream %u, item %u: %g, not %g", i, at, to[i][at], value);
        }
    CHECK(hipEventSynchronize(end));
    float milliseconds = -1;
    CHECK(hipEventElapsedTime(&milliseconds, begin, end));
    REQUIRE(milliseconds > 0 && milliseconds < 60e3, "%g ms", milliseconds);

    // What a stream waits for is done first, whichever way the streams are turned.
    unsigned *log, *length;
    CHECK(hipMalloc(&log, 64 * sizeof(unsigned)));
    CHECK(hipMalloc(&length, sizeof(unsigned)));
    CHECK(hipMemset(length, 0, sizeof(unsigned)));
    CHECK(hipDeviceSynchronize());
    hipEvent_t done;
    CHECK(hipEventCreateWithFlags(&done, hipEventDisableTiming));
    for (unsigned i = 0; i < 12; i++) {
        hipStream_t stream = streams[i * 3 % STREAMS];
        if (i)
            CHECK(hipStreamWaitEvent(stream, done, 0));
        append<<<1, 1, 0, stream>>>(log, length, i);
        CHECK(hipEventRecord(done, stream));
    }
    CHECK(hipEventSynchronize(done));
    CHECK(hipEventQuery(done));
    unsigned logged[12];
    CHECK(hipMemcpy(logged, log, sizeof logged, hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < 12; i++)
        REQUIRE(logged[i] == i, "kernel %u was number %u", logged[i], i);
    // An event without times has none.
    EXPECT(hipErrorInvalidHandle, hipEventElapsedTime(&milliseconds, begin, done));

    // Of different priorities, and the null stream, which waits for blocking ones.
    int least = 0, greatest = 0;
    CHECK(hipDeviceGetStreamPriorityRange(&least, &greatest));
    hipStream_t urgent, blocking;
    CHECK(hipStreamCreateWithPriority(&urgent, hipStreamNonBlocking, greatest));
    CHECK(hipStreamCreate(&blocking));
    CHECK(hipMemsetAsync(length, 0, sizeof(unsigned), blocking));
    append<<<1, 1, 0, blocking>>>(log, length, 77);
    append<<<1, 1>>>(log, length, 78);
    append<<<1, 1, 0, blocking>>>(log, length, 79);
    CHECK(hipStreamSynchronize(blocking));
    CHECK(hipMemcpyAsync(logged, log, sizeof logged, hipMemcpyDeviceToHost, urgent));
    CHECK(hipStreamSynchronize(urgent));
    REQUIRE(logged[0] == 77 && logged[1] == 78 && logged[2] == 79, "%u %u %u", logged[0], logged[1], logged[2]);

    for (auto stream : streams)
        CHECK(hipStreamDestroy(stream));
    CHECK(hipStreamDestroy(urgent));
    CHECK(hipStreamDestroy(blocking));
    for (auto event : {begin, end, done})
        CHECK(hipEventDestroy(event));
    return passed("streams");
}
