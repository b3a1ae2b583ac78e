#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Embeds batches with ONNX Runtime on the CPU: onnx_peer.py MODEL.onnx THREADS

It first writes {"onnxruntime": version, "threads": n, "load_seconds": t}. Then, for each line {"ids": [[101, ...], ...]} of
its input, one line {"seconds": t, "embeddings": [[...], ...]}: the time is that of padding and computing, not of JSON.
With "embeddings": false in the request, the answer has none. It ends with its input.
"""

import json
import sys
import time

import numpy as np
import onnxruntime


def open_session(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def embed(session, sentences):
    """Embeddings of a batch, each sentence padded to the longest."""
    shape = (len(sentences), max(len(sentence) for sentence in sentences))
    ids, mask = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = sentence
        mask[row, : len(sentence)] = 1
    return session.run(["embeddings"], {"ids": ids, "mask": mask})[0]


def say(answer):
    print(json.dumps(answer), flush=True)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.splitlines()[0])
    threads = int(sys.argv[2])
    begin = time.perf_counter()
    session = open_session(sys.argv[1], threads)
    loaded = time.perf_counter() - begin
    say({"onnxruntime": onnxruntime.__version__, "threads": threads, "load_seconds": loaded})
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        embeddings = embed(session, request["ids"])
        answer = {"seconds": time.perf_counter() - begin}
        if request.get("embeddings", True):
            answer["embeddings"] = embeddings.tolist()
        say(answer)


if __name__ == "__main__":
    main()
