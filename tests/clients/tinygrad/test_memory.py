# SPDX-License-Identifier: MIT OR Apache-2.0
"""Copies to and from the device, tensors without elements, captured kernels."""

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit, dtypes

KINDS = [np.bool_, np.int8, np.uint16, np.int32, np.uint64, np.float16, np.float32, np.float64]


@pytest.mark.parametrize("length", [1, 3, 4097, 1 << 20, (5 << 20) + 13])
def test_bytes_come_back_as_they_went(length):
    # The last is more than a staging buffer holds.
    wanted = np.random.default_rng(length).integers(0, 256, length, np.uint8)
    np.testing.assert_array_equal(Tensor(wanted).to("AMD").realize().numpy(), wanted)


def test_copy_inside_the_device():
    wanted = np.arange(300_000, dtype=np.int32)
    source = Tensor(wanted).realize()
    copy = source.clone().realize()
    source.assign(source * 0).realize()
    np.testing.assert_array_equal(copy.numpy(), wanted)
    assert not source.numpy().any()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_elements(kind):
    empty = Tensor(np.zeros((0, 3), kind))
    assert empty.realize().numpy().shape == (0, 3)
    # A sum of nothing is 0, of bool tinygrad's is an int32.
    assert empty.cast(dtypes.int32).sum().item() == 0
    assert empty.cat(Tensor(np.ones((2, 3), kind))).numpy().tolist() == np.ones((2, 3), kind).tolist()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_dimensions(kind):
    scalar = Tensor(np.array(1, kind))
    assert scalar.shape == () and scalar.numpy().dtype == kind
    assert (scalar + scalar).numpy() == np.array(1, kind) + np.array(1, kind)


def test_captured_kernels_take_new_inputs():
    @TinyJit
    def step(a, b):
        product = (a @ b).relu()
        return (product + a).realize(), product.sum().realize()

    for seed in range(6):
        random = np.random.default_rng(seed)
        a, b = (random.integers(-4, 5, (12, 12)).astype(np.float32) for _ in range(2))
        found, total = step(Tensor(a).realize(), Tensor(b).realize())
        product = np.maximum(a @ b, 0)
        np.testing.assert_array_equal(found.numpy(), product + a)
        assert total.item() == product.sum()
    assert step.captured is not None


def test_gradients():
    a, b = (np.random.default_rng(seed).integers(-4, 5, (9, 9)).astype(np.float32) for seed in (0, 1))
    left, right = Tensor(a), Tensor(b)
    (left.matmul(right) * 2).sum().backward()
    np.testing.assert_array_equal(left.grad.numpy(), 2 * np.ones((9, 9)) @ b.T)
    np.testing.assert_array_equal(right.grad.numpy(), 2 * a.T @ np.ones((9, 9)))


def test_memory_that_no_gpu_has_is_refused_and_work_goes_on():
    with pytest.raises(MemoryError):
        Tensor.empty(1 << 44, dtype=dtypes.uint8).realize().uop.buffer.ensure_allocated()
    assert (Tensor([20]) + 22).item() == 42
