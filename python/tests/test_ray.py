# SPDX-License-Identifier: MIT OR Apache-2.0
"""Actors of Ray: what one has learnt on its GPU, one on another node adopts when that node is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_embed"

# Two nodes beside the head, and an actor that moves from one to the other.
PROGRAM = """
import os
import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.util import ActorPool

import embed

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=4, resources={f"site{n}": 4}) for n in range(2)]
ray.init(address=cluster.address, log_to_driver=False)
actor = ray.remote(max_restarts=0)(embed.Embedder)

def start(site, source=None):
    return actor.options(resources={f"site{site}": 1}).remote(os.path.abspath("embed.co"), os.path.abspath("image"), source)

embed.prepare("table.npy", 1000)
first = start(0, os.path.abspath("table.npy"))
before = ray.get(first.embed.remote(["frost", "thaw frost"]))
assert np.allclose(np.linalg.norm(before, axis=1), 1, atol=1e-5)
towards = np.zeros(256, "f4")
towards[3] = 1
for turn in range(3):
    assert ray.get(first.learn.remote("frost", towards)) == turn + 1
after = ray.get(first.embed.remote(["frost", "thaw frost"]))
assert after[0, 3] > 0.8 and abs(before[0, 3]) < 0.5
cluster.remove_node(nodes[0])
try:
    ray.get(first.learnt.remote(), timeout=60)
    raise SystemExit("the actor outlived its node")
except ray.exceptions.RayError:
    pass
second = start(1)
assert ray.get(second.learnt.remote()) == 3
assert (ray.get(second.embed.remote(["frost", "thaw frost"])) == after).all(), "to the bit"
ray.get(second.save.remote())
pool = ActorPool([second] + [start(1) for _ in range(2)])
found = list(pool.map(lambda replica, text: replica.embed.remote([text]), ["frost", "thaw frost"] * 6))
assert all((one[0] == after[index % 2]).all() for index, one in enumerate(found))
ray.shutdown()
cluster.shutdown()
print("right")
"""


def test_actor_on_another_node_goes_on_with_what_was_learnt(tmp_path):
    clang = os.environ.get("STASIS_CLANG", "clang-19")
    flags = ["--target=amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-O3", "-nogpulib", "-ffreestanding"]
    subprocess.run([clang, *flags, "-o", tmp_path / "embed.co", EXAMPLE / "embed.c"], check=True)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "STASIS_DEVICE": "soft:gfx1100", "RAY_AUTH_MODE": "disabled", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    # Not the other tests' machine, which has two devices.
    environment["STASIS_SOFTGPU_INSTANCE"] = f"ray-{os.getpid()}"
    environment |= {"HOME": str(tmp_path), "RAY_TMPDIR": "/tmp", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(EXAMPLE)}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0 and done.stdout.endswith("right\n"), done.stdout + done.stderr
