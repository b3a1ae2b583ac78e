# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a small network on the device that DEV names, and knows nothing of checkpoints.

Prints a line for each step: its number, the loss, and the loss's bits. All that is random comes from NumPy, so that every run
computes the same.
"""

import struct
import sys

import numpy as np
from tinygrad import Tensor, nn
from tinygrad.helpers import Context

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
BATCH = 96
# Kernels of some milliseconds: most of the time one is under way.
WIDTH = 512


def main():
    random = np.random.default_rng(1)

    def tensor(*shape, scale=1.0):
        return Tensor((random.standard_normal(shape) * scale).astype(np.float32)).realize()

    # A teacher's answers to random questions.
    questions = tensor(BATCH, 64)
    answers = (questions @ tensor(64, 8)).tanh().realize()
    weights = [tensor(64, WIDTH, scale=0.1), tensor(WIDTH, WIDTH, scale=0.03), tensor(WIDTH, 8, scale=0.03)]
    optimizer = nn.optim.AdamW(weights, lr=2e-3)
    with Context(TRAINING=1):
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            hidden = (questions @ weights[0]).relu()
            hidden = (hidden @ weights[1]).relu()
            loss = ((hidden @ weights[2]).tanh() - answers).square().mean()
            loss.backward()
            optimizer.step()
            value = loss.item()
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            print(f"step {step} {value:.6f} {bits:08x}", flush=True)
    print("done", flush=True)


main()
