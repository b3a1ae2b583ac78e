# SPDX-License-Identifier: MIT OR Apache-2.0
"""Small models learn on the device as they do on tinygrad's CPU, however the device is driven."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from train import KINDS, ROUNDED, Quarters, driven, train

# The environment of a process, and how it drives the device then.
WAYS = {
    "architected-queues": ({"AMD_AQL": "1"}, {"aql": True, "sdma": True}),
    "no-copy-engine": ({"AMD_DISABLE_SDMA": "1"}, {"aql": False, "sdma": False}),
}


@pytest.fixture(scope="module", autouse=True)
def processes():
    """All at once, beside this process."""
    command = [sys.executable, Path(__file__).with_name("train.py"), "AMD"]
    started = {
        way: subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
        for way, (variables, _) in WAYS.items()
    }
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def on_device():
    """With packets of the firmware (PM4), copies by a copy engine (SDMA)."""
    assert driven("AMD") == {"aql": False, "sdma": True}
    return {kind.__name__: train(kind, "AMD") for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_losses_are_those_of_the_cpu(kind, on_device):
    found, wanted = on_device[kind.__name__], train(kind, "CPU")
    assert wanted[-1] < 0.8 * wanted[0], "it learns"
    if kind is Quarters:
        assert found == wanted
    else:
        # tinygrad lets LLVM fuse a product and a sum, and the GPU has its own exponential, logarithm and order of summands:
        # the last bits differ, as they do between tinygrad's two compilers for the CPU.
        np.testing.assert_allclose(found, wanted, rtol=16 * 2.0**-24)


@pytest.mark.parametrize("way", WAYS)
def test_losses_have_the_same_bits_however_the_device_is_driven(way, on_device, processes):
    output, _ = processes[way].communicate()
    assert processes[way].returncode == 0
    found, (_, wanted) = json.loads(output), WAYS[way]
    losses = {kind.__name__: [loss.hex() for loss in on_device[kind.__name__]] for kind in ROUNDED}
    assert found == {"losses": losses, **wanted}
