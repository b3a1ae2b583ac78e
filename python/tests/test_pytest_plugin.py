# SPDX-License-Identifier: MIT OR Apache-2.0
"""The plugin for pytest, in sessions of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture()
def session(tmp_path, code):
    """Writes files and runs pytest on them; what it said, and its status."""

    def run(files: dict[str, str], *arguments: str, at: str = ".") -> tuple[int, str]:
        (tmp_path / "kernels.co").write_bytes(code)
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STASIS_SOFTGPU_INSTANCE")}
        environment.pop("STASIS_DEVICE", None)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path / at,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr

    return run


AXPY = """
from pathlib import Path
import numpy as np
import stasis

def axpy():
    device = stasis.Device(0)
    x, y = (stasis.Buffer.from_numpy(device, np.ones(256, "f4")) for _ in range(2))
    stasis.Module(device, Path(__file__).with_name("kernels.co"))["axpy"][1, 256](x, y, 2.0, 256)
    return y.numpy()
"""


def test_session_runs_on_a_device_of_its_own_and_tells_of_it(session):
    tests = "from axpy import axpy\n\ndef test_axpy(stasis_device):\n    assert stasis_device.is_software and (axpy() == 3).all()\n"
    status, said = session({"axpy.py": AXPY, "test_one.py": tests}, "--stasis")
    assert status == 0, said
    found = re.search(r"(\d+) kernels, (\d+) waves, (\d+) instructions, .* of the session on soft:gfx1100\n", said)
    assert found and all(int(count) > 0 for count in found.groups()), said


def test_session_without_its_options_is_left_alone(session):
    tests = "import os\n\ndef test_nothing():\n    assert 'STASIS_DEVICE' not in os.environ\n"
    status, said = session({"test_one.py": tests})
    assert status == 0 and "software GPU" not in said, said


MARKED = """
import os
import pytest
import stasis
from axpy import axpy

@pytest.mark.stasis_device("soft:gfx1100*2")
@pytest.mark.parametrize("index", [0, 1])
def test_two(index):
    assert stasis.device_count() == 2 and stasis.Device(index).name == "gfx1100"

def test_one():
    assert stasis.device_count() == 1

@pytest.mark.stasis_device("soft:gfx1100*2")
def test_wrong():
    assert (axpy() == 4).all(), "three is not four"

@pytest.mark.stasis_device("soft:gfx1102")
def test_ends_the_process():
    os._exit(7)
"""


def test_marked_tests_run_on_their_devices(session):
    status, said = session({"axpy.py": AXPY, "test_marked.py": MARKED}, "--stasis", "-v")
    assert status == 1, said
    for name, outcome in [("two[0]", "PASSED"), ("two[1]", "PASSED"), ("one", "PASSED"), ("wrong", "FAILED")]:
        assert re.search(rf"test_{re.escape(name)} {outcome}", said), said
    assert "three is not four" in said
    assert re.search(r"test_ends_the_process FAILED", said) and "status 7" in said, said
    # What the other processes did counts.
    assert re.search(r"[1-9]\d* kernels", said), said


def test_marked_test_between_others_leaves_their_fixtures_right(session):
    text = (
        "import pytest\n\n"
        "@pytest.fixture(scope='module')\ndef shared():\n    yield 1\n    print('torn down', __name__)\n\n"
        "def test_here(shared):\n    pass\n\n"
        "@pytest.mark.stasis_device('soft:gfx1102')\ndef test_there():\n    pass\n"
    )
    status, said = session({"test_a.py": text, "test_b.py": text}, "--stasis", "-s")
    assert status == 0 and "4 passed" in said, said
    assert said.count("torn down test_a") == 1 and said.count("torn down test_b") == 1, said


def test_options_of_a_conftest_are_the_same_for_a_test_elsewhere(session):
    conftest = (
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--runslow', action='store_true')\n"
        "    parser.addoption('--shape', action='append', type=int, default=[])\n"
        "    parser.addoption('--name', default='none')\n"
    )
    test = (
        "import pytest\n\n@pytest.mark.stasis_device('soft:gfx1102')\ndef test_there(request):\n"
        "    options = [request.config.getoption(name) for name in ('--runslow', '--shape', '--name')]\n"
        "    assert options == [True, [2, 3], 'a b']\n"
    )
    files = {"conftest.py": conftest, "test_there.py": test}
    status, said = session(files, "--stasis", "--runslow", "--shape", "2", "--shape=3", "--name", "a b")
    assert status == 0 and "1 passed" in said, said


def test_session_in_another_directory_and_with_its_own_arguments_is_no_other(session, tmp_path):
    (tmp_path / "deep").mkdir()
    ini = "[pytest]\naddopts = --stasis-warm ready:warm_up -m 'not slow'\nmarkers = slow\npythonpath = .\n"
    marked = MARKED.split("@pytest.mark.stasis_device(\"soft:gfx1100*2\")\ndef test_wrong")[0]
    files = {"axpy.py": AXPY, "ready.py": READY, "pytest.ini": ini, "deep/test_a.py": WARM, "deep/test_m.py": marked}
    status, said = session(files, "-v", "-m", "", at="deep")
    assert status == 0 and "5 passed" in said, said


def test_workers_of_xdist_run_each_test_once_and_tell_what_their_devices_did(session):
    files = {"axpy.py": AXPY, "test_marked.py": MARKED.split("@pytest.mark.stasis_device(\"soft:gfx1102")[0]}
    status, said = session(files, "--stasis", "-n", "2")
    assert status == 1 and "3 passed" in said and "1 failed" in said, said
    assert re.search(r"[1-9]\d* kernels", said), said


READY = """
from axpy import axpy

READY = []

def warm_up():
    READY.append(float(axpy().sum()))
"""
WARM = """
import os
import ready
from axpy import axpy

def test_ready():
    assert ready.READY == [768.0]
    ready.READY.append(0)

def test_same_process():
    assert len(ready.READY) == 2 and (axpy() == 3).all()
"""


def test_files_run_in_copies_of_a_process_that_is_ready(session):
    ending = "import os\n\ndef test_end():\n    os._exit(5)\n\ndef test_not_reached():\n    pass\n"
    files = {"axpy.py": AXPY, "ready.py": READY, "test_a.py": WARM, "test_b.py": WARM, "test_c.py": ending}
    status, said = session(files, "-v", "--stasis-warm", "ready:warm_up")
    assert status == 1, said
    for file in "ab":
        for name in ("ready", "same_process"):
            assert f"test_{file}.py::test_{name} PASSED" in said, said
    for name in ("end", "not_reached"):
        assert f"test_c.py::test_{name} FAILED" in said, said
    found = re.search(r"warm start: ready in ([\d.]+) s once; 3 files, each ([\d.]+) s after it was wanted", said)
    assert found and float(found[1]) > 0 and float(found[2]) > 0, said


def test_checkpoint_that_fails_says_why(session, monkeypatch):
    monkeypatch.setenv("STASIS_CRIU", "/nonexistent/criu")
    files = {"axpy.py": AXPY, "ready.py": READY, "test_a.py": WARM}
    status, said = session(files, "--stasis-warm", "ready:warm_up")
    assert status != 0 and "/nonexistent/criu" in said and "CRIU" in said, said


def test_warm_up_that_fails_says_why(session):
    files = {"ready.py": "def warm_up():\n    raise ValueError('not today')\n", "test_a.py": "def test_a():\n    pass\n"}
    status, said = session(files, "--stasis-warm", "ready:warm_up")
    assert status != 0 and "not today" in said, said
