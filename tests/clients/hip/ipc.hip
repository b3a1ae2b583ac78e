// SPDX-License-Identifier: MIT OR Apache-2.0
// Two processes with the same memory of the device: `ipc [FILE]`, rounds until the file is there, else three. The first one makes a
// large buffer and a small one between others, and sends their handles to the second one, its child. They add to both in turns. In a
// third one threads of the first count by pointers all the time.
#include "check.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

extern char **environ;

const unsigned LARGE = 1 << 18, HUGE = 1 << 25, SMALL = 100, BLOCK = 256, THREADS = 8;
// Descriptors of the child's: what it reads of and writes to its parent.
const int FROM_PARENT = 10, TO_PARENT = 11;

__global__ void add(unsigned *words, unsigned count, unsigned by) {
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count)
        words[at] = words[at] * 3 + by + at;
}

static void run(unsigned *words, unsigned count, unsigned by) {
    add<<<(count + BLOCK - 1) / BLOCK, BLOCK>>>(words, count, by);
    CHECK(hipGetLastError());
    CHECK(hipDeviceSynchronize());
}

static void put(int fd, const void *from, size_t bytes) {
    REQUIRE(write(fd, from, bytes) == (ssize_t)bytes, "the other process is gone");
}

// False at the end of what the other process writes.
static bool take(int fd, void *to, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t more = read(fd, (char *)to + done, bytes - done);
        if (more <= 0)
            return false;
        done += more;
    }
    return true;
}

struct Handles {
    hipIpcMemHandle_t large, small, counted;
};

static int child() {
    Handles handles;
    REQUIRE(take(FROM_PARENT, &handles, sizeof handles), "no handles");
    unsigned *large, *small, *again, *counted;
    CHECK(hipIpcOpenMemHandle((void **)&large, handles.large, hipIpcMemLazyEnablePeerAccess));
    CHECK(hipIpcOpenMemHandle((void **)&small, handles.small, hipIpcMemLazyEnablePeerAccess));
    CHECK(hipIpcOpenMemHandle((void **)&counted, handles.counted, hipIpcMemLazyEnablePeerAccess));
    // Once more after the end of the first.
    CHECK(hipIpcCloseMemHandle(small));
    CHECK(hipIpcOpenMemHandle((void **)&again, handles.small, hipIpcMemLazyEnablePeerAccess));
    unsigned round;
    while (take(FROM_PARENT, &round, sizeof round)) {
        run(large, LARGE, round);
        run(again, SMALL, ~round);
        put(TO_PARENT, &round, sizeof round);
    }
    CHECK(hipIpcCloseMemHandle(large));
    CHECK(hipIpcCloseMemHandle(again));
    CHECK(hipIpcCloseMemHandle(counted));
    return 0;
}

// What both have done to a word by now.
static unsigned expected(unsigned at, unsigned rounds, bool small) {
    unsigned word = at;
    for (unsigned round = 0; round < rounds; round++) {
        word = word * 3 + (small ? ~round : round) + at;
        word = word * 3 + 7 + at;
    }
    return word;
}

static void compare(const unsigned *words, unsigned count, unsigned rounds, bool small) {
    std::vector<unsigned> found(count);
    CHECK(hipMemcpy(found.data(), words, count * sizeof(unsigned), hipMemcpyDeviceToHost));
    for (unsigned at = 0; at < count; at += count / 10)
        REQUIRE(found[at] == expected(at, rounds, small), "word %u of %u: %u", at, count, found[at]);
}

static unsigned *numbered(unsigned count) {
    unsigned *words;
    std::vector<unsigned> numbers(count);
    for (unsigned at = 0; at < count; at++)
        numbers[at] = at;
    CHECK(hipMalloc((void **)&words, count * sizeof(unsigned)));
    CHECK(hipMemcpy(words, numbers.data(), count * sizeof(unsigned), hipMemcpyHostToDevice));
    return words;
}

// Counts in a word that only this thread writes, and looks at each count again.
static void tally(volatile unsigned *word, std::atomic<bool> *stop) {
    unsigned expected = 0x5a5a5a5a;
    while (!stop->load()) {
        REQUIRE(*word == expected, "%u, not %u", *word, expected);
        *word = ++expected;
        // Some wake up in the middle of a restore.
        usleep(expected * 7919 % 150000);
    }
}

int main(int count, char **arguments) {
    if (count > 1 && std::strcmp(arguments[1], "child") == 0)
        return child();
    int down[2], up[2];
    REQUIRE(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0, "no pipes");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], FROM_PARENT);
    posix_spawn_file_actions_adddup2(&actions, up[1], TO_PARENT);
    char name[] = "child";
    char *of_child[] = {arguments[0], name, nullptr};
    pid_t pid;
    REQUIRE(posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, of_child, environ) == 0, "no child");
    close(down[0]);
    close(up[1]);

    unsigned *large = numbered(LARGE), *before = numbered(SMALL), *small = numbered(SMALL), *counted;
    CHECK(hipMalloc((void **)&counted, HUGE * sizeof(unsigned)));
    CHECK(hipMemset(counted, 0x5a, HUGE * sizeof(unsigned)));
    CHECK(hipDeviceSynchronize());
    Handles handles;
    CHECK(hipIpcGetMemHandle(&handles.large, large));
    CHECK(hipIpcGetMemHandle(&handles.small, small));
    CHECK(hipIpcGetMemHandle(&handles.counted, counted));
    put(down[1], &handles, sizeof handles);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < THREADS; i++)
        threads.emplace_back(tally, counted + HUGE / THREADS * i, &stop);
    unsigned round = 0;
    while (count > 1 ? access(arguments[1], F_OK) != 0 : round < 3) {
        put(down[1], &round, sizeof round);
        unsigned done;
        REQUIRE(take(up[0], &done, sizeof done) && done == round, "the child failed");
        run(large, LARGE, 7);
        run(small, SMALL, 7);
        round++;
        compare(large, LARGE, round, false);
        compare(small, SMALL, round, true);
        compare(before, SMALL, 0, true);
        std::printf("round %u\n", round);
        std::fflush(stdout);
    }
    stop = true;
    for (auto &thread : threads)
        thread.join();
    close(down[1]);
    int status;
    REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed");
    CHECK(hipFree(large));
    CHECK(hipFree(before));
    CHECK(hipFree(small));
    CHECK(hipFree(counted));
    return passed("ipc");
}
