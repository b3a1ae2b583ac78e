// SPDX-License-Identifier: MIT OR Apache-2.0
// What HIP takes from the launch of an empty kernel to the end of hipStreamSynchronize: one after the other, and after
// pauses; then it sleeps, so that what an idle device costs can be seen from outside.
//
// Arguments: busy trips, trips after a pause, milliseconds of the pause, milliseconds of the sleep.
// Prints a line each: "busy" and microseconds of each trip, "paused" and the same, "asleep", "awake".

#include <hip/hip_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

static void check(hipError_t status) {
  if (status != hipSuccess) {
    fprintf(stderr, "round_trip: %s\n", hipGetErrorString(status));
    exit(1);
  }
}

__global__ void empty(int *out) {
  if (out) *out = 1;
}

static double trip(hipStream_t stream) {
  auto started = Clock::now();
  empty<<<1, 32, 0, stream>>>(nullptr);
  check(hipStreamSynchronize(stream));
  return std::chrono::duration<double, std::micro>(Clock::now() - started).count();
}

static void trips(const char *name, int count, int pause, hipStream_t stream) {
  std::vector<double> times;
  for (int at = 0; at < count; ++at) {
    if (pause) std::this_thread::sleep_for(std::chrono::milliseconds(pause));
    times.push_back(trip(stream));
  }
  printf("%s", name);
  for (double time : times) printf(" %.2f", time);
  printf("\n");
  fflush(stdout);
}

int main(int count, char **arguments) {
  if (count != 5) return 2;
  auto number = [&](int at) { return atoi(arguments[at]); };
  hipStream_t stream;
  check(hipStreamCreate(&stream));
  for (int warm_up = 0; warm_up < 50; ++warm_up) trip(stream);
  trips("busy", number(1), 0, stream);
  trips("paused", number(2), number(3), stream);
  // What still looks for more work has stopped by then.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  printf("asleep\n");
  fflush(stdout);
  std::this_thread::sleep_for(std::chrono::milliseconds(number(4)));
  printf("awake\n");
  fflush(stdout);
  trip(stream);
  return 0;
}
