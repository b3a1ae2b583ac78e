# SPDX-License-Identifier: MIT OR Apache-2.0
"""Products, convolutions and pooling, with sizes that fit no tile."""

import numpy as np
import pytest
from compare import check, real, whole
from tinygrad import Tensor, dtypes
from tinygrad.helpers import Context


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (17, 33, 65), (32, 32, 32), (1, 129, 31), (31, 129, 1)], ids=str)
@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64, np.int32], ids=lambda kind: kind.__name__)
def test_product(sizes, kind):
    rows, inner, columns = sizes
    check(Tensor.matmul, np.matmul, whole((rows, inner), kind=kind), whole((inner, columns), kind=kind, seed=1))


@pytest.mark.parametrize("sizes", [(16, 16, 16), (32, 48, 16), (19, 37, 23)], ids=str)
@pytest.mark.parametrize("kind, sum_kind", [("half", "float"), ("half", "half"), ("bfloat16", "float"), ("int8", "int")])
def test_product_by_matrix_instructions(sizes, kind, sum_kind, capfd):
    rows, inner, columns = sizes
    left, right = whole((rows, inner), -2, 3), whole((inner, columns), -2, 3, seed=1)
    # 2: also for sizes that are no multiples of 16, which are filled up. DEBUG 4 prints the kernel.
    with Context(TC_OPT=2, DEBUG=4):
        short = [Tensor(side).cast(getattr(dtypes, kind)).realize() for side in (left, right)]
        found = short[0].matmul(short[1], dtype=getattr(dtypes, sum_kind)).float().realize()
    printed = capfd.readouterr().out
    assert "llvm.amdgcn.wmma" in printed
    np.testing.assert_array_equal(found.numpy(), left @ right)


def test_product_of_a_batch_of_matrices():
    check(Tensor.matmul, np.matmul, whole((3, 2, 9, 11)), whole((3, 2, 11, 5), seed=1))


def test_product_of_real_numbers():
    check(Tensor.matmul, lambda a, b: a.astype(np.float64) @ b, real((33, 100)), real((100, 21), seed=1), within=1e-5)


def convolve(image, weights, stride, dilation, groups, padding):
    """A convolution, said in the plainest way."""
    image = np.pad(image, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    batch, _, height, width = image.shape
    outputs, inner, down, across = weights.shape
    rows = (height - dilation * (down - 1) - 1) // stride + 1
    columns = (width - dilation * (across - 1) - 1) // stride + 1
    result = np.zeros((batch, outputs, rows, columns), image.dtype)
    for output in range(outputs):
        first = output // (outputs // groups) * inner
        for y in range(rows):
            for x in range(columns):
                top, left = y * stride, x * stride
                window = image[:, first:first + inner, top:top + dilation * down:dilation, left:left + dilation * across:dilation]
                result[:, output, y, x] = (window * weights[output]).sum((1, 2, 3))
    return result


@pytest.mark.parametrize("stride, dilation, groups, padding", [
    (1, 1, 1, 0), (2, 1, 1, 1), (1, 2, 1, 0), (3, 1, 1, 2), (1, 1, 2, 1), (1, 1, 4, 0), (2, 2, 2, 3),
])
def test_convolution(stride, dilation, groups, padding):
    def expected(image, weights):
        return convolve(image, weights, stride, dilation, groups, padding)

    check(lambda image, weights: image.conv2d(weights, stride=stride, dilation=dilation, groups=groups, padding=padding), expected,
          whole((2, 4, 13, 11)), whole((8, 4 // groups, 3, 3), seed=1))


def test_convolution_in_half_precision():
    check(lambda image, weights: image.conv2d(weights), lambda a, b: convolve(a, b, 1, 1, 1, 0), whole((1, 3, 8, 9), -2, 3, np.float16),
          whole((5, 3, 2, 2), -2, 3, np.float16, 1))


def test_transposed_convolution_undoes_the_shape():
    image, weights = whole((1, 2, 5, 5)), whole((2, 3, 3, 3), seed=1)
    found = Tensor(image).conv_transpose2d(Tensor(weights), stride=2).numpy()
    wanted = np.zeros((1, 3, 11, 11), np.float32)
    for y in range(5):
        for x in range(5):
            wanted[0, :, 2 * y:2 * y + 3, 2 * x:2 * x + 3] += np.einsum("i,iohw->ohw", image[0, :, y, x], weights)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("pooling", ["max", "avg"])
@pytest.mark.parametrize("window, stride", [(2, 2), (3, 2), (4, 1)])
def test_pooling(pooling, window, stride):
    def expected(image):
        windows = np.lib.stride_tricks.sliding_window_view(image, (window, window), (2, 3))[:, :, ::stride, ::stride]
        return windows.max((4, 5)) if pooling == "max" else windows.astype(np.float64).mean((4, 5))

    check(lambda image: getattr(image, f"{pooling}_pool2d")(kernel_size=(window, window), stride=stride), expected, real((2, 3, 12, 10)),
          within=1e-6)


def test_attention():
    def expected(q, k, v):
        scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(16)
        scores = np.where(np.tri(10, dtype=bool), scores, -np.inf)
        parts = np.exp(scores - scores.max(-1, keepdims=True))
        return parts / parts.sum(-1, keepdims=True) @ v

    check(lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True), expected, *[real((2, 3, 10, 16), seed=n) for n in range(3)],
          within=1e-5)
