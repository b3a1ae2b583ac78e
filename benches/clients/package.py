# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the Python package takes: to be imported, for a launch, and for Triton's kernels beside numpy.

Prints one JSON object a figure: what was done, what was counted, the number, its unit, and what it is compared with.
"""

import json
import statistics
import subprocess
import sys
import time

import numpy as np
import triton
import triton.language as tl

import stasis
import stasis.triton


def tell(case, metric, value, unit, peer=None, of_peer=None):
    figure = {"case": case, "metric": metric, "value": value, "unit": unit, "peer": peer, "of_peer": of_peer}
    print(json.dumps(figure), flush=True)


def median(act, times):
    found = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def imports():
    """Interpreters that import a module and end, less those that import none."""

    def started(line):
        return lambda: subprocess.run([sys.executable, "-I", "-c", line], check=True)

    nothing, numpy, ours = (median(started(line), 9) for line in ("pass", "import numpy", "import stasis"))
    tell("import stasis", "time", 1e3 * (ours - nothing), "ms", "import numpy", 1e3 * (numpy - nothing))


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def matmul(a, b, c, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, n, K):
        at = start + tl.arange(0, K)
        left, right = tl.load(a + row[:, None] * n + at[None, :]), tl.load(b + at[:, None] * n + column[None, :])
        total = tl.dot(left, right, total, allow_tf32=False)
    tl.store(c + row[:, None] * n + column[None, :], total)


def launches(device):
    """Empty kernels in a loop that nobody waits for, against numpy's smallest addition."""
    small = np.ones(1, "f4")
    out = stasis.Buffer.zeros(device, 64)
    kernel = add[(1,)](out, out, out, 0, BLOCK=64)
    direct = kernel.function[1, 32 * kernel.metadata.num_warps]
    arguments = (out, out, out, 0, 0, 0)
    rounds = 500

    def loop(act):
        took = []
        for _ in range(20):
            device.synchronize()
            began = time.perf_counter()
            for _ in range(rounds):
                act()
            took.append(time.perf_counter() - began)
        return 1e6 * statistics.median(took) / rounds

    numpy = loop(lambda: np.add(small, small))
    tell("a launch, submitted", "time", loop(lambda: direct(*arguments)), "us", "numpy.add of one element", numpy)
    triton_launch = loop(lambda: add[(1,)](out, out, out, 0, BLOCK=64))
    tell("a launch of Triton's, submitted", "time", triton_launch, "us", "numpy.add of one element", numpy)


def kernels(device):
    random = np.random.default_rng(5)
    n = 1 << 22
    x, y = (random.random(n, "f4") for _ in range(2))
    buffers = [stasis.Buffer.from_numpy(device, each) for each in (x, y)]
    out = stasis.Buffer.zeros(device, n)

    def added():
        add[(n // 4096,)](*buffers, out, n, BLOCK=4096)
        device.synchronize()

    added()
    assert np.array_equal(out.numpy(), x + y)
    plain = np.empty_like(x)
    ours, numpy = median(added, 15), median(lambda: np.add(x, y, out=plain), 15)
    tell("Triton: 4 Mi f32 added", "time", 1e3 * ours, "ms", "numpy.add", 1e3 * numpy)
    n = 512
    a, b = (random.standard_normal((n, n), "f4") for _ in range(2))
    buffers = [stasis.Buffer.from_numpy(device, each) for each in (a, b)]
    c = stasis.Buffer.zeros(device, (n, n))

    def multiplied():
        matmul[(n // 64, n // 64)](*buffers, c, n, M=64, N=64, K=16)
        device.synchronize()

    multiplied()
    stasis.triton.assert_close(c, a @ b, rtol=1e-3, atol=1e-3)
    ours, numpy = median(multiplied, 9), median(lambda: a @ b, 9)
    tell("Triton: f32 matrices of 512 x 512 multiplied", "time", 1e3 * ours, "ms", "numpy.matmul", 1e3 * numpy)


def main():
    imports()
    stasis.triton.activate()
    device = stasis.Device(0)
    launches(device)
    kernels(device)


if __name__ == "__main__":
    main()
