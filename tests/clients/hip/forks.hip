// SPDX-License-Identifier: MIT OR Apache-2.0
// A process that uses the device and forks: the parent's file of the driver answers EBADF in the child, which may open
// one of its own; a child that executes a program has a device like any process; the parent goes on.
#include <cerrno>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

// GET_VERSION of kfd_ioctl.h: two 32-bit numbers.
struct Version {
    unsigned major, minor;
};
static const unsigned long GET_VERSION = _IOR('K', 1, Version);

__global__ void square(unsigned *values) { values[threadIdx.x] = threadIdx.x * threadIdx.x; }

static void compute() {
    unsigned *device, values[64];
    CHECK(hipMalloc(&device, sizeof values));
    square<<<1, 64>>>(device);
    CHECK(hipGetLastError());
    CHECK(hipMemcpy(values, device, sizeof values, hipMemcpyDeviceToHost));
    for (unsigned i = 0; i < 64; i++)
        REQUIRE(values[i] == i * i, "%u: %u", i, values[i]);
    CHECK(hipFree(device));
}

// The descriptors of /dev/kfd, by the number of the device.
static std::vector<int> driver_files() {
    struct stat driver, file;
    REQUIRE(stat("/dev/kfd", &driver) == 0, "%s", std::strerror(errno));
    std::vector<int> found;
    for (int fd = 3; fd < 1024; fd++)
        if (fstat(fd, &file) == 0 && S_ISCHR(file.st_mode) && file.st_rdev == driver.st_rdev)
            found.push_back(fd);
    return found;
}

// In a child, whose exit status tells the parent.
template <typename Action> static void in_child(Action action) {
    std::fflush(stdout);
    pid_t child = fork();
    REQUIRE(child >= 0, "%s", std::strerror(errno));
    if (child == 0) {
        action();
        std::fflush(stdout);
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %#x", status);
}

int main(int, char **argv) {
    if (argv[1]) {
        compute();
        return passed("child");
    }
    compute();
    std::vector<int> files = driver_files();
    REQUIRE(!files.empty(), "no descriptor of /dev/kfd");
    Version version = {};
    for (int fd : files)
        REQUIRE(ioctl(fd, GET_VERSION, &version) == 0 && version.major == 1, "%s", std::strerror(errno));
    in_child([&] {
        for (int fd : files) {
            errno = 0;
            REQUIRE(ioctl(fd, GET_VERSION, &version) == -1 && errno == EBADF, "%s", std::strerror(errno));
        }
        int own = open("/dev/kfd", O_RDWR | O_CLOEXEC);
        REQUIRE(own >= 0, "%s", std::strerror(errno));
        version = {};
        REQUIRE(ioctl(own, GET_VERSION, &version) == 0 && version.major == 1, "%s", std::strerror(errno));
    });
    in_child([&] {
        execl("/proc/self/exe", argv[0], "child", nullptr);
        REQUIRE(false, "%s", std::strerror(errno));
    });
    compute();
    return passed("forks");
}
