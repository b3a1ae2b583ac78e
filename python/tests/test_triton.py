# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triton's kernels, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import triton
import triton.language as tl

import stasis
import stasis.triton


@pytest.fixture(autouse=True, scope="module")
def active(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        stasis.triton.activate()
        yield
        stasis.triton.deactivate()


@pytest.fixture()
def random():
    return np.random.default_rng(7)


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
def scalars(out, truth, small, large, half, single):
    tl.store(out, truth.to(tl.float64))
    tl.store(out + 1, small.to(tl.float64))
    tl.store(out + 2, large.to(tl.float64))
    tl.store(out + 3, half.to(tl.float64))
    tl.store(out + 4, single.to(tl.float64))


def test_scalars_of_every_type(device):
    out = stasis.Buffer.zeros(device, 5, "f8")
    scalars[(1,)](out, True, -5, 1 << 40, 0.5, 2.25)
    assert out.numpy().tolist() == [1.0, -5.0, float(1 << 40), 0.5, 2.25]


def test_empty_grid_launches_nothing(device):
    out = stasis.Buffer.zeros(device, 16)
    add[(0,)](out, out, out, 16, BLOCK=16)
    assert not out.numpy().any()


def test_do_bench_measures(device):
    n = 1 << 16
    x, out = stasis.Buffer.zeros(device, n), stasis.Buffer.zeros(device, n)

    def launch():
        add[(n // 1024,)](x, x, out, n, BLOCK=1024)

    times = stasis.triton.do_bench(launch, warmup=1, rep=5, return_mode="all")
    assert times and all(0 < each < 60_000 for each in times)
    low, high = stasis.triton.do_bench(launch, warmup=1, rep=5, quantiles=[0.1, 0.9])
    assert 0 < low <= high
