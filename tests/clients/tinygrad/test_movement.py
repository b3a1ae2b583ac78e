# SPDX-License-Identifier: MIT OR Apache-2.0
"""Elements that change their place, and places that are computed."""

import numpy as np
import pytest
from compare import check, real, whole
from tinygrad import Tensor, dtypes

MOVES = {
    "pad": (lambda a: a.pad(((1, 2), (0, 3), (4, 0))), lambda a: np.pad(a, ((1, 2), (0, 3), (4, 0)))),
    "pad-value": (lambda a: a.pad(((0, 0), (1, 1), (2, 1)), value=7), lambda a: np.pad(a, ((0, 0), (1, 1), (2, 1)), constant_values=7)),
    "shrink": (lambda a: a.shrink(((1, 4), (0, 5), (3, 9))) + 1, lambda a: a[1:4, 0:5, 3:9] + 1),
    "flip": (lambda a: a.flip((0, 2)) + 1, lambda a: a[::-1, :, ::-1] + 1),
    "permute": (lambda a: a.permute(2, 0, 1) * 2, lambda a: a.transpose(2, 0, 1) * 2),
    "stride": (lambda a: a[::2, 1::3, ::-2] + 1, lambda a: a[::2, 1::3, ::-2] + 1),
    "expand": (lambda a: a.reshape(6, 1, 7, 11).expand(6, 4, 7, 11) + 1, lambda a: np.broadcast_to(a[:, None] + 1, (6, 4, 7, 11))),
    "concatenate": (lambda a: a.cat(a.flip(0), a * 2, dim=1), lambda a: np.concatenate([a, a[::-1], a * 2], 1)),
    "stack": (lambda a: Tensor.stack(a, a + 1, dim=2), lambda a: np.stack([a, a + 1], 2)),
    "roll": (lambda a: a.roll(3, 1), lambda a: np.roll(a, 3, 1)),
    "repeat": (lambda a: a.repeat((2, 1, 3)), lambda a: np.tile(a, (2, 1, 3))),
    "lower-triangle": (lambda a: a.tril(), np.tril),
}


@pytest.mark.parametrize("kind", [np.float32, np.int8], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("move", MOVES)
def test_move(move, kind):
    check(*MOVES[move], whole((6, 7, 11), kind=kind))


def test_gather():
    check(lambda a, i: a.gather(1, i), lambda a, i: np.take_along_axis(a, i, 1), real((20, 30)), whole((20, 8), 0, 30, np.int32))


def test_index_by_a_tensor():
    check(lambda a, i: a[i], lambda a, i: a[i], real((40, 9)), whole(100, 0, 40, np.int64))


def test_scatter():
    places = np.stack([np.random.default_rng(row).permutation(30)[:8] for row in range(20)]).astype(np.int32)

    def expected(a, i, values):
        a = a.copy()
        np.put_along_axis(a, i, values, 1)
        return a

    check(lambda a, i, values: a.scatter(1, i, values), expected, real((20, 30)), places, real((20, 8), seed=1))


def test_scatter_with_sums():
    def expected(a, i, values):
        a = a.copy()
        np.add.at(a, i, values)
        return a

    check(lambda a, i, values: a.scatter_reduce(0, i, values, "sum"), expected, whole(16), whole(200, 0, 16, np.int32), whole(200, seed=1))


def test_one_hot():
    check(lambda a: a.one_hot(10), lambda a: np.eye(10, dtype=np.int32)[a], whole(50, 0, 10, np.int32))


def test_embedding():
    check(lambda table, words: words.one_hot(50).float() @ table, lambda table, words: table[words], whole((50, 16)),
          whole((3, 7), 0, 50, np.int32))


@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending):
    values = np.random.default_rng(0).permutation(50).astype(np.float32)

    def order(a):
        return -np.sort(-a) if descending else np.sort(a)

    check(lambda a: a.sort(descending=descending)[0], order, values)
    check(lambda a: a.sort(descending=descending)[1], lambda a: np.argsort(-a if descending else a), values)


def test_greatest_of_all():
    check(lambda a: a.topk(5)[0], lambda a: -np.sort(-a)[:, :5], real((7, 12)))


def test_assignment_to_a_part():
    tensor = Tensor.zeros(8, 9).contiguous().realize()
    tensor[2:5, 3] = Tensor([1.0, 2.0, 3.0])
    wanted = np.zeros((8, 9), np.float32)
    wanted[2:5, 3] = [1, 2, 3]
    np.testing.assert_array_equal(tensor.numpy(), wanted)


def test_random_numbers_follow_from_the_seed_on_every_device():
    """Counters and rotations of 32-bit integers: no rounding, so the CPU has the same bits."""

    def draw(seed, device):
        Tensor.manual_seed(seed)
        return Tensor.rand(999, device=device).numpy()

    first = draw(7, "AMD")
    np.testing.assert_array_equal(draw(7, "AMD"), first)
    np.testing.assert_array_equal(draw(7, "CPU"), first)
    assert (draw(8, "AMD") != first).any()
    assert 0 <= first.min() and first.max() < 1 and abs(first.mean() - 0.5) < 0.05


def test_random_normal_numbers_and_permutations():
    Tensor.manual_seed(3)
    normal = Tensor.randn(4000).numpy()
    assert abs(normal.mean()) < 0.1 and abs(normal.std() - 1) < 0.1
    np.testing.assert_array_equal(np.sort(Tensor.randperm(30).numpy()), np.arange(30))


def test_ranges_and_constants():
    np.testing.assert_array_equal(Tensor.arange(5, 500, 3).numpy(), np.arange(5, 500, 3))
    np.testing.assert_array_equal(Tensor.eye(17).contiguous().numpy(), np.eye(17, dtype=np.float32))
    np.testing.assert_array_equal(Tensor.full((3, 5), 2, dtype=dtypes.int16).contiguous().numpy(), np.full((3, 5), 2, np.int16))
