# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triton's tutorials that need nothing of torch, written anew, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import triton
import triton.language as tl
from triton.language.extra import libdevice

import stasis
import stasis.triton

pytestmark = pytest.mark.usefixtures("active_triton")


@pytest.fixture()
def random():
    return np.random.default_rng(7)


def put(device, *arrays):
    """A buffer for each array."""
    return [stasis.Buffer.from_numpy(device, each) for each in arrays]


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i4", "i8", "u1"])
@pytest.mark.parametrize("n", [1, 1000, 4096])
def test_vector_add(device, random, dtype, n):
    x, y = (random.integers(0, 100, n).astype(dtype) for _ in range(2))
    out = stasis.Buffer.zeros(device, n, dtype)
    buffers = [stasis.Buffer.from_numpy(device, each) for each in (x, y)]
    add[(triton.cdiv(n, 256),)](*buffers, out, n, BLOCK=256)
    assert np.array_equal(out.numpy(), x + y)


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    values = tl.load(x + row * stride + at, mask=mask, other=float("-inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + at, values / tl.sum(values, axis=0), mask=mask)


def test_fused_softmax(device, random):
    x = random.standard_normal((37, 781), dtype="f4")
    source, out = stasis.Buffer.from_numpy(device, x), stasis.Buffer.zeros(device, x.shape)
    softmax[(37,)](source, out, 781, 781, BLOCK=1024)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    stasis.triton.assert_close(out, e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-6)


@triton.autotune(
    configs=[
        triton.Config({"M": 32, "N": 32, "K": 32}, num_warps=2),
        triton.Config({"M": 64, "N": 32, "K": 16}, num_warps=4),
    ],
    key=["m", "n", "k"],
)
@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        at = start + inner
        left = tl.load(a + row[:, None] * k + at[None, :], mask=(row[:, None] < m) & (at[None, :] < k), other=0.0)
        right = tl.load(b + at[:, None] * n + column[None, :], mask=(at[:, None] < k) & (column[None, :] < n), other=0.0)
        total = tl.dot(left, right, total, allow_tf32=False)
    mask = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], total.to(c.dtype.element_ty), mask=mask)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_autotuned_matmul(device, random, dtype):
    m, n, k = 100, 72, 80
    a, b = random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)
    buffers = [stasis.Buffer.from_numpy(device, each) for each in (a, b)]
    c = stasis.Buffer.zeros(device, (m, n), dtype)
    matmul[lambda meta: (triton.cdiv(m, meta["M"]), triton.cdiv(n, meta["N"]))](*buffers, c, m, n, k)
    stasis.triton.assert_close(c, a.astype("f4") @ b.astype("f4"), rtol=1e-2, atol=3e-2 if dtype == "f2" else 1e-3)
    assert matmul.best_config in matmul.configs


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    keep = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(keep, tl.load(x + at, mask=mask) / (1 - p), 0.0), mask=mask)


def test_seeded_dropout(device):
    n = 10_000
    x = stasis.Buffer.from_numpy(device, np.ones(n, "f4"))
    outs = [stasis.Buffer.zeros(device, n) for _ in range(3)]
    for out, seed in zip(outs, (123, 123, 512)):
        dropout[(triton.cdiv(n, 1024),)](x, out, n, 0.5, seed, BLOCK=1024)
    first, second, third = (out.numpy() for out in outs)
    assert np.array_equal(first, second) and not np.array_equal(first, third)
    assert set(np.unique(first)) == {0.0, 2.0} and 0.47 < (first > 0).mean() < 0.53


