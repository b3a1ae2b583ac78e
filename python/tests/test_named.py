# SPDX-License-Identifier: MIT OR Apache-2.0
"""Buffers of other processes, by their names."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import stasis

OTHER = """
import sys
import numpy as np
import stasis

theirs = stasis.Buffer.named(stasis.Device(0), bytes.fromhex(sys.argv[1]))
print(theirs.shape, theirs.dtype, theirs.memory, theirs.numpy().sum())
own = stasis.Buffer.from_numpy(stasis.Device(0), np.full(theirs.shape, 7, theirs.dtype))
theirs.copy_(own)
if sys.argv[2:]:
    theirs.set_label("mine")
"""


def other(program, name: bytes, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, program(OTHER), name.hex(), *words], capture_output=True, text=True)


@pytest.mark.parametrize("memory", ["vram", "host"])
def test_other_process_sees_and_writes_what_is_named(program, memory):
    buffer = stasis.Buffer.from_numpy(stasis.Device(0), np.arange(6, dtype="<i8").reshape(2, 3), memory=memory)
    assert buffer.name() == buffer.name()
    ended = other(program, buffer.name())
    assert (ended.returncode, ended.stdout) == (0, f"(2, 3) int64 {memory} 15\n"), ended.stderr
    assert (buffer.numpy() == 7).all()


def test_labelled_memory_that_others_hold_is_saved(program, tmp_path):
    buffer = stasis.Buffer.from_numpy(stasis.Device(0), np.arange(1000, dtype="f4")).set_label("test_named")
    kept = stasis.Buffer.named(stasis.Device(0), buffer.name())
    stasis.save(tmp_path / "image")
    kept.zero_()
    assert (buffer.numpy() == 0).all(), "it is shared as before"
    code = "import stasis; print(stasis.adopt('image')['test_named'].numpy().sum())"
    ended = subprocess.run([sys.executable, program(code)], capture_output=True, text=True, cwd=tmp_path)
    assert ended.stdout == "499500.0\n", ended.stderr


def test_memory_of_others_takes_no_label(program):
    buffer = stasis.Buffer.zeros(stasis.Device(0), 16)
    ended = other(program, buffer.name(), "label")
    assert "ValueError" in ended.stderr and "may be held by other processes" in ended.stderr, ended


def test_names_of_nothing_are_refused(program):
    buffer = stasis.Buffer.zeros(stasis.Device(0), 16)
    name = buffer.name()
    device = stasis.Device(0)
    for wrong in (b"", b"short", name[:20], name[:20] + b"\xff", name[:20] + b"vram x <f4 16", bytes([name[0] ^ 1]) + name[1:], name[:10] + bytes(10) + name[20:]):
        with pytest.raises((ValueError, stasis.Error)):
            stasis.Buffer.named(device, wrong, timeout=0.2)
    # What it says of its elements does not fit: bytes.
    for said, there in ((b"vram 64 <f8 1000000", 64), (b"vram 9999999999 <f8 8", 4096), (b"vram 0 ", 4096)):
        lies = stasis.Buffer.named(device, name[:20] + said)
        assert (lies.shape, lies.dtype) == ((there,), np.uint8)
        lies.free()
    buffer.free()
    with pytest.raises(ValueError, match="nothing of this name"):
        stasis.Buffer.named(device, name, timeout=0.2)
    with pytest.raises(stasis.Error):
        buffer.name()
