# SPDX-License-Identifier: MIT OR Apache-2.0
"""Actors of Ray that serve embeddings from a GPU, and learn. Device memory outlives actors: a fresh one, on another node, adopts it.

    clang-19 --target=amdgcn-amd-amdhsa -mcpu=gfx1100 -O3 -nogpulib -o embed.co examples/ray_embed/embed.c
    python embed.py --code embed.co --replicas 10

starts replicas that each make their table from a file, and as many that adopt one image, and prints how long each way takes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util import ActorPool

WORDS, DIMENSIONS = 1 << 17, 256


def prepare(path: Path, words: int = WORDS) -> None:
    """Writes a table as it is handed on: f16, not normalised."""
    np.save(path, np.random.Generator(np.random.PCG64(1)).standard_normal((words, DIMENSIONS), "f4").astype("f2"))


class Embedder:
    """A table on a GPU. It is made from ``source``, or adopted, with what was learnt, from ``image``."""

    def __init__(self, code: str, image: str, source: str | None = None) -> None:
        import stasis
        from stasis.ranks import Alone, Ranks

        self._begun = time.monotonic()
        self._saved = Ranks(Alone(), image)
        adopted, self._state = (None, {"learnt": 0}) if source is not None else (self._saved.load() or self._missing(image))
        self._device = stasis.Device(0)
        if adopted is None:
            table = np.load(source).astype("f4")
            table /= np.linalg.norm(table, axis=1, keepdims=True)
            self._table = stasis.Buffer.from_numpy(self._device, table).set_label("table")
        else:
            self._table = adopted["table"]
        module = stasis.Module(self._device, code)
        self._embed, self._learn, self._stasis = module["embed"], module["learn"], stasis

    @staticmethod
    def _missing(image: str) -> Any:
        raise FileNotFoundError(f"Nothing was saved in {image}")

    def seconds(self) -> float:
        """How long it took until it could serve, with a first text."""
        self.embed(["ready"])
        return time.monotonic() - self._begun

    def embed(self, texts: list[str]) -> np.ndarray:
        words = [[zlib.crc32(word.encode()) % self._table.shape[0] for word in text.split()] for text in texts]
        begins = np.cumsum([0] + [len(some) for some in words]).astype("u4")
        flat = np.array([word for some in words for word in some] or [0], "u4")
        buffer = self._stasis.Buffer
        out = buffer.empty(self._device, (len(texts), DIMENSIONS))
        given = [buffer.from_numpy(self._device, array) for array in (flat, begins)]
        self._embed[len(texts), DIMENSIONS](self._table, *given, out)
        return out.numpy().copy()

    def learn(self, word: str, vector: np.ndarray, rate: float = 0.5) -> int:
        """Moves a word towards a vector, and saves; how many were learnt."""
        given = self._stasis.Buffer.from_numpy(self._device, vector.astype("f4"))
        self._learn[1, DIMENSIONS](self._table, given, zlib.crc32(word.encode()) % self._table.shape[0], rate)
        self._state["learnt"] += 1
        self._saved.save(self._state)
        return self._state["learnt"]

    def learnt(self) -> int:
        return self._state["learnt"]

    def save(self) -> None:
        self._saved.save(self._state)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serves embeddings by actors of Ray, and measures how fast they start.")
    parser.add_argument("--code", type=Path, required=True, help="the compiled examples/ray_embed/embed.c")
    parser.add_argument("--replicas", type=int, default=10)
    args = parser.parse_args()
    ray.init(num_cpus=args.replicas + 1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    actor = ray.remote(num_cpus=1)(Embedder)
    with tempfile.TemporaryDirectory() as directory:
        source, image = Path(directory, "table.npy"), Path(directory, "image")
        prepare(source)
        figures: dict[str, Any] = {"table_mbytes": WORDS * DIMENSIONS * 4 / 1e6, "replicas": args.replicas}
        for way, given in [("cold", str(source)), ("adopted", None)]:
            begun = time.monotonic()
            replicas = [actor.remote(str(args.code.resolve()), str(image), given) for _ in range(args.replicas)]
            own = ray.get([replica.seconds.remote() for replica in replicas])
            figures[way] = {"last_ready_s": time.monotonic() - begun, "median_s": float(np.median(own))}
            pool = ActorPool(replicas)
            served = list(pool.map(lambda replica, text: replica.embed.remote([text]), [f"word {n}" for n in range(50)]))
            figures[way]["first"] = float(served[0][0, 0])
            if way == "cold":
                ray.get(replicas[0].save.remote())
            for replica in replicas:
                ray.kill(replica)
        figures["ratio"] = figures["cold"]["last_ready_s"] / figures["adopted"]["last_ready_s"]
        assert figures["cold"].pop("first") == figures["adopted"].pop("first")
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
