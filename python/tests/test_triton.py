# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triton on our devices: launches, measuring, tuning, printing."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import triton
import triton.language as tl

import stasis
import stasis.triton

from test_checkpoint import start, wait_for
from test_tutorials import add

pytestmark = pytest.mark.usefixtures("active_triton")


@triton.jit
def scalars(out, truth, small, large, half, single):
    tl.store(out, truth.to(tl.float64))
    tl.store(out + 1, small.to(tl.float64))
    tl.store(out + 2, large.to(tl.float64))
    tl.store(out + 3, half.to(tl.float64))
    tl.store(out + 4, single.to(tl.float64))


def test_scalars_of_every_type(device):
    out = stasis.Buffer.zeros(device, 5, "f8")
    scalars[(1,)](out, True, -5, 1 << 40, 0.5, 2.25)
    assert out.numpy().tolist() == [1.0, -5.0, float(1 << 40), 0.5, 2.25]


def test_empty_grid_launches_nothing(device):
    out = stasis.Buffer.zeros(device, 16)
    add[(0,)](out, out, out, 16, BLOCK=16)
    assert not out.numpy().any()


def test_do_bench_measures(device):
    n = 1 << 16
    x, out = stasis.Buffer.zeros(device, n), stasis.Buffer.zeros(device, n)

    def launch():
        add[(n // 1024,)](x, x, out, n, BLOCK=1024)

    times = stasis.triton.do_bench(launch, warmup=1, rep=5, return_mode="all")
    assert times and all(0 < each < 60_000 for each in times)
    low, high = stasis.triton.do_bench(launch, warmup=1, rep=5, quantiles=[0.1, 0.9])
    assert 0 < low <= high


@triton.autotune(
    configs=[triton.Config({"BLOCK": size}) for size in (64, 256)],
    key=["n"],
    reset_to_zero=["total"],
    restore_value=["x"],
)
@triton.jit
def accumulate(x, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    values = tl.load(x + at, mask=mask, other=0.0)
    tl.atomic_add(total, tl.sum(values, axis=0))
    tl.store(x + at, values + 1, mask=mask)


def test_tuning_leaves_values_as_they_were(device):
    n = 1000
    x = stasis.Buffer.from_numpy(device, np.ones(n, "f4"))
    total = stasis.Buffer.zeros(device, 1)
    accumulate[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, total, n)
    assert total.numpy()[0] == n and (x.numpy() == 2).all()
    assert len(accumulate.configs_timings) == 2
    with pytest.raises(ValueError, match="4000 bytes cannot be copied to one of 4"):
        total.copy_(x)


@triton.jit
def tell(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_print("value: ", tl.load(x + at), n)


def test_kernels_print(device, capsys):
    x = stasis.Buffer.from_numpy(device, np.arange(64, dtype="f4") / 4)
    tell[(2,)](x, -7, BLOCK=32, num_warps=1)
    device.synchronize()
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert len([line for line in lines if "value" in line]) == 128, lines
    for at in range(64):
        # Once for the value and once for `n`, which every element has.
        assert f"pid ({at // 32}, 0, 0) idx ({at % 32:2}) value: (operand 0) {at / 4:f}" in lines, at
    assert len([line for line in lines if line.endswith("-7")]) == 64


@triton.jit
def tell_integers(x, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    tl.device_print("", values)
    tl.device_print("hex", values, hex=True)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_integers_of_every_size_print_as_they_are(device, capsys, dtype):
    numbers = np.array([0, 1, 100, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    numbers = np.resize(numbers, 32)
    tell_integers[(1,)](stasis.Buffer.from_numpy(device, numbers), BLOCK=32, num_warps=1)
    device.synchronize()
    lines = "".join(capsys.readouterr()).splitlines()
    plain = sorted(line.split()[-1] for line in lines if "hex" not in line)
    assert plain == sorted(str(number) for number in numbers)
    # A negative number is widened to 32 bits before it is printed, as by C.
    digits, mask = 2 * numbers.itemsize, (1 << max(32, 8 * numbers.itemsize)) - 1
    shown = sorted(line.split()[-1] for line in lines if "hex" in line)
    assert shown == sorted(f"0x{int(number) & mask:0{digits}x}" for number in numbers)


ASSERTS = """
import sys
import numpy as np
import triton, triton.language as tl
import stasis, stasis.triton

@triton.jit
def check(x, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    tl.device_assert(values < 100, "too large for us")
    tl.store(x + tl.arange(0, BLOCK), values + 1)

stasis.triton.activate()
device = stasis.Device(0)
x = stasis.Buffer.from_numpy(device, np.arange(64, dtype="i4"))
check[(1,)](x, BLOCK=64, debug=True)
print(int(x.numpy()[0]))
x.numpy()[5] = 1000
check[(1,)](x, BLOCK=64, debug=True)
try:
    device.synchronize()
except stasis.KernelFault as fault:
    print("fault", "WaveAbort" in str(fault))
"""


def test_assertions_of_kernels_name_what_was_wrong(program, run):
    done = run(program(ASSERTS))
    assert done.stdout == "1\nfault True\n", (done.stdout, done.stderr)
    assert "too large for us" in done.stderr


TUNED = """
import numpy as np
import triton, triton.language as tl
import stasis, stasis.triton

@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (64, 256)], key=["n"])
@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

def run():
    double[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 1000)
    return bool((out.numpy() == 2 * x.numpy()).all())

stasis.triton.activate()
device = stasis.Device(0)
x = stasis.Buffer.from_numpy(device, np.arange(1000, dtype="f4"))
out = stasis.Buffer.zeros(device, 1000)
assert run()
found = dict(double.cache)
made = stasis.checkpoint("image")
tuned = []
double._bench = lambda *args, **more: tuned.append(args)
with open("restored" if made.restored else "original", "w") as file:
    print(run(), len(found), double.cache == found, tuned, file=file)
"""


def test_what_tuning_has_found_is_in_a_checkpoint(program, tmp_path, command):
    process = start(program(TUNED), TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert process.wait(timeout=240) == 0, (tmp_path / "log").read_text()
    assert wait_for(tmp_path / "original") == "True 1 True []\n"
    done = subprocess.run([command, "restore", "image"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert wait_for(tmp_path / "restored") == "True 1 True []\n", (tmp_path / "log").read_text()
