# SPDX-License-Identifier: MIT OR Apache-2.0
"""The process: imports, forks, the command, the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFIG = str(Path(__file__).parent.with_name("pyproject.toml"))


def test_import_needs_neither_numpy_nor_a_device(run, program):
    done = run(
        program(
            "import sys, stasis\n"
            "assert 'numpy' not in sys.modules, sorted(sys.modules)\n"
            "print(stasis.__version__, sorted(stasis.__all__))\n"
        ),
        STASIS_DEVICE="kfd",
    )
    assert done.returncode == 0, done.stderr


def test_program_without_a_device_is_told_so(run, program):
    done = run(program("import stasis\nstasis.Device(0)\n"), STASIS_DEVICE="soft:gfx9999")
    assert done.returncode == 1
    assert "stasis.Error" in done.stderr, done.stderr


FORK = """
import os, sys, numpy, stasis
device = stasis.Device(0)
buffer = stasis.Buffer.from_numpy(device, numpy.arange(1000))
event = device.queue.record()
pid = os.fork()
if pid == 0:
    for act in (buffer.numpy, device.synchronize, buffer.free, event.query, lambda: stasis.Buffer(device, 16),
                lambda: stasis.Device(0), lambda: stasis.Queue(device), lambda: stasis.checkpoint("there")):
        try:
            act()
        except stasis.Forked as error:
            assert "spawn" in str(error)
        else:
            os._exit(1)
    # Dropped here they must stay the parent's.
    del buffer, event, device
    import gc
    gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert buffer.numpy().sum() == 499500
buffer.fill(1)
event.synchronize()
buffer.free()
print("right")
"""


def test_forked_child_leaves_its_parents_device_alone(run, program):
    done = run(program(FORK))
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


EARLY = """
import os, stasis
pid = os.fork()
# In one piece: both may write at once.
os.write(1, f"{stasis.Buffer.from_numpy(stasis.Device(0), [1, 2]).numpy()}\\n".encode())
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_child_forked_before_the_runtime_was_opened_may_open_one(run, program):
    done = run(program(EARLY))
    assert (done.returncode, done.stdout) == (0, "[1 2]\n[1 2]\n"), done.stderr


SPAWN = """
import multiprocessing, numpy, stasis

def double(number):
    with stasis.Buffer.from_numpy(stasis.Device(0), numpy.full(100, number)) as buffer:
        return int(buffer.numpy().sum()) * 2

if __name__ == "__main__":
    stasis.Device(0)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(double, [1, 2, 3]))
"""


def test_spawned_processes_have_runtimes_of_their_own(run, program):
    done = run(program(SPAWN))
    assert (done.returncode, done.stdout) == (0, "[200, 400, 600]\n"), done.stderr


def test_interpreter_ends_with_kernels_in_flight(run, program):
    text = (
        "import stasis\n"
        "device = stasis.Device(0)\n"
        "module = stasis.Module(device, 'kernels.co')\n"
        "stop, turns = stasis.Buffer.zeros(device, 1), stasis.Buffer.zeros(device, 1)\n"
        "array = turns.numpy()\n"
        "module['spin'][1, 1](stop, turns)\n"
    )
    done = run(program(text))
    assert done.returncode == 0, done.stderr


def test_demo_runs():
    command = [sys.executable, "-m", "stasis", "demo", "--elements", "5000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "axpy of 5000 elements: right" in done.stdout
    done = subprocess.run([*command[:-1], "0"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and "at least one" in done.stderr


def test_command_is_installed(command):
    for start in ([command], [sys.executable, "-m", "stasis"]):
        done = subprocess.run([*start, "--version"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout.startswith("stasis "), done.stderr


def test_command_runs_the_packages_software_device(command):
    environment = {name: value for name, value in os.environ.items() if name != "STASIS_SOFTGPUD"}
    # One that runs already has its settings from whoever started it.
    environment |= {"STASIS_DEVICE": "soft:gfx1102", "STASIS_SOFTGPU_INSTANCE": f"command-{os.getpid()}"}
    done = subprocess.run([command, "agents"], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0 and "gfx1102" in done.stdout, done.stderr


def test_types_are_right():
    command = [sys.executable, "-m", "mypy", "--config-file", CONFIG, "--cache-dir", os.devnull, "-p", "stasis"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout


def test_stub_has_what_the_module_has():
    allowed = ["--allowlist", str(Path(__file__).with_name("stubtest.txt"))]
    command = [sys.executable, "-m", "mypy.stubtest", "--mypy-config-file", CONFIG, *allowed, "stasis"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
