# SPDX-License-Identifier: MIT OR Apache-2.0
"""One result for each element: arithmetic of every type, comparisons, conversions, functions."""

import ml_dtypes
import numpy as np
import pytest
from compare import check, real, whole
from tinygrad import Tensor, dtypes

# No multiple of a wave's lanes, and more than a work-group's threads.
LENGTH = 1003
FLOATS = [np.float16, np.float32, np.float64]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def name(value):
    return getattr(value, "__name__", str(value))


def any_bits(kind, seed):
    """Numbers of the whole range of an integer type."""
    limits = np.iinfo(kind)
    return np.random.default_rng(seed).integers(limits.min, limits.max, LENGTH, kind, endpoint=True)


def special(kind):
    """Ordinary numbers, then infinities, zeros, NaN, the greatest and the least, each beside each."""
    limits = np.finfo(kind)
    values = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.5, limits.max, limits.smallest_normal]
    left, right = np.meshgrid(np.array(values, kind), np.array(values, kind))
    return np.append(real(64, kind), left.ravel()), np.append(real(64, kind, 1), right.ravel())


@pytest.mark.parametrize("kind", FLOATS, ids=name)
@pytest.mark.parametrize("operation", [np.add, np.subtract, np.multiply, np.maximum], ids=name)
def test_arithmetic_of_floats_rounds_as_ieee_says(operation, kind):
    tiny = {np.add: Tensor.add, np.subtract: Tensor.sub, np.multiply: Tensor.mul, np.maximum: Tensor.maximum}
    check(tiny[operation], operation, real(LENGTH, kind), real(LENGTH, kind, 1))


@pytest.mark.parametrize("kind", FLOATS, ids=name)
def test_division_of_floats(kind):
    # tinygrad lets its compiler multiply by a reciprocal.
    check(lambda a, b: a / b, np.divide, real(LENGTH, kind), real(LENGTH, kind, 1, 0.25), within=4 * np.finfo(kind).eps)


@pytest.mark.parametrize("kind", FLOATS, ids=name)
def test_sums_with_infinities_zeros_and_nans(kind):
    check(lambda a, b: a + b, np.add, *special(kind))


@pytest.mark.parametrize("operation", ["lt", "gt", "eq", "ne", "le", "ge"])
@pytest.mark.parametrize("kind", [*FLOATS, np.int8, np.int64, np.uint32], ids=name)
def test_comparisons(operation, kind):
    symbols = {"lt": np.less, "gt": np.greater, "eq": np.equal, "ne": np.not_equal, "le": np.less_equal, "ge": np.greater_equal}
    if operation in ("le", "ge") and kind in FLOATS:
        # tinygrad has a <= b for not a > b, which a NaN makes true.
        pair = whole(LENGTH, 0, 4, kind), whole(LENGTH, 0, 4, kind, 1)
    else:
        pair = special(kind) if kind in FLOATS else (whole(LENGTH, 0, 4, kind), whole(LENGTH, 0, 4, kind, 1))
    check(lambda a, b: getattr(a, f"__{operation}__")(b), symbols[operation], *pair)


@pytest.mark.parametrize("kind", INTEGERS, ids=name)
def test_integers_wrap_around(kind):
    check(lambda a, b: a * b + a - b, lambda a, b: a * b + a - b, any_bits(kind, 0), any_bits(kind, 1))


@pytest.mark.parametrize("kind", INTEGERS, ids=name)
def test_quotients_of_integers_lose_their_fraction(kind):
    divisors = any_bits(kind, 3) // kind(16)
    # The least number divided by -1 has no quotient of its type.
    divisors[np.isin(divisors.astype(np.float64), [0, -1])] = 7

    def expected(a, b):
        wide = a.astype(object), b.astype(object)
        quotients = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(*wide)]
        return np.array(quotients, object).astype(np.int64 if np.iinfo(kind).min else np.uint64).astype(kind)

    check(lambda a, b: a.div(b, rounding_mode="trunc"), expected, any_bits(kind, 2), divisors)


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int32, np.uint64], ids=name)
def test_bits(kind):
    check(lambda a, b: (a & b) ^ (a | ~b), lambda a, b: (a & b) ^ (a | ~b), any_bits(kind, 4), any_bits(kind, 5))


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.uint64], ids=name)
def test_shifts(kind):
    check(lambda a: (a << 3) + (a >> 5), lambda a: (a << kind(3)) + (a >> kind(5)), any_bits(kind, 6))


def test_truth_values():
    check(lambda a, b: (a & b) ^ (a | b.logical_not()), lambda a, b: (a & b) ^ (a | ~b), whole(LENGTH, 0, 2, bool),
          whole(LENGTH, 0, 2, bool, 1))


