# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a small model: `steps.py STEPS FILE`, so many steps at most, until the file is there. Prints each loss's bits, and `done`.

All that is random comes from NumPy with one seed, and no kernel depends on the order of additions by atomics: two runs print the
same lines.
"""

import os
import sys

import numpy as np
from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import Context

WIDTH, BATCH, CLASSES = 2048, 512, 10


class Model:
    """A convolution, a wide hidden layer and a dense layer, with Adam: some of its kernels are long on a software device."""

    def __init__(self):
        self.random = np.random.default_rng(0)
        self.filters, self.hidden = self.weights(4, 1, 3, 3), self.weights(4 * 64, WIDTH)
        self.dense = self.weights(WIDTH, CLASSES)
        self.optimizer = nn.optim.Adam([self.filters, self.hidden, self.dense], lr=0.002)
        self.pictures = Tensor(self.random.standard_normal((BATCH, 1, 10, 10)).astype(np.float32))
        self.classes = Tensor(self.random.integers(0, CLASSES, BATCH).astype(np.int32))

    def weights(self, *shape):
        return Tensor((self.random.standard_normal(shape) * 0.1).astype(np.float32))

    def step(self):
        features = self.pictures.conv2d(self.filters).relu().flatten(1)
        loss = ((features @ self.hidden).relu() @ self.dense).sparse_categorical_crossentropy(self.classes)
        self.optimizer.zero_grad()
        loss.backward()
        return loss.realize(*self.optimizer.schedule_step())


if __name__ == "__main__":
    step = TinyJit(Model().step)
    with Context(TRAINING=1):
        for number in range(int(sys.argv[1])):
            if os.path.exists(sys.argv[2]):
                break
            print("loss", number, step().item().hex(), flush=True)
    print("done", flush=True)
