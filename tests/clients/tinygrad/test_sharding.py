# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tensors whose parts are on two GPUs: `stasis run --device soft:gfx1100*2`."""

import numpy as np
import pytest
from compare import whole
from tinygrad import Tensor, TinyJit

GPUS = ("AMD", "AMD:1")


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_come_back_as_one(axis):
    values = whole((10, 8))
    tensor = Tensor(values).shard(GPUS, axis).realize()
    assert tensor.device == GPUS
    np.testing.assert_array_equal(tensor.numpy(), values)
    np.testing.assert_array_equal((tensor * 2 + 1).numpy(), values * 2 + 1)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_sum_over_both(axis):
    values = whole((64, 34))
    np.testing.assert_array_equal(Tensor(values).shard(GPUS, 0).sum(axis).numpy(), values.sum(axis))


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (1, 0)], ids=["rows", "columns", "inner"])
def test_product(axes):
    left, right = whole((6, 10)), whole((10, 8), seed=1)
    tensors = [Tensor(side).shard(GPUS, axis) for side, axis in zip((left, right), axes)]
    np.testing.assert_array_equal(tensors[0].matmul(tensors[1]).numpy(), left @ right)


def test_copies_from_one_to_the_other_and_back():
    values = whole(100_000)
    first = Tensor(values, device=GPUS[0]).realize()
    second = (first.to(GPUS[1]) + 1).realize()
    np.testing.assert_array_equal((second.to(GPUS[0]) * first).numpy(), (values + 1) * values)


def test_a_step_of_training_with_half_the_data_each():
    data, wanted, weights = whole((8, 6)), whole((8, 3), seed=1), whole((6, 3), seed=2)
    shared = Tensor(weights).shard(GPUS)

    @TinyJit
    def step(x, y):
        gradient = ((x.matmul(shared) - y).square().sum()).gradient(shared)[0]
        return gradient.realize()

    for _ in range(4):
        found = step(Tensor(data).shard(GPUS, 0).realize(), Tensor(wanted).shard(GPUS, 0).realize())
        np.testing.assert_array_equal(found.numpy(), 2 * data.T @ (data @ weights - wanted))