@pytest.mark.parametrize("operation", ["add", "mul"])
def test_bfloat16_rounds_to_nearest_even(operation):
    pair = real(LENGTH).astype(ml_dtypes.bfloat16), real(LENGTH, seed=1).astype(ml_dtypes.bfloat16)
    wanted = pair[0] + pair[1] if operation == "add" else pair[0] * pair[1]
    short = [Tensor(part.astype(np.float32)).cast(dtypes.bfloat16).realize() for part in pair]
    found = getattr(short[0], operation)(short[1])
    assert found.dtype == dtypes.bfloat16
    np.testing.assert_array_equal(found.float().numpy(), wanted.astype(np.float32))


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8], ids=name)
def test_where(kind):
    check(lambda c, a, b: c.where(a, b), np.where, whole(LENGTH, 0, 2, bool), whole(LENGTH, 0, 9, kind), whole(LENGTH, 0, 9, kind, 1))


@pytest.mark.parametrize("kinds", [
    (np.float32, np.int32), (np.float32, np.float16), (np.float32, np.float64), (np.float32, np.uint8), (np.float32, np.bool_),
    (np.float64, np.float32), (np.float64, np.int64), (np.float16, np.float32), (np.float16, np.int16), (np.int64, np.float32),
    (np.int64, np.float64), (np.int32, np.float16), (np.uint64, np.float64), (np.int32, np.uint8), (np.int16, np.int64),
    (np.uint32, np.float32), (np.bool_, np.float32), (np.bool_, np.int8), (np.int8, np.uint64),
], ids=lambda kinds: f"{kinds[0].__name__}-{kinds[1].__name__}")
def test_casts(kinds):
    source, target = kinds
    if source is np.bool_:
        values = whole(LENGTH, 0, 2, source)
    elif source in INTEGERS:
        values = any_bits(source, 7) if target is not np.float16 else whole(LENGTH, -9999, 9999, source)
    else:
        values = real(LENGTH, source, 8, 0.0 if target is np.uint8 else -200.0, 200.0)
    wanted = {np.bool_: dtypes.bool}.get(target) or getattr(dtypes, np.dtype(target).name)
    check(lambda a: a.cast(wanted), lambda a: a.astype(target), values)


def test_bits_seen_as_another_type():
    check(lambda a: a.bitcast(dtypes.int32) ^ 0x55, lambda a: a.view(np.int32) ^ 0x55, real(LENGTH))


FUNCTIONS = {
    "exp": (Tensor.exp, np.exp, -20, 20), "exp2": (Tensor.exp2, np.exp2, -20, 20), "log": (Tensor.log, np.log, 1e-3, 1e3),
    "log2": (Tensor.log2, np.log2, 1e-3, 1e3), "sqrt": (Tensor.sqrt, np.sqrt, 0, 1e4),
    "rsqrt": (Tensor.rsqrt, lambda a: 1 / np.sqrt(a), 1e-2, 1e4), "reciprocal": (Tensor.reciprocal, lambda a: 1 / a, 1e-1, 1e3),
    "sin": (Tensor.sin, np.sin, -30, 30), "cos": (Tensor.cos, np.cos, -30, 30), "tanh": (Tensor.tanh, np.tanh, -4, 4),
    "sigmoid": (Tensor.sigmoid, lambda a: 1 / (1 + np.exp(-a)), -9, 9), "silu": (Tensor.silu, lambda a: a / (1 + np.exp(-a)), -9, 9),
    "floor": (Tensor.floor, np.floor, -9, 9), "ceil": (Tensor.ceil, np.ceil, -9, 9), "round": (Tensor.round, np.round, -9, 9),
    "abs": (Tensor.abs, np.abs, -9, 9), "sign": (Tensor.sign, np.sign, -9, 9),
}


@pytest.mark.parametrize("kind", [np.float32, np.float64], ids=name)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function, kind):
    compute, expected, least, most = FUNCTIONS[function]
    values = real(LENGTH, kind, 9, least, most)
    # tinygrad's cosine of a float64 adds a quarter of a turn that was rounded to float32's length; on its CPU, too.
    check(compute, lambda a: expected(a.astype(np.float64)), values, within=1e-5 if kind is np.float32 else 2e-8)


def test_sine_of_great_arguments():
    check(Tensor.sin, lambda a: np.sin(a.astype(np.float64)), real(257, np.float32, 10, -3e6, 3e6), within=1e-5)


def test_powers():
    check(lambda a, b: a.pow(b), np.power, real(LENGTH, least=0.1), real(LENGTH, seed=1), within=2e-5)


def test_error_function_and_gelu():
    from math import erf

    check(Tensor.gelu, lambda a: 0.5 * a * (1 + np.tanh(0.7978845608 * (a + 0.044715 * a**3))), real(LENGTH), within=1e-5)
    check(Tensor.erf, np.vectorize(erf), real(LENGTH), within=1e-5)
