# SPDX-License-Identifier: MIT OR Apache-2.0
"""Many elements to one: along every axis, in registers, across a work-group's lanes, over several kernels."""

import numpy as np
import pytest
from compare import check, real, whole
from tinygrad import Tensor

AXES = [None, 0, 1, 2, (0, 2), (1, 2)]
SHAPE = (5, 37, 19)


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int32], ids=lambda kind: kind.__name__)
def test_sum(axis, kind):
    # tinygrad keeps a sum in float32 where NumPy keeps float16; the numbers are exact in both.
    check(lambda a: a.sum(axis), lambda a: a.sum(axis, dtype=kind), whole(SHAPE, -2, 3, kind))


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("extreme", ["max", "min"])
def test_extremes(axis, extreme):
    check(lambda a: getattr(a, extreme)(axis), lambda a: getattr(a, extreme)(axis), real(SHAPE))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_position_of_the_first_maximum(axis):
    check(lambda a: a.argmax(axis), lambda a: a.argmax(axis), whole(SHAPE, 0, 6))


@pytest.mark.parametrize("axis", [0, 1])
def test_running_sum(axis):
    check(lambda a: a.cumsum(axis), lambda a: a.cumsum(axis), whole((33, 65)))


def test_long_running_sum():
    check(lambda a: a.cumsum(0), lambda a: a.cumsum(0), whole(600, kind=np.int32))


def test_sum_of_many():
    check(Tensor.sum, lambda a: a.sum(dtype=np.int64), whole(70001, -1000, 1000, np.int32))


def test_product():
    check(lambda a: a.prod(1), lambda a: a.prod(1), whole((40, 9), 1, 3))


def test_mean_variance_and_deviation():
    check(lambda a: a.mean(1), lambda a: a.mean(1, dtype=np.float64), real(SHAPE), within=1e-5)
    check(lambda a: a.var(2), lambda a: a.var(2, ddof=1, dtype=np.float64), real(SHAPE), within=1e-5)
    check(lambda a: a.std(0), lambda a: a.std(0, ddof=1, dtype=np.float64), real(SHAPE), within=1e-5)


def test_all_and_any():
    check(lambda a: a.all(1), lambda a: a.all(1), whole((64, 3), 0, 2, bool))
    check(lambda a: a.any(0), lambda a: a.any(0), whole((3, 64), 0, 2, bool))


def softmax(values, axis):
    parts = np.exp(values - values.max(axis, keepdims=True))
    return parts / parts.sum(axis, keepdims=True)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax(axis):
    check(lambda a: a.softmax(axis), lambda a: softmax(a.astype(np.float64), axis), real((31, 67)), within=1e-5)


def test_logarithm_of_softmax():
    check(lambda a: a.log_softmax(1), lambda a: np.log(softmax(a.astype(np.float64), 1)), real((9, 130)), within=1e-5)


def test_layer_normalization():
    def expected(a):
        a = a.astype(np.float64)
        return (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)

    check(lambda a: a.layernorm(), expected, real((6, 7, 48)), within=2e-5)
