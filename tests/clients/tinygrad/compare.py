# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compares what the device computes with what NumPy does."""

import numpy as np
from tinygrad import Tensor


def check(compute, expected, *arrays, within=0.0):
    """`compute` of tensors with the contents of `arrays` has the elements of `expected` of these arrays.

    Without `within` every element is equal, a NaN is equal to a NaN. Else `within` bounds the error: a part of the expected
    value, or of 1 where that is smaller.
    """
    found = compute(*[Tensor(array) for array in arrays]).numpy()
    with np.errstate(all="ignore"):
        wanted = np.asarray(expected(*arrays))
    assert found.shape == wanted.shape
    if within:
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=within, atol=within)
    else:
        np.testing.assert_array_equal(found, wanted)


def whole(shape, least=-4, most=5, kind=np.float32, seed=0):
    """Random whole numbers, so small that their products and sums are exact in any order."""
    return np.random.default_rng(seed).integers(least, most, shape).astype(kind)


def real(shape, kind=np.float32, seed=0, least=-3.0, most=3.0):
    """Random numbers of this type between these bounds."""
    return np.random.default_rng(seed).uniform(least, most, shape).astype(kind)
