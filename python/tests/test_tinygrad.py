# SPDX-License-Identifier: MIT OR Apache-2.0
"""tinygrad, whose packets go through our queues: what it computes, and its training over a checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from test_checkpoint import start, wait_for

CLIENTS = Path(__file__).parents[2] / "tests" / "clients" / "tinygrad"
SETTINGS = {
    "DEV": "STASIS+AMD:LLVM;CPU:LLVM",
    "CC": os.environ.get("STASIS_CLANG", "clang-19"),
    "CACHELEVEL": "0",
    "PARALLEL": "0",
    "STASIS_TEST_INTERFACE": "STASISIface",
}


@pytest.mark.parametrize(
    ("device", "files", "least"),
    [
        ("soft:gfx1100", ["test_memory.py", "test_movement.py"], 20),
        pytest.param(
            *("soft:gfx1100", ["test_training.py"], 5),
            # A minute, of what the test below does with a checkpoint in the middle.
            marks=pytest.mark.skipif("STASIS_TINYGRAD_TRAINING" not in os.environ, reason="STASIS_TINYGRAD_TRAINING is not set"),
        ),
        ("soft:gfx1100*2", ["test_sharding.py"], 10),
    ],
)
def test_tests_of_the_foreign_path_pass(tmp_path, device, files, least):
    # A process of its own: tinygrad chooses its interface once.
    environment = {**os.environ, **SETTINGS, "STASIS_DEVICE": device, "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(CLIENTS / file for file in files)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.splitlines()[-1].split(" passed")[0].split()[-1])
    assert passed >= least, done.stdout


TRAINING = f"""
import json, sys
sys.path.insert(0, {str(CLIENTS)!r})
from train import Transformer
import stasis
from tinygrad.helpers import Context

model = Transformer("AMD")
losses, restored = [], False
with Context(TRAINING=1):
    for step in range(8):
        loss = model.loss()
        model.optimizer.zero_grad()
        loss.backward()
        losses.append(loss.realize(*model.optimizer.schedule_step()).item().hex())
        if step == 3 and "checkpoint" in sys.argv:
            restored = stasis.checkpoint("image").restored
with open("restored" if restored else "original", "w") as file:
    print(json.dumps(losses), file=file)
"""


@pytest.mark.parametrize("way", [{}, {"AMD_AQL": "1"}], ids=["pm4", "aql"])
def test_training_goes_on_from_a_checkpoint_with_the_same_losses(program, tmp_path, command, way):
    path = program(TRAINING)
    settings = {**SETTINGS, **way, "STASIS_DEVICE": "soft:gfx1100"}
    process = start(path, **settings)
    assert process.wait(timeout=240) == 0, (tmp_path / "log").read_text()
    undisturbed = json.loads(wait_for(tmp_path / "original"))
    (tmp_path / "original").unlink()
    process = start(path, "checkpoint", **settings)
    assert process.wait(timeout=240) == 0, (tmp_path / "log").read_text()
    assert json.loads(wait_for(tmp_path / "original")) == undisturbed
    restore = [command, "restore", "image"]
    # The device's server may still be there, and it has one device only.
    environment = {**os.environ, **settings}
    done = subprocess.run(restore, cwd=tmp_path, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(wait_for(tmp_path / "restored")) == undisturbed, (tmp_path / "log").read_text()
    assert len(set(undisturbed)) == 8
