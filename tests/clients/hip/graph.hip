// SPDX-License-Identifier: MIT OR Apache-2.0
// Graphs: captured from streams that wait for each other, made node by node, with a node's arguments changed.
#include "check.h"

#include <vector>

const unsigned N = 256;

__global__ void add(float *to, const float *from, float by) { to[threadIdx.x] += from[threadIdx.x] * by; }

static void host(void *data) { ++*(int *)data; }

static void captured(float *a, float *b, float *c) {
    hipStream_t stream, side;
    hipEvent_t forked, joined;
    CHECK(hipStreamCreate(&stream));
    CHECK(hipStreamCreate(&side));
    CHECK(hipEventCreate(&forked));
    CHECK(hipEventCreate(&joined));
    CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
    CHECK(hipMemsetD32Async((hipDeviceptr_t)b, 0x3f800000, N, stream)); // 1.0
    CHECK(hipEventRecord(forked, stream));
    CHECK(hipStreamWaitEvent(side, forked, 0));
    add<<<1, N, 0, stream>>>(a, b, 2);
    add<<<1, N, 0, side>>>(c, b, 3);
    CHECK(hipEventRecord(joined, side));
    CHECK(hipStreamWaitEvent(stream, joined, 0));
    add<<<1, N, 0, stream>>>(a, c, 10);
    hipGraph_t graph;
    CHECK(hipStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CHECK(hipGraphGetNodes(graph, nullptr, &nodes));
    REQUIRE(nodes == 4, "%zu nodes", nodes);
    hipGraphExec_t run;
    CHECK(hipGraphInstantiate(&run, graph, nullptr, nullptr, 0));
    CHECK(hipMemset(a, 0, N * sizeof(float)));
    CHECK(hipMemset(c, 0, N * sizeof(float)));
    CHECK(hipDeviceSynchronize());
    float wanted_a = 0, wanted_c = 0;
    for (unsigned round = 0; round < 5; round++) {
        CHECK(hipGraphLaunch(run, stream));
        wanted_a += 2;
        wanted_c += 3;
        wanted_a += wanted_c * 10;
    }
    CHECK(hipStreamSynchronize(stream));
    std::vector<float> values(N);
    CHECK(hipMemcpy(values.data(), a, N * sizeof(float), hipMemcpyDeviceToHost));
    for (float value : values)
        REQUIRE(value == wanted_a, "%g, not %g", value, wanted_a);
    CHECK(hipGraphExecDestroy(run));
    CHECK(hipGraphDestroy(graph));
    CHECK(hipStreamDestroy(stream));
    CHECK(hipStreamDestroy(side));
}

static void explicitly(float *a, float *b) {
    std::vector<float> from(N), to(N, -1);
    for (unsigned i = 0; i < N; i++)
        from[i] = i;
    hipGraph_t graph;
    CHECK(hipGraphCreate(&graph, 0));
    hipGraphNode_t copy_in, clear, kernel, copy_out, call;
    CHECK(hipGraphAddMemcpyNode1D(&copy_in, graph, nullptr, 0, b, from.data(), N * sizeof(float), hipMemcpyHostToDevice));
    hipMemsetParams fill = {};
    fill.dst = a;
    fill.elementSize = 4;
    fill.width = N;
    fill.height = 1;
    CHECK(hipGraphAddMemsetNode(&clear, graph, nullptr, 0, &fill));
    float by = 2;
    void *arguments[] = {&a, &b, &by};
    hipKernelNodeParams launch = {};
    launch.func = (void *)add;
    launch.gridDim = dim3(1);
    launch.blockDim = dim3(N);
    launch.kernelParams = arguments;
    hipGraphNode_t before[] = {copy_in, clear};
    CHECK(hipGraphAddKernelNode(&kernel, graph, before, 2, &launch));
    CHECK(hipGraphAddMemcpyNode1D(&copy_out, graph, &kernel, 1, to.data(), a, N * sizeof(float), hipMemcpyDeviceToHost));
    int calls = 0;
    hipHostNodeParams function = {};
    function.fn = host;
    function.userData = &calls;
    CHECK(hipGraphAddHostNode(&call, graph, &copy_out, 1, &function));
    hipGraphExec_t run;
    CHECK(hipGraphInstantiate(&run, graph, nullptr, nullptr, 0));
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    for (float scale : {2.0f, 7.0f}) {
        by = scale;
        CHECK(hipGraphExecKernelNodeSetParams(run, kernel, &launch));
        CHECK(hipGraphLaunch(run, stream));
        CHECK(hipStreamSynchronize(stream));
        for (unsigned i = 0; i < N; i++)
            REQUIRE(to[i] == scale * i, "%u: %g, not %g", i, to[i], scale * i);
    }
    REQUIRE(calls == 2, "%d", calls);
    CHECK(hipGraphExecDestroy(run));
    CHECK(hipGraphDestroy(graph));
    CHECK(hipStreamDestroy(stream));
}

int main() {
    float *a, *b, *c;
    for (float **pointer : {&a, &b, &c})
        CHECK(hipMalloc(pointer, N * sizeof(float)));
    captured(a, b, c);
    explicitly(a, b);
    return passed("graph");
}
