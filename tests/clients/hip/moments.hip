// SPDX-License-Identifier: MIT OR Apache-2.0
// A graph, functions of the host in a stream, and times, again and again until a file is there: `moments FILE`. Functions are called
// once each and in order, and no time goes back.
#include "check.h"

#include <time.h>
#include <unistd.h>

const unsigned N = 256;

__global__ void step(unsigned *values, unsigned by) { values[threadIdx.x] = values[threadIdx.x] * 5 + by; }

// A kernel reads the counter of the GPU that it is on now, which after a restore may say anything.
__global__ void clocks(unsigned long long *to) {
    to[0] = wall_clock64();
    for (unsigned n = 0; n < 1000; n++)
        to[2] += n;
    to[1] = wall_clock64();
}

struct Called {
    unsigned times = 0;
    bool in_order = true;
};

struct Call {
    Called *called;
    unsigned number;
};

static void call(void *data) {
    auto *which = (Call *)data;
    which->called->in_order &= which->called->times == which->number;
    which->called->times++;
}

static void call_back(hipStream_t, hipError_t status, void *data) {
    call(data);
    ((Call *)data)->called->in_order &= status == hipSuccess;
}

static double now() {
    timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

int main(int, char **arguments) {
    hipStream_t stream, captured;
    CHECK(hipStreamCreate(&stream));
    CHECK(hipStreamCreate(&captured));
    unsigned *values, found[N];
    unsigned long long *ticks, clock[2];
    CHECK(hipMalloc(&values, sizeof found));
    CHECK(hipMalloc(&ticks, 3 * sizeof *ticks));
    CHECK(hipMemset(values, 0, sizeof found));
    CHECK(hipDeviceSynchronize());
    hipGraph_t graph;
    hipGraphExec_t run;
    CHECK(hipStreamBeginCapture(captured, hipStreamCaptureModeGlobal));
    step<<<1, N, 0, captured>>>(values, 3);
    step<<<1, N, 0, captured>>>(values, 4);
    CHECK(hipStreamEndCapture(captured, &graph));
    CHECK(hipGraphInstantiate(&run, graph, nullptr, nullptr, 0));
    hipEvent_t first, begin, end;
    for (auto event : {&first, &begin, &end})
        CHECK(hipEventCreate(event));
    const double started = now();
    CHECK(hipEventRecord(first, stream));
    CHECK(hipEventSynchronize(first));
    Called called;
    unsigned wanted = 0;
    float last = 0;
    for (unsigned round = 1; access(arguments[1], F_OK) != 0; round++) {
        Call calls[] = {{&called, 2 * round - 2}, {&called, 2 * round - 1}};
        CHECK(hipEventRecord(begin, stream));
        CHECK(hipGraphLaunch(run, stream));
        CHECK(hipLaunchHostFunc(stream, call, &calls[0]));
        step<<<1, N, 0, stream>>>(values, round);
        clocks<<<1, 1, 0, stream>>>(ticks);
        CHECK(hipStreamAddCallback(stream, call_back, &calls[1], 0));
        CHECK(hipEventRecord(end, stream));
        CHECK(hipStreamSynchronize(stream));
        wanted = ((wanted * 5 + 3) * 5 + 4) * 5 + round;
        CHECK(hipMemcpy(found, values, sizeof found, hipMemcpyDeviceToHost));
        for (unsigned value : found)
            REQUIRE(value == wanted, "round %u: %#x, not %#x", round, value, wanted);
        REQUIRE(called.in_order && called.times == 2 * round, "round %u: %u calls", round, called.times);
        float since_begin = -1, since_first = -1;
        CHECK(hipEventElapsedTime(&since_begin, begin, end));
        CHECK(hipEventElapsedTime(&since_first, first, end));
        const double passed = now() - started;
        REQUIRE(since_begin > 0 && since_begin <= since_first, "round %u: %g, %g ms", round, since_begin, since_first);
        REQUIRE(since_first > last && since_first < passed + 1, "round %u: %g, %g, %g", round, last, since_first, passed);
        last = since_first;
        CHECK(hipMemcpy(clock, ticks, sizeof clock, hipMemcpyDeviceToHost));
        REQUIRE(clock[1] > clock[0], "round %u: %llu, %llu ticks", round, clock[0], clock[1]);
        std::printf("round %u\n", round);
        std::fflush(stdout);
    }
    CHECK(hipGraphExecDestroy(run));
    CHECK(hipGraphDestroy(graph));
    return passed("moments");
}
