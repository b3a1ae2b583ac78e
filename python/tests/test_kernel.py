# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels: arguments, shapes, queues, events, faults."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import stasis


@contextmanager
def spinning(device, module, queue=None):
    """Has a kernel run until the block is left; gives the buffer that it writes."""
    stop = stasis.Buffer.zeros(device, 1, "u4", memory="host")
    turns = stasis.Buffer.zeros(device, 1, "u4", memory="host")
    view = stop.numpy()
    module["spin"][1, 1, queue](stop, turns)
    try:
        yield turns
    finally:
        view[0] = 1


def test_axpy(device, module):
    x = np.arange(1000, dtype="f4")
    device_x, out = stasis.Buffer.from_numpy(device, x), stasis.Buffer.from_numpy(device, np.ones(1000, "f4"))
    module["axpy"][4, 256](device_x, out, 2.0, 1000)
    assert np.array_equal(out.numpy(), 2 * x + 1)


def test_module_of_a_file(device, code, tmp_path):
    path = tmp_path / "kernels.co"
    path.write_bytes(code)
    for given in (path, str(path)):
        assert "axpy" in stasis.Module(device, given).kernels
    with pytest.raises(OSError, match="nowhere"):
        stasis.Module(device, tmp_path / "nowhere")


def test_what_is_no_code_object_is_refused(device, code):
    for bad in (b"", b"\x7fELF", code[: len(code) // 2], bytes(1000)):
        with pytest.raises(stasis.LoadError):
            stasis.Module(device, bad)


def test_unknown_kernel_names_those_there_are(module):
    with pytest.raises(stasis.LoadError, match="axpy"):
        module.kernel("nothing")
    with pytest.raises(KeyError, match="axpy"):
        module["nothing"]


def test_kernel_describes_its_arguments(module):
    kernel = module["axpy"]
    assert kernel.name == "axpy"
    assert [(kind, size) for _, kind, size in kernel.arguments] == [
        ("global_buffer", 8),
        ("global_buffer", 8),
        ("by_value", 4),
        ("by_value", 4),
    ]
    assert kernel.wave_size == 32 and kernel.max_block >= 256


def test_argument_of_every_size(device, module):
    out = stasis.Buffer.zeros(device, 7, "u8")
    kernel = module["sizes"]
    kernel[1, 1](out, 250, 65000, 0xDEADBEEF, 1 << 63, 1.5, 2.5, 3.5)
    words = [250, 65000, 0xDEADBEEF, 1 << 63]
    floats = [int(np.float16(1.5).view("u2")), int(np.float32(2.5).view("u4")), int(np.float64(3.5).view("u8"))]
    assert out.numpy().tolist() == words + floats
    kernel[1, 1](out, -1, np.int16(-2), True, -3, np.float16(0.5), np.float32(0.25), np.float64(0.125))
    words = [0xFF, 0xFFFE, 1, (1 << 64) - 3]
    floats = [int(np.float16(0.5).view("u2")), int(np.float32(0.25).view("u4")), int(np.float64(0.125).view("u8"))]
    assert out.numpy().tolist() == words + floats
    kernel[1, 1](out, ctypes.c_uint8(9), ctypes.c_uint16(8), ctypes.c_uint32(7), 6, 0.0, ctypes.c_float(1.0), 0.0)
    assert out.numpy().tolist() == [9, 8, 7, 6, 0, 0x3F800000, 0]


def test_struct_is_given_as_bytes(device, module):
    class Three(ctypes.Structure):
        _fields_ = [("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32)]

    out = stasis.Buffer.zeros(device, 1, "u4")
    for given in (Three(1, 2, 3), bytes(Three(1, 2, 3)), bytearray(Three(1, 2, 3))):
        out.fill(0)
        module["sum"][1, 1](out, given)
        assert out.numpy()[0] == 6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "takes 4 arguments, 0 were given"),
        ((1, 2, 3.0, 4, 5), "takes 4 arguments, 5 were given"),
        ((0, 0, 0.0, 1 << 32), "Argument 3.*4 bytes"),
        ((0, 0, 0.0, -(1 << 31) - 1), "Argument 3.*4 bytes"),
        ((0, 0, np.float64(1).astype("f8").reshape(1), 1), "Argument 2"),
        ((np.zeros(4), 0, 0.0, 1), "Argument 0.*from_numpy"),
        ((1.0, 0, 0.0, 1), "Argument 0.*is an address"),
        ((0, 0, b"123", 1), "Argument 2.*4 bytes, 3 were given"),
        ((0, 0, "1", 1), "Argument 2.*cannot be a str"),
        ((0, 0, None, 1), "Argument 2.*cannot be a NoneType"),
    ],
)
def test_wrong_arguments_are_named(module, arguments, text):
    with pytest.raises(stasis.LaunchError, match=text):
        module["axpy"][1, 1](*arguments)


@pytest.mark.parametrize(
    ("grid", "block"),
    [((3,), 32), ((2, 3), (8, 4)), ((2, 3, 2), (4, 2, 2)), (3, 32), ([2, 3], [8, 4])],
)
def test_shapes(device, module, grid, block):
    groups, items = (list(x) if not isinstance(x, int) else [x] for x in (grid, block))
    lengths = [a * b for a, b in zip(groups, items)] + [1] * (3 - len(groups))
    out = stasis.Buffer.zeros(device, lengths[::-1], "u4")
    module["place"][grid, block](out, lengths[0], lengths[1])
    x, y, z = (np.arange(n) for n in lengths)
    assert np.array_equal(out.numpy(), x[None, None, :] + 100 * y[None, :, None] + 10000 * z[:, None, None])


@pytest.mark.parametrize(
    "shape", [3, (), (1,), (1, 2, 3, 4), (0, 32), (1, 0), (1, 5000), (1 << 31, 2), ("1", 1), (1, 1.5), (1, 1, 7), ((1, 1, 1, 1), 1)]
)
def test_shapes_that_are_none_are_refused(module, device, shape):
    out = stasis.Buffer.zeros(device, 4)
    with pytest.raises((stasis.LaunchError, TypeError)):
        module["axpy"][shape](out, out, 1.0, 4)
    device.synchronize()


def test_free_of_what_a_kernel_uses_is_refused(device, module):
    with spinning(device, module) as turns:
        with pytest.raises(stasis.Timeout, match="wait for them first"):
            turns.free(timeout=0.0)
    turns.free()


def test_wait_times_out_and_other_threads_run_meanwhile(device, module):
    ran = threading.Event()
    with spinning(device, module):
        thread = threading.Timer(0.05, ran.set)
        thread.start()
        with pytest.raises(stasis.Timeout, match="still|consumed"):
            device.synchronize(timeout=0.3)
        assert ran.is_set()
        with pytest.raises(TimeoutError):
            device.queue.record().synchronize(timeout=0.0)
    device.synchronize()


def test_ctrl_c_ends_a_wait(device, module):
    with spinning(device, module):
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            # The handler runs in this thread, whichever thread was sent the signal.
            device.synchronize()
    device.synchronize()


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e30])
def test_times_that_are_none_are_refused(device, seconds):
    with pytest.raises(ValueError, match="timeout"):
        device.synchronize(timeout=seconds)


