# SPDX-License-Identifier: MIT OR Apache-2.0
"""Kernels in Triton's language, compiled for gfx1100 without a GPU.

Usage: triton_kernels.py DIRECTORY. Writes NAME.hsaco for each kernel and prints its name, LDS bytes and warps.
"""

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = at < n
    tl.store(out + at, tl.load(x + at, mask=m) + tl.load(y + at, mask=m), mask=m)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    m = at < columns
    v = tl.load(x + row * columns + at, mask=m, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * columns + at, e / tl.sum(e, axis=0), mask=m)


@triton.jit
def matmul(a, b, c, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, n, BLOCK):
        left = tl.load(a + rows[:, None] * n + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * n + cols[None, :])
        acc += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + cols[None, :], acc)


@triton.jit
def layernorm(x, w, b, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    m = at < columns
    v = tl.load(x + row * columns + at, mask=m, other=0.0)
    mean = tl.sum(v, axis=0) / columns
    d = tl.where(m, v - mean, 0.0)
    r = 1 / tl.sqrt(tl.sum(d * d, axis=0) / columns + eps)
    tl.store(out + row * columns + at, d * r * tl.load(w + at, mask=m) + tl.load(b + at, mask=m), mask=m)


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = at < n
    keep = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(keep, tl.load(x + at, mask=m) / (1 - p), 0.0), mask=m)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0), axis=0))


# The types of the arguments; a number is the value of a constant.
SIGNATURES = {
    add: ["*fp32", "*fp32", "*fp32", "i32", 1024],
    softmax: ["*fp32", "*fp32", "i32", 1024],
    matmul: ["*fp16", "*fp16", "*fp32", "i32", 32],
    layernorm: ["*fp32", "*fp32", "*fp32", "*fp32", "i32", "fp32", 512],
    dropout: ["*fp32", "*fp32", "i32", "fp32", "i32", 1024],
    total: ["*i32", "*i32", "i32", 1024],
}


def main() -> None:
    directory = Path(sys.argv[1])
    for kernel, types in SIGNATURES.items():
        named = dict(zip(kernel.arg_names, types))
        constants = {name: value for name, value in named.items() if isinstance(value, int)}
        signature = {name: "constexpr" if name in constants else kind for name, kind in named.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget("hip", "gfx1100", 32), options={"num_warps": 4})
        (directory / f"{compiled.metadata.name}.hsaco").write_bytes(compiled.asm["hsaco"])
        print(compiled.metadata.name, compiled.metadata.shared, compiled.metadata.num_warps)


main()
