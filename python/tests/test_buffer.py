# SPDX-License-Identifier: MIT OR Apache-2.0
"""Buffers: contents, views, lifetimes, DLPack."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import stasis


@pytest.mark.parametrize("memory", ["vram", "host"])
@pytest.mark.parametrize("dtype", ["u1", "<i2", "<f2", "<f4", "<f8", "<c8", "?", [("a", "<i4"), ("b", "<f8")]])
def test_from_numpy_has_shape_type_and_contents(device, memory, dtype):
    array = (np.arange(6).reshape(2, 3) % 2).astype(dtype)
    buffer = stasis.Buffer.from_numpy(device, array, memory=memory)
    assert (buffer.shape, buffer.nbytes, buffer.memory, len(buffer)) == ((2, 3), array.nbytes, memory, 2)
    back = buffer.numpy()
    assert back.shape == (2, 3)
    assert back.dtype == array.dtype and buffer.dtype == array.dtype
    assert np.array_equal(back, array)


def test_from_numpy_takes_what_is_not_contiguous(device):
    array = np.arange(24, dtype="i4").reshape(4, 6)
    for part in (array.T, array[::2, ::-1], array[:, 2:3]):
        assert np.array_equal(stasis.Buffer.from_numpy(device, part).numpy(), part)
    assert np.array_equal(stasis.Buffer.from_numpy(device, [1.5, 2.5]).numpy(), [1.5, 2.5])
    assert stasis.Buffer.from_numpy(device, 7.0).numpy() == 7.0


def test_numpy_is_a_view_at_the_buffers_address(device, module):
    buffer = stasis.Buffer.zeros(device, 256)
    array = buffer.numpy()
    assert buffer.is_host_visible
    assert array.__array_interface__["data"] == (buffer.data_ptr(), False)
    array[:] = 3.0
    module["axpy"][1, 256](buffer, buffer, 2.0, 256)
    device.synchronize()
    assert np.all(array == 9.0)


def test_buffer_is_not_freed_while_a_view_lives(device):
    buffer = stasis.Buffer.zeros(device, 16)
    array = buffer.numpy()
    part = array[3:5]
    del array
    with pytest.raises(BufferError, match="1 arrays or tensors are views"):
        buffer.free()
    part[:] = 1
    del part
    gc.collect()
    buffer.free()
    with pytest.raises(stasis.Error, match="freed"):
        buffer.numpy()
    with pytest.raises(stasis.Error, match="freed before"):
        buffer.free()


def test_threads_that_free_and_view_get_an_array_or_an_error(device):
    for _ in range(50):
        buffer = stasis.Buffer.from_numpy(device, np.arange(1000))
        sums, refused = [], []

        def look(buffer=buffer, sums=sums, refused=refused):
            try:
                sums.append(int(buffer.numpy().sum()))
            except stasis.Error as error:
                refused.append(error)

        def free(buffer=buffer, refused=refused):
            try:
                buffer.free()
            except (BufferError, stasis.Error) as error:
                refused.append(error)

        threads = [threading.Thread(target=each) for each in (look, free, look, free)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(sums) <= {499500} and len(sums) + len(refused) >= 3


def test_view_outlives_the_buffer_object(device):
    array = stasis.Buffer.from_numpy(device, np.arange(1000)).numpy()
    gc.collect()
    assert array.sum() == 499500


def test_context_manager_frees(device):
    before = device.memory()["held"]
    with stasis.Buffer(device, 1 << 20) as buffer:
        assert device.memory()["held"] >= before + (1 << 20)
    assert device.memory()["held"] == before
    assert "freed" in repr(buffer)


def test_write_and_fill(device):
    buffer = stasis.Buffer.empty(device, (4, 4), "i4")
    buffer.fill(0xFF)
    assert np.all(buffer.numpy() == -1)
    buffer.write(np.eye(4, dtype="i2"))
    assert np.array_equal(buffer.numpy(), np.eye(4))
    for wrong in (np.zeros(5, "i4"), np.eye(4)):
        with pytest.raises((ValueError, TypeError)):
            buffer.write(wrong)


@pytest.mark.parametrize(
    ("shape", "dtype"), [(0, "f4"), ((1 << 40, 1 << 40), "f4"), ((3, 0), "f8"), (-1, "f4")], ids=str
)
def test_shapes_that_are_none_are_refused(device, shape, dtype):
    with pytest.raises((ValueError, OverflowError, TypeError)):
        stasis.Buffer.empty(device, shape, dtype)


def test_python_objects_are_refused(device):
    with pytest.raises(TypeError, match="Python objects"):
        stasis.Buffer.from_numpy(device, np.array([object()]))


def test_out_of_memory_says_what_is_held(device):
    with pytest.raises(stasis.OutOfMemory, match="out of memory.*wanted.*holds"):
        stasis.Buffer(device, device.memory()["total"] + 1)
    with pytest.raises(stasis.Error, match="addresses"):
        stasis.Buffer(device, 1 << 45)


def test_unknown_memory_is_refused(device):
    with pytest.raises(ValueError, match="vram"):
        stasis.Buffer(device, 16, memory="texture")


def test_dlpack_gives_numpy_a_view(device):
    buffer = stasis.Buffer.from_numpy(device, np.arange(12, dtype="f4").reshape(3, 4), memory="host")
    assert buffer.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(buffer)
    assert array.shape == (3, 4) and np.array_equal(array, np.arange(12).reshape(3, 4))
    buffer.fill(0)
    assert not array.any()
    with pytest.raises(BufferError):
        buffer.free()
    del array
    gc.collect()
    buffer.free()


def test_dlpack_of_device_memory_is_rocm(device):
    buffer = stasis.Buffer.zeros(device, 8)
    assert buffer.__dlpack_device__() == (10, 0)
    capsule = buffer.__dlpack__()
    assert "dltensor" in repr(capsule)
    with pytest.raises(BufferError):
        buffer.free()
    del capsule
    gc.collect()
    buffer.free()


def test_dlpack_refuses_what_it_cannot_say(device):
    with pytest.raises(BufferError, match="no type"):
        stasis.Buffer.empty(device, 4, "S3").__dlpack__()
    with pytest.raises(BufferError, match="is on device"):
        stasis.Buffer.empty(device, 4).__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy"):
        stasis.Buffer.empty(device, 4).__dlpack__(copy=True)


def test_from_dlpack_copies(device):
    source = np.arange(5, dtype="i8")
    buffer = stasis.Buffer.from_dlpack(device, source)
    source[:] = 0
    assert np.array_equal(buffer.numpy(), np.arange(5))
    other = stasis.Buffer.from_dlpack(device, buffer, memory="host")
    buffer.fill(0)
    assert np.array_equal(other.numpy(), np.arange(5))
