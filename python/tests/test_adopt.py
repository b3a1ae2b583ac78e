# SPDX-License-Identifier: MIT OR Apache-2.0
"""Device memory without its process: labelled buffers are saved, and adopted by a process that was started afresh."""

from __future__ import annotations

import numpy as np
import pytest

import stasis

SAVING = """
import numpy as np, stasis

device, other = stasis.Device(0), stasis.Device(1)
module = stasis.Module(device, "kernels.co")
weights = stasis.Buffer.from_numpy(device, np.arange(6000, dtype="f4").reshape(60, 100)).set_label("weights")
shadow = stasis.Buffer.from_numpy(other, np.arange(5, dtype="i8")).set_label("shadow")
host = stasis.Buffer.from_numpy(device, np.arange(7, dtype="u2"), memory="host").set_label("host")
view = weights.numpy()
assert weights.label == "weights" and stasis.Buffer(device, 8).label is None
module["axpy"][24, 256](weights, weights, 1.0, 6000)
stasis.save("image")
module["axpy"][24, 256](weights, weights, 1.0, 6000)
device.synchronize()
assert (view == 4 * np.arange(6000, dtype="f4").reshape(60, 100)).all()
print(weights.data_ptr(), shadow.data_ptr(), host.data_ptr())
"""

ADOPTING = """
import sys
import numpy as np, stasis

devices = {int(old): int(new) for old, new in (word.split("=") for word in sys.argv[1:])}
adopted = stasis.adopt("image", devices=devices)
assert sorted(adopted) == ["host", "shadow", "weights"]
weights, shadow, host = (adopted[label] for label in ("weights", "shadow", "host"))
assert (weights.numpy() == 2 * np.arange(6000, dtype="f4").reshape(60, 100)).all() and weights.dtype == "f4"
assert (shadow.numpy() == np.arange(5)).all() and shadow.dtype == "i8" and shadow.device.index == devices.get(1, 1)
assert (host.numpy() == np.arange(7)).all() and host.dtype == "u2" and host.memory == "host"
stasis.Module(weights.device, "kernels.co")["axpy"][24, 256](weights, weights, 1.0, 6000)
assert (weights.numpy() == 4 * np.arange(6000, dtype="f4").reshape(60, 100)).all()
print(weights.data_ptr(), shadow.data_ptr(), host.data_ptr())
"""


def test_fresh_process_goes_on_with_the_buffers_of_another(program, run, tmp_path):
    saved = run(program(SAVING))
    assert saved.returncode == 0, saved.stderr
    for _ in range(2):
        adopted = run(program(ADOPTING))
        assert adopted.returncode == 0, adopted.stderr
        assert adopted.stdout == saved.stdout, "other addresses"


def test_labels_are_of_one_buffer_and_of_numbers(device):
    one, other = (stasis.Buffer(device, 16) for _ in range(2))
    assert one.set_label("test") is one and one.label == "test"
    with pytest.raises(ValueError, match="has the label"):
        other.set_label("test")
    one.free()
    assert other.set_label("test").label == "test"
    structures = stasis.Buffer.empty(device, 4, np.dtype([("a", "f4"), ("b", "i2")]))
    with pytest.raises(TypeError, match="structures"):
        structures.set_label("structures")


def test_what_cannot_be_adopted_is_refused(tmp_path):
    with pytest.raises(stasis.Error, match="cannot be adopted"):
        stasis.adopt(tmp_path / "nowhere")