def test_events_order_queues_and_tell_times(device, module):
    first, second = stasis.Queue(device), stasis.Queue(device, packets=64)
    out = stasis.Buffer.zeros(device, 1, "u4")
    begin = first.record()
    with spinning(device, module, first):
        end = first.record()
        second.wait_for(end)
        module["sum"][1, 1, second](out, b"\1\0\0\0\2\0\0\0\3\0\0\0")
        after = second.record()
        begin.synchronize(timeout=60)
        time.sleep(0.05)
        assert not end.query() and not after.query()
    after.synchronize(timeout=60)
    assert end.query() and out.numpy()[0] == 6
    assert 0.04 < begin.elapsed(end) < 60 and end.elapsed(after) >= 0


def test_queue_takes_more_launches_than_it_has_room_for(device, module):
    queue = stasis.Queue(device, packets=64)
    out = stasis.Buffer.zeros(device, 1, "f4")
    one = stasis.Buffer.from_numpy(device, np.ones(1, "f4"))
    with queue:
        for _ in range(500):
            module["axpy"][1, 1, queue](one, out, 1.0, 1)
    assert out.numpy()[0] == 500


FAULT = """
import stasis
device = stasis.Device(0)
module = stasis.Module(device, "kernels.co")
buffer = stasis.Buffer.from_numpy(device, [1, 2, 3])
module["fault"][1, 1]()
for act in (device.synchronize, lambda: module["fault"][1, 1](), device.synchronize):
    try:
        act()
    except stasis.KernelFault as error:
        print(type(error).__name__, "0xdead0000" in str(error), "kernel fault" in str(error))
try:
    # The driver may make one, and runs nothing on it.
    queue = stasis.Queue(device)
    module["sum"][1, 1, queue](stasis.Buffer.zeros(device, 1), bytes(12))
    queue.synchronize(timeout=60)
except stasis.KernelFault as error:
    print("start a new process" in str(error))
print(stasis.Buffer.from_numpy(stasis.Device(1), [4, 5]).numpy())
"""


def test_fault_is_told_and_another_device_goes_on(run, program):
    # As on hardware: a memory fault costs the process its device.
    done = run(program(FAULT), STASIS_DEVICE="soft:gfx1100*2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5 and lines[3:] == ["True", "[4 5]"], done.stdout
    assert all(line.split()[1:] == ["True", "True"] for line in lines[:3]), done.stdout


def test_kernel_of_another_device_is_refused(code):
    if stasis.device_count() < 2:
        pytest.skip("one device")
    here, there = stasis.Device(0), stasis.Device(1)
    with pytest.raises(stasis.LaunchError, match="loaded on"):
        stasis.Module(there, code)["fault"][1, 1, here.queue]()


def test_devices():
    found = stasis.devices()
    assert len(found) == stasis.device_count() and found[0] == stasis.Device(0)
    assert found[0].name.startswith("gfx") and found[0].compute_units > 0
    with pytest.raises(IndexError, match="no device 99"):
        stasis.Device(99)
    memory = found[0].memory()
    assert 0 < memory["available"] <= memory["total"]
    assert "gfx" in repr(found[0])


def test_second_runtime_on_other_devices_is_refused():
    with pytest.raises(ValueError, match="process has one"):
        stasis.open("soft:gfx1101")
    with pytest.raises(ValueError):
        stasis.open("soft:nonsense")