@triton.jit
def layer_norm(x, out, weight, bias, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    values = tl.load(x + row * columns + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(mask, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    result = centred * scale * tl.load(weight + at, mask=mask) + tl.load(bias + at, mask=mask)
    tl.store(out + row * columns + at, result, mask=mask)


def test_layer_norm_forward(device, random):
    x, weight, bias = random.standard_normal((17, 200), "f4"), random.random(200, "f4"), random.random(200, "f4")
    buffers = [stasis.Buffer.from_numpy(device, each) for each in (x, weight, bias)]
    out = stasis.Buffer.zeros(device, x.shape)
    layer_norm[(17,)](buffers[0], out, buffers[1], buffers[2], 200, 1e-5, BLOCK=256)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * weight + bias
    stasis.triton.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@triton.jit
def attention(q, k, v, out, length, scale, HEAD: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    lane = tl.arange(0, HEAD)
    base = tl.program_id(1) * length * HEAD
    query = tl.load(q + base + row[:, None] * HEAD + lane[None, :])
    most = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    sums = tl.zeros((M, HEAD), tl.float32)
    for start in range(0, length, N):
        column = start + tl.arange(0, N)
        key = tl.load(k + base + column[None, :] * HEAD + lane[:, None])
        score = tl.dot(query, key) * scale
        score = tl.where(row[:, None] >= column[None, :], score, float("-inf"))
        now = tl.maximum(most, tl.max(score, axis=1))
        weight = tl.exp(score - now[:, None])
        old = tl.exp(most - now)
        total = total * old + tl.sum(weight, axis=1)
        value = tl.load(v + base + column[:, None] * HEAD + lane[None, :])
        sums = sums * old[:, None] + tl.dot(weight.to(value.dtype), value)
        most = now
    tl.store(out + base + row[:, None] * HEAD + lane[None, :], sums / total[:, None])


def test_fused_causal_attention(device, random):
    heads, length, head = 2, 64, 32
    q, k, v = (random.standard_normal((heads, length, head)).astype("f2") for _ in range(3))
    buffers = [stasis.Buffer.from_numpy(device, each) for each in (q, k, v)]
    out = stasis.Buffer.zeros(device, q.shape, "f4")
    scale = head**-0.5
    attention[(length // 32, heads)](*buffers, out, length, scale, HEAD=head, M=32, N=32)
    score = np.einsum("hid,hjd->hij", q.astype("f4"), k.astype("f4")) * scale
    score[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
    weight = np.exp(score - score.max(-1, keepdims=True))
    expected = weight @ v.astype("f4") / weight.sum(-1, keepdims=True)
    stasis.triton.assert_close(out, expected, rtol=1e-2, atol=5e-3)


@triton.jit
def layer_norm_backward(
    dx, given_out, dweight, dbias, x, weight, mean, scale, locks, counts, columns,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    place = row * columns + at
    given = tl.load(given_out + place, mask=mask, other=0.0)
    factor = tl.load(scale + row)
    normal = tl.where(mask, (tl.load(x + place, mask=mask, other=0.0) - tl.load(mean + row)) * factor, 0.0)
    weighted = tl.where(mask, given * tl.load(weight + at, mask=mask, other=0.0), 0.0)
    along = tl.sum(normal * weighted, axis=0) / columns
    level = tl.sum(weighted, axis=0) / columns
    tl.store(dx + place, (weighted - normal * along - level) * factor, mask=mask)
    # Rows of a group add to the same sums, one at a time.
    group = row % GROUPS
    lock, count, sums = locks + group, counts + group, group * columns + at
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    partial_weight, partial_bias = given * normal, given
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        partial_weight += tl.load(dweight + sums, mask=mask)
        partial_bias += tl.load(dbias + sums, mask=mask)
    tl.store(dweight + sums, partial_weight, mask=mask)
    tl.store(dbias + sums, partial_bias, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def add_groups(partial, out, groups, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, groups, ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row[:, None] < groups) & (at[None, :] < columns)
        total += tl.load(partial + row[:, None] * columns + at[None, :], mask=mask, other=0.0)
    tl.store(out + at, tl.sum(total, axis=0), mask=at < columns)


def test_layer_norm_backward(device, random):
    rows, columns, groups = 40, 200, 4
    x, given_out = (random.standard_normal((rows, columns), "f4") for _ in range(2))
    weight = random.random(columns, "f4")
    mean, scale = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    buffers = put(device, given_out, x, weight, mean, scale)
    dx = stasis.Buffer.zeros(device, x.shape)
    partial = [stasis.Buffer.zeros(device, (groups, columns)) for _ in range(2)]
    locks = [stasis.Buffer.zeros(device, groups, "i4") for _ in range(2)]
    layer_norm_backward[(rows,)](
        dx, buffers[0], *partial, *buffers[1:], *locks, columns, GROUPS=groups, BLOCK=256
    )
    sums = [stasis.Buffer.zeros(device, columns) for _ in range(2)]
    for source, out in zip(partial, sums):
        add_groups[(triton.cdiv(columns, 64),)](source, out, groups, columns, ROWS=4, BLOCK=64)
    normal = (x - mean[:, None]) * scale[:, None]
    weighted = given_out * weight
    expected = weighted - normal * (normal * weighted).mean(1, keepdims=True) - weighted.mean(1, keepdims=True)
    stasis.triton.assert_close(dx, expected * scale[:, None], rtol=1e-4, atol=1e-5)
    stasis.triton.assert_close(sums[0], (given_out * normal).sum(0), rtol=1e-4, atol=1e-4)
    stasis.triton.assert_close(sums[1], given_out.sum(0), rtol=1e-4, atol=1e-4)


@triton.jit
def grouped_gemm(
    a_places, b_places, c_places, sizes, groups, programs, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    tile = tl.program_id(0)
    end = 0
    for group in range(groups):
        m, n, k = tl.load(sizes + 3 * group), tl.load(sizes + 3 * group + 1), tl.load(sizes + 3 * group + 2)
        wide = tl.cdiv(n, N)
        begin = end
        end += tl.cdiv(m, M) * wide
        a = tl.load(a_places + group).to(tl.pointer_type(tl.float16))
        b = tl.load(b_places + group).to(tl.pointer_type(tl.float16))
        c = tl.load(c_places + group).to(tl.pointer_type(tl.float16))
        while tile >= begin and tile < end:
            row = (tile - begin) // wide * M + tl.arange(0, M)
            column = (tile - begin) % wide * N + tl.arange(0, N)
            total = tl.zeros((M, N), dtype=tl.float32)
            for start in range(0, k, K):
                at = start + tl.arange(0, K)
                left = tl.load(a + row[:, None] * k + at[None, :], mask=(row[:, None] < m) & (at[None, :] < k), other=0.0)
                right = tl.load(
                    b + at[:, None] * n + column[None, :], mask=(at[:, None] < k) & (column[None, :] < n), other=0.0
                )
                total = tl.dot(left, right, total)
            mask = (row[:, None] < m) & (column[None, :] < n)
            tl.store(c + row[:, None] * n + column[None, :], total.to(tl.float16), mask=mask)
            tile += programs


def test_grouped_gemm(device, random):
    sizes = [(64, 48, 32), (100, 32, 40), (16, 16, 16), (33, 70, 90)]
    pairs = [
        tuple(random.standard_normal(shape).astype("f2") for shape in ((m, k), (k, n))) for m, n, k in sizes
    ]
    a, b = (put(device, *(pair[side] for pair in pairs)) for side in (0, 1))
    c = [stasis.Buffer.zeros(device, (m, n), "f2") for m, n, _ in sizes]
    places = [np.array([each.data_ptr() for each in group], "u8").astype("i8") for group in (a, b, c)]
    tables = put(device, *places, np.array(sizes, "i4"))
    grouped_gemm[(5,)](*tables, len(sizes), 5, M=32, N=32, K=16)
    device.synchronize()
    for (left, right), out in zip(pairs, c):
        stasis.triton.assert_close(out, left.astype("f4") @ right.astype("f4"), rtol=1e-2, atol=5e-2)


@triton.jit
def persistent_matmul(
    a, b, c, m, n, k, programs, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr
):
    high, wide = tl.cdiv(m, M), tl.cdiv(n, N)
    for tile in range(tl.program_id(0), high * wide, programs):
        # Tiles of some rows before those of the next ones: they share what caches have.
        first = tile // (GROUP * wide) * GROUP
        rows = min(high - first, GROUP)
        row = (first + tile % rows) * M + tl.arange(0, M)
        column = tile % (GROUP * wide) // rows * N + tl.arange(0, N)
        total = tl.zeros((M, N), dtype=tl.float32)
        for start in range(0, tl.cdiv(k, K)):
            at = start * K + tl.arange(0, K)
            left = tl.load(a + row[:, None] * k + at[None, :], mask=(row[:, None] < m) & (at[None, :] < k), other=0.0)
            right = tl.load(
                b + at[:, None] * n + column[None, :], mask=(at[:, None] < k) & (column[None, :] < n), other=0.0
            )
            total = tl.dot(left, right, total)
        # With leaky ReLU, fused.
        total = tl.where(total >= 0, total, 0.01 * total)
        mask = (row[:, None] < m) & (column[None, :] < n)
        tl.store(c + row[:, None] * n + column[None, :], total.to(c.dtype.element_ty), mask=mask)


def test_persistent_matmul_with_an_activation(device, random):
    m, n, k = 150, 130, 70
    a, b = random.standard_normal((m, k)).astype("f2"), random.standard_normal((k, n)).astype("f2")
    c = stasis.Buffer.zeros(device, (m, n), "f2")
    persistent_matmul[(7,)](*put(device, a, b), c, m, n, k, 7, M=32, N=32, K=32, GROUP=2)
    expected = a.astype("f4") @ b.astype("f4")
    stasis.triton.assert_close(c, np.where(expected >= 0, expected, 0.01 * expected), rtol=1e-2, atol=5e-2)


@triton.jit
def described_matmul(a, b, c, m, n, k, programs, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    left = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[M, K])
    right = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[N, K])
    out = tl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[M, N])
    wide = tl.cdiv(n, N)
    for tile in range(tl.program_id(0), tl.cdiv(m, M) * wide, programs):
        row, column = tile // wide * M, tile % wide * N
        total = tl.zeros((M, N), dtype=tl.float32)
        for start in range(0, k, K):
            total = tl.dot(left.load([row, start]), right.load([column, start]).T, total)
        out.store([row, column], total.to(tl.float16))


def test_persistent_matmul_by_tensor_descriptors(device, random):
    m, n, k = 100, 72, 64
    a, b = random.standard_normal((m, k)).astype("f2"), random.standard_normal((n, k)).astype("f2")
    c = stasis.Buffer.zeros(device, (m, n), "f2")
    described_matmul[(3,)](*put(device, a, b), c, m, n, k, 3, M=32, N=32, K=32)
    stasis.triton.assert_close(c, a.astype("f4") @ b.astype("f4").T, rtol=1e-2, atol=5e-2)


@triton.jit
def scaled_matmul(a, a_scale, b, b_scale, c, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, FORM: tl.constexpr):
    # Two 4-bit numbers share a byte; 32 numbers share a scale.
    packed: tl.constexpr = 2 if FORM == "e2m1" else 1
    bytes_of: tl.constexpr = K // packed
    row, column = tl.arange(0, M), tl.arange(0, N)
    at, group = tl.arange(0, bytes_of), tl.arange(0, K // 32)
    left = tl.load(a + row[:, None] * bytes_of + at[None, :])
    right = tl.load(b + column[None, :] * bytes_of + at[:, None])
    left_scale = tl.load(a_scale + row[:, None] * (K // 32) + group[None, :])
    right_scale = tl.load(b_scale + column[:, None] * (K // 32) + group[None, :])
    total = tl.dot_scaled(left, left_scale, FORM, right, right_scale, FORM)
    tl.store(c + row[:, None] * N + column[None, :], total)


def small_floats(form, codes):
    """What the codes of a small floating-point format stand for."""
    exponent_bits, mantissa_bits, bias = {"e2m1": (2, 1, 1), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}[form]
    sign = np.where(codes >> (exponent_bits + mantissa_bits) & 1, -1.0, 1.0)
    exponent = (codes >> mantissa_bits & ((1 << exponent_bits) - 1)).astype(int)
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    return sign * np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))


@pytest.mark.parametrize("form", ["e2m1", "e4m3", "e5m2"])
def test_block_scaled_matmul(device, random, form):
    m, n, k = 32, 32, 64
    bits = 4 if form == "e2m1" else 8
    # Without the largest exponents, which have no numbers or are far beyond the others.
    codes = [
        random.integers(0, 1 << (bits - 1 if form == "e2m1" else bits - 2), (rows, k)).astype("u1")
        | (random.integers(0, 2, (rows, k)) << (bits - 1)).astype("u1")
        for rows in (m, n)
    ]
    scales = [random.integers(125, 130, (rows, k // 32)).astype("u1") for rows in (m, n)]
    packed = [each[:, ::2] | each[:, 1::2] << 4 for each in codes] if form == "e2m1" else codes
    a, b, a_scale, b_scale = put(device, *packed, *scales)
    c = stasis.Buffer.zeros(device, (m, n))
    scaled_matmul[(1,)](a, a_scale, b, b_scale, c, K=k, M=m, N=n, FORM=form)
    left, right = (
        small_floats(form, code) * np.repeat(2.0 ** (scale.astype(int) - 127), 32, axis=1)
        for code, scale in zip(codes, scales)
    )
    stasis.triton.assert_close(c, left @ right.T, rtol=1e-2, atol=1e-2 * np.abs(left @ right.T).max())


@triton.jit
def inverse_sine(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, libdevice.asin(tl.load(x + at, mask=mask)), mask=mask)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_functions_of_the_device_library(device, random, dtype):
    x = (random.random(1000) * 2 - 1).astype(dtype)
    out = stasis.Buffer.zeros(device, 1000, dtype)
    inverse_sine[(triton.cdiv(1000, 256),)](*put(device, x), out, 1000, BLOCK=256)
    stasis.triton.assert_close(out, np.arcsin(x), rtol=1e-6, atol=1e-6)
