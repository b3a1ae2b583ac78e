# SPDX-License-Identifier: MIT OR Apache-2.0
"""What tinygrad takes for a forward pass of a network for MNIST, on the device that DEV names.

Prints one JSON object: seconds until the first result (kernels are compiled, or taken from tinygrad's cache), milliseconds of
each pass after that, and the result's first numbers.
"""

import json
import sys
import time

import numpy as np
from tinygrad import Tensor, TinyJit, nn

BATCH = 32
# The first two runs of a jitted function record it.
WARM_UP = 3


class Network:
    """Four convolutions and a matrix: the shapes of tinygrad's own example for MNIST."""

    def __init__(self):
        self.layers = [
            nn.Conv2d(1, 32, 5), Tensor.relu,
            nn.Conv2d(32, 32, 5), Tensor.relu,
            nn.BatchNorm(32), Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3), Tensor.relu,
            nn.Conv2d(64, 64, 3), Tensor.relu,
            nn.BatchNorm(64), Tensor.max_pool2d,
            lambda x: x.flatten(1), nn.Linear(576, 10),
        ]

    def __call__(self, x):
        return x.sequential(self.layers)


def main():
    runs = int(sys.argv[1])
    began = time.perf_counter()
    random = np.random.default_rng(7)
    network = Network()
    for parameter in nn.state.get_parameters(network):
        if parameter.ndim < 2:
            # What normalises keeps its 1 and 0; a bias is as good as none.
            continue
        scale = 1.0 / np.prod(parameter.shape[1:]) ** 0.5
        values = (random.standard_normal(parameter.shape) * scale).astype(np.float32)
        parameter.assign(Tensor(values)).realize()
    for layer in network.layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.bias.assign(Tensor(np.zeros(layer.bias.shape, np.float32))).realize()
    images = Tensor(random.standard_normal((BATCH, 1, 28, 28)).astype(np.float32)).realize()
    forward = TinyJit(lambda x: network(x).realize())
    result = forward(images).numpy()
    first = time.perf_counter() - began
    for _ in range(WARM_UP):
        forward(images).numpy()
    passes = []
    for _ in range(runs):
        start = time.perf_counter()
        result = forward(images).numpy()
        passes.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"first_s": first, "passes_ms": passes, "result": result[0].tolist()}))


main()
