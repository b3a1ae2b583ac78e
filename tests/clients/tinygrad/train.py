# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains three small models.

As a program, `train.py DEVICE`, it trains two of them and prints in JSON the bits of each loss, and how it drove the device.

All that is random comes from NumPy, so every device begins with the same numbers.
"""

import json
import sys

import interface  # noqa: F401
import numpy as np
from tinygrad import Device, Tensor, nn
from tinygrad.helpers import Context


class Model:
    """Numbers that are the same on every device, in the order in which they are asked for."""

    steps = 6

    def __init__(self, device):
        self.device = device
        self.random = np.random.default_rng(0)
        self.build()

    def weights(self, *shape, scale=0.2):
        return self.tensor((self.random.standard_normal(shape) * scale).astype(np.float32))

    def tensor(self, values):
        return Tensor(values, device=self.device)



class Convolutions(Model):
    """Two convolutions, pooling, a dense layer: pictures of 10 x 10 to 4 classes."""

    def build(self):
        self.first, self.second = self.weights(6, 1, 3, 3), self.weights(8, 6, 3, 3)
        self.dense = self.weights(32, 4)
        self.optimizer = nn.optim.SGD([self.first, self.second, self.dense], lr=0.1, momentum=0.9)
        self.pictures = self.weights(8, 1, 10, 10, scale=1.0)
        self.classes = self.tensor(self.random.integers(0, 4, 8).astype(np.int32))

    def loss(self):
        hidden = self.pictures.conv2d(self.first).relu().conv2d(self.second, stride=2).relu()
        hidden = hidden.pad((0, 1, 0, 1)).max_pool2d((2, 2))
        return (hidden.flatten(1) @ self.dense).sparse_categorical_crossentropy(self.classes)


class Transformer(Model):
    """A block with two heads of attention, as models of language have it: the next of 11 words."""

    def build(self):
        width, words, self.length = 16, 11, 9
        self.embedding, self.places = self.weights(words, width), self.weights(self.length, width)
        self.heads = [self.weights(width, width) for _ in range(3)]
        self.out, self.up, self.down = self.weights(width, width), self.weights(width, 32), self.weights(32, width)
        parameters = [self.embedding, self.places, *self.heads, self.out, self.up, self.down]
        self.optimizer = nn.optim.AdamW(parameters, lr=0.01)
        text = self.random.integers(0, words, (4, self.length + 1)).astype(np.int32)
        self.text, self.following = self.tensor(text[:, :-1].copy()), self.tensor(text[:, 1:].copy())

    def loss(self):
        x = self.embedding[self.text] + self.places
        normal = x.layernorm()
        heads = [(normal @ w).reshape(4, self.length, 2, 8).transpose(1, 2) for w in self.heads]
        attention = Tensor.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + attention.transpose(1, 2).reshape(4, self.length, 16) @ self.out
        x = x + (x.layernorm() @ self.up).gelu() @ self.down
        return (x.layernorm() @ self.embedding.T).sparse_categorical_crossentropy(self.following)


class Quarters(Model):
    """A convolution and a dense layer whose weights are rounded to quarters after each step.

    Pictures and targets are small whole numbers, so every sum of the forward and of the backward pass has less than 24 bits:
    no order of the summands and no fused multiplication changes a result.
    """

    def build(self):
        def quarters(*shape):
            return self.tensor(self.random.integers(-3, 4, shape).astype(np.float32) / 4)

        self.first, self.dense = quarters(3, 1, 3, 3), quarters(48, 2)
        self.pictures = self.tensor(self.random.integers(-2, 3, (4, 1, 6, 6)).astype(np.float32))
        self.wanted = self.tensor(self.random.integers(-4, 5, (4, 2)).astype(np.float32))

    def loss(self):
        hidden = self.pictures.conv2d(self.first).relu().flatten(1)
        return (hidden @ self.dense - self.wanted).square().sum()

    def step(self, loss):
        both = self.first, self.dense
        for weights, gradient in zip(both, loss.gradient(*both)):
            weights.assign(((weights - gradient / 512).clip(-2, 2) * 4).round() / 4)
        return both


def train(kind, device):
    """The losses before each step."""
    model = kind(device)
    losses = []
    with Context(TRAINING=1):
        for _ in range(model.steps):
            loss = model.loss()
            if hasattr(model, "step"):
                updated = model.step(loss)
            else:
                model.optimizer.zero_grad()
                loss.backward()
                updated = model.optimizer.schedule_step()
            losses.append(loss.realize(*updated).item())
    return losses


def driven(name):
    """How the process drives the device."""
    device = Device[name]
    return {"aql": bool(device.is_aql), "sdma": device.sdma_queue(0) is not None}


KINDS = [Convolutions, Transformer, Quarters]
ROUNDED = KINDS[:2]


if __name__ == "__main__":
    name = sys.argv[1]
    losses = {kind.__name__: [loss.hex() for loss in train(kind, name)] for kind in ROUNDED}
    print(json.dumps({"losses": losses, **driven(name)}))
