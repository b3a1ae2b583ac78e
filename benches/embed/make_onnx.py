#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes the embedding server's model as an ONNX graph: make_onnx.py MODEL_DIRECTORY OUTPUT.onnx

The graph takes `ids` and `mask` (both int32, batch x longest sentence) and gives `embeddings` (f32, batch x hidden):
BERT's encoder, the mean of a sentence's tokens, scaled to length 1. Its nodes are those that ONNX Runtime has its fastest
BERT kernels for (domain com.microsoft), so that the peer is measured at its best.

INVARIANT: the weights are the file's, in f32; nothing is approximated.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CONTRIB = "com.microsoft"


def read_safetensors(path):
    """The f32 tensors of a safetensors file by name: a length, a header in JSON, the numbers."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], dtype="<f4").reshape(entry["shape"])
    return tensors


class Graph:
    """Nodes and constants, each named after what it computes."""

    def __init__(self, tensors, config):
        self.tensors, self.config = tensors, config
        self.nodes, self.constants = [], []

    def constant(self, name, value):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def layer_norm(self, at, x):
        weight = self.constant(f"{at}.weight", self.tensors[f"{at}.weight"])
        bias = self.constant(f"{at}.bias", self.tensors[f"{at}.bias"])
        epsilon = self.config["layer_norm_eps"]
        return self.node("LayerNormalization", [x, weight, bias], f"{at}.out", axis=-1, epsilon=epsilon)

    def skip_layer_norm(self, at, x, skip):
        weight = self.constant(f"{at}.weight", self.tensors[f"{at}.weight"])
        bias = self.constant(f"{at}.bias", self.tensors[f"{at}.bias"])
        inputs = [x, skip, weight, bias]
        epsilon = self.config["layer_norm_eps"]
        return self.node("SkipLayerNormalization", inputs, f"{at}.out", domain=CONTRIB, epsilon=epsilon)

    def linear(self, at, x, activation=None):
        # The file's rows are outputs; ONNX multiplies by columns.
        weight = self.constant(f"{at}.weight", self.tensors[f"{at}.weight"].T)
        bias = self.constant(f"{at}.bias", self.tensors[f"{at}.bias"])
        product = self.node("MatMul", [x, weight], f"{at}.product")
        if activation == "gelu":
            return self.node("BiasGelu", [product, bias], f"{at}.gelu", domain=CONTRIB)
        return self.node("Add", [product, bias], f"{at}.out")

    def embeddings(self):
        at = "embeddings"
        words = self.constant(f"{at}.words", self.tensors[f"{at}.word_embeddings.weight"])
        positions = self.constant(f"{at}.positions", self.tensors[f"{at}.position_embeddings.weight"])
        # Every token is of the first type.
        kind = self.constant(f"{at}.type", self.tensors[f"{at}.token_type_embeddings.weight"][0])
        zero, one = (self.constant(f"index.{n}", np.array([n], dtype=np.int64)) for n in (0, 1))
        shape = self.node("Shape", ["ids"], "ids.shape")
        length = self.node("Gather", [shape, one], "ids.length", axis=0)
        own = self.node("Slice", [positions, zero, length, zero], f"{at}.positions.own")
        word = self.node("Gather", [words, "ids"], f"{at}.words.own", axis=0)
        typed = self.node("Add", [word, kind], f"{at}.typed")
        return self.layer_norm(f"{at}.LayerNorm", self.node("Add", [typed, own], f"{at}.sum"))

    def layer(self, index, x):
        at = f"encoder.layer.{index}"
        names = [f"{at}.attention.self.{part}" for part in ("query", "key", "value")]
        weight = np.concatenate([self.tensors[f"{name}.weight"].T for name in names], axis=1)
        bias = np.concatenate([self.tensors[f"{name}.bias"] for name in names])
        inputs = [x, self.constant(f"{at}.qkv.weight", weight), self.constant(f"{at}.qkv.bias", bias), "mask"]
        heads = self.config["num_attention_heads"]
        attended = self.node("Attention", inputs, f"{at}.attended", domain=CONTRIB, num_heads=heads)
        projected = self.linear(f"{at}.attention.output.dense", attended)
        x = self.skip_layer_norm(f"{at}.attention.output.LayerNorm", projected, x)
        wide = self.linear(f"{at}.intermediate.dense", x, activation="gelu")
        narrow = self.linear(f"{at}.output.dense", wide)
        return self.skip_layer_norm(f"{at}.output.LayerNorm", narrow, x)

    def pooled(self, x):
        tokens, last = (self.constant(f"axis.{n}", np.array([n], dtype=np.int64)) for n in (1, -1))
        mask = self.node("Cast", ["mask"], "mask.f32", to=TensorProto.FLOAT)
        mask = self.node("Unsqueeze", [mask, last], "mask.column")
        kept = self.node("Mul", [x, mask], "pool.kept")
        total = self.node("ReduceSum", [kept, tokens], "pool.total", keepdims=0)
        count = self.node("ReduceSum", [mask, tokens], "pool.count", keepdims=0)
        mean = self.node("Div", [total, count], "pool.mean")
        length = self.node("ReduceL2", [mean, last], "pool.length", keepdims=1)
        return self.node("Div", [mean, length], "embeddings")


def build(directory):
    config = json.loads((directory / "config.json").read_text())
    if config["hidden_act"] != "gelu":
        sys.exit(f"make_onnx.py: hidden_act is {config['hidden_act']}, not gelu")
    graph = Graph(read_safetensors(directory / "model.safetensors"), config)
    x = graph.embeddings()
    for index in range(config["num_hidden_layers"]):
        x = graph.layer(index, x)
    graph.pooled(x)
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT32, ["batch", "length"]) for n in ("ids", "mask")]
    shape = ["batch", config["hidden_size"]]
    outputs = [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, shape)]
    whole = helper.make_graph(graph.nodes, "embed", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=9)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.splitlines()[0])
    output = Path(sys.argv[2])
    new = output.with_suffix(".new")
    onnx.save(build(Path(sys.argv[1])), new)
    new.rename(output)


if __name__ == "__main__":
    main()
