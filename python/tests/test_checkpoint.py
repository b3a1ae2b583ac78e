# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checkpoints: of the process by itself, and of the interpreter from outside."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SELF = """
import os, sys
import numpy, stasis

device = stasis.Device(0)
module = stasis.Module(device, "kernels.co")
numbers = numpy.arange(100_000, dtype="f4")
x, out = stasis.Buffer.from_numpy(device, numbers), stasis.Buffer.zeros(device, 100_000)
view, address = out.numpy(), out.data_ptr()
events = []

@stasis.on_restore
def note():
    events.append("called")

def step():
    module["axpy"][391, 256](x, out, 1.0, 100_000)
    device.synchronize()

step()
made = stasis.checkpoint("image")
step()
right = bool((view == 2 * numbers).all()) and out.data_ptr() == address
with open("restored" if made.restored else "original", "w") as file:
    print(right, events, made, file=file)
"""


def wait_for(path: Path, seconds: float = 120.0) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} does not come: {[entry.name for entry in path.parent.iterdir()]}")


def wait_for_end(pid: int, seconds: float = 60.0) -> None:
    """Until a restored process, which is nobody's child here, has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state in "ZX":
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} does not end")


def start(path: Path, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
    """A program in a session of its own, without a terminal: CRIU refuses one."""
    with (path.parent / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, path, *arguments],
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **more},
        )


def test_call_returns_twice(program, tmp_path, command):
    process = start(program(SELF))
    assert process.wait(timeout=240) == 0, (tmp_path / "log").read_text()
    assert wait_for(tmp_path / "original") == "True [] <stasis.Checkpoint complete in image>\n"
    for _ in range(2):
        (tmp_path / "restored").unlink(missing_ok=True)
        done = subprocess.run([command, "restore", "image"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        told = wait_for(tmp_path / "restored")
        assert told == "True ['called'] <stasis.Checkpoint restored from image>\n", (tmp_path / "log").read_text()
        wait_for_end(process.pid)


def test_directory_that_is_not_empty_is_refused_and_the_process_runs_on(program, run, tmp_path):
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "file").write_text("")
    text = (
        "import numpy, stasis\n"
        "buffer = stasis.Buffer.from_numpy(stasis.Device(0), numpy.arange(10))\n"
        "try:\n"
        "    stasis.checkpoint('image')\n"
        "except stasis.CheckpointError as error:\n"
        "    print(error)\n"
        "print(buffer.numpy().sum())\n"
    )
    done = run(program(text))
    assert done.returncode == 0, done.stderr
    assert "empty" in done.stdout and done.stdout.endswith("45\n")


TERMINAL = """
import numpy, stasis

numbers = stasis.Buffer.from_numpy(stasis.Device(0), numpy.arange(10))
made = stasis.checkpoint("image")
with open("restored" if made.restored else "original", "w") as file:
    print(numbers.numpy().sum(), file=file)
"""


def on_a_terminal(words: list[Path | str], directory: Path) -> tuple[int, str]:
    """Runs a program as a shell on a terminal does; its status, and what the terminal showed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execv(words[0], [str(word) for word in words])
    shown = b""
    while True:
        try:
            some = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not some:
            break
        shown += some
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_terminal_shows_what_a_checkpoint_is_doing(program, tmp_path):
    status, shown = on_a_terminal([sys.executable, program(TERMINAL)], tmp_path)
    assert status == 0, shown
    assert wait_for(tmp_path / "original") == "45\n"
    assert re.search(r"Checkpoint complete in image \(\d+\.\d MB, \d+\.\d s\)\r?\n$", shown), shown


class Notebook:
    """The kernel of a notebook, and its client."""

    def __init__(self, directory: Path) -> None:
        from jupyter_client.kernelspec import KernelSpec
        from jupyter_client.manager import KernelManager

        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self._manager = KernelManager(connection_file=str(directory / "connection.json"))
        self._manager._kernel_spec = KernelSpec(argv=argv, display_name="tested", language="python")
        nowhere = subprocess.DEVNULL
        self._manager.start_kernel(cwd=str(directory), stdin=nowhere, stdout=nowhere, stderr=nowhere)
        self.process: Any = self._manager.provisioner.process
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=120)

    def answers(self) -> None:
        """Waits until the client has found the kernel again: what is told before goes nowhere."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self._client.kernel_info(reply=True, timeout=1)
                return
            except TimeoutError:
                assert time.monotonic() < deadline, "no answer"

    def run(self, cell: str, timeout: float = 120) -> list[tuple[str, dict[str, Any]]]:
        """The messages of a cell's output, as type and content."""
        messages: list[tuple[str, dict[str, Any]]] = []
        reply = self._client.execute_interactive(
            cell, timeout=timeout, output_hook=lambda message: messages.append((message["msg_type"], message["content"]))
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        return messages

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.cleanup_resources()


def test_notebook_shows_what_a_checkpoint_is_doing_and_goes_on_with_a_copy_of_its_kernel(tmp_path, command):
    notebook = Notebook(tmp_path)
    try:
        notebook.run("import numpy, stasis\nx = stasis.Buffer.from_numpy(stasis.Device(0), numpy.arange(1000))\nn = 41")
        messages = notebook.run("made = stasis.checkpoint('image', connections='close')\nn += 1\nprint(n, made.restored)")
        shown = [content["data"]["text/plain"] for kind, content in messages if "display_data" in kind]
        assert re.fullmatch(r"Checkpoint complete in image \(\d+\.\d MB, \d+\.\d s\)", shown[-1]), messages
        assert [content["text"] for kind, content in messages if kind == "stream"] == ["42 False\n"]
        # One place of the output, whose text changes.
        assert [kind for kind, _ in messages].count("display_data") == 1
        notebook.run("n = 1000")
        notebook.process.kill()
        notebook.process.wait()
        done = subprocess.run([command, "restore", "image"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        # The kernel's ports are the same: the client finds them again. It ends if it thinks that its parent is gone.
        notebook.answers()
        time.sleep(2.5)
        for _ in range(6):
            try:
                messages = notebook.run("print(n, made.restored, x.numpy().sum())", timeout=20)
                break
            except TimeoutError:
                # What is published before the client has subscribed again is lost.
                continue
        # IPython may add that the kernel's lines are in its history already.
        assert "42 True 499500\n" in "".join(content["text"] for kind, content in messages if kind == "stream"), messages
    finally:
        try:
            os.kill(notebook.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        notebook.close()


@pytest.mark.parametrize(
    ("option", "value"), [("mode", "now"), ("timeout", -1.0), ("connections", "forget"), ("connections", "keep")]
)
def test_wrong_options_are_refused(option, value):
    import stasis

    with pytest.raises(ValueError):
        stasis.checkpoint("nowhere", **{option: value})


# A program with threads, arrays over buffers, and launches that go on all the time.
OUTSIDE = """
import threading, time
import numpy, stasis

device = stasis.Device(0)
module = stasis.Module(device, "kernels.co")
one = stasis.Buffer.from_numpy(device, numpy.ones(1024, "f4"))
sums = [stasis.Buffer.zeros(device, 1024) for _ in range(2)]
host = stasis.Buffer.zeros(device, 1024, "u4", memory="host")
counts = [0, 0]
failed = []

def work(index):
    queue = stasis.Queue(device)
    try:
        while True:
            module["axpy"][4, 256, queue](one, sums[index], 1.0, 1024)
            queue.synchronize()
            counts[index] += 1
            if counts[index] % 100 == 0:
                found = sums[index].numpy()
                if not (found == numpy.float32(counts[index])).all():
                    failed.append((index, counts[index], found[:4]))
                    return
    except BaseException as error:
        failed.append(error)

@stasis.on_restore
def note():
    print("restored", threading.current_thread() is threading.main_thread(), flush=True)

threads = [threading.Thread(target=work, args=[index], daemon=True) for index in range(2)]
for thread in threads:
    thread.start()
view = host.numpy()
turn = 0
while not failed:
    # The CPU writes through a view at any moment, locked or not.
    view += 1
    turn += 1
    if not (view == turn).all():
        failed.append(("view", turn))
    if turn % 200 == 0:
        print("turn", turn, *counts, flush=True)
        time.sleep(0.001)
print("failed", failed, flush=True)
"""


def turns(directory: Path) -> list[list[int]]:
    text = (directory / "log").read_text()
    assert "failed" not in text and "Error" not in text, text
    return [[int(number) for number in found.split()] for found in re.findall(r"^turn (.*)$", text, re.MULTILINE)]


def goes_on(directory: Path) -> None:
    """Waits until the main thread and both others are further than they were."""
    before, deadline = turns(directory), time.monotonic() + 120
    while time.monotonic() < deadline:
        now = turns(directory)
        if now and (not before or all(later > earlier for later, earlier in zip(now[-1], before[-1]))):
            return
        time.sleep(0.05)
    raise AssertionError((directory / "log").read_text())


@pytest.mark.parametrize(
    ("mode", "more"),
    # No kernel of today can restore preempted queues of these GPUs: one that can is imitated.
    [([], {}), (["--preempt"], {"SOFTGPU_KERNEL": "fixed", "STASIS_SOFTGPU_INSTANCE": f"python-{os.getpid()}-fixed"})],
    ids=["drain", "preempt"],
)
def test_interpreter_is_frozen_from_outside_with_threads_and_views(program, tmp_path, command, mode, more):
    process = start(program(OUTSIDE), **more)
    pid = process.pid
    try:
        goes_on(tmp_path)
        for generation in range(3):
            image = f"image-{generation}"
            frozen = [command, "checkpoint", *mode, str(pid), image]
            done = subprocess.run(frozen, cwd=tmp_path, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stderr
            if generation == 0:
                process.wait(timeout=60)
            at = len(turns(tmp_path))
            # Views are pointers, which nobody can ask what they are used for: the contents are there when it runs.
            lazily = ["--lazy"] if generation == 2 else []
            thawed = [command, "restore", *lazily, image]
            done = subprocess.run(thawed, cwd=tmp_path, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stderr
            goes_on(tmp_path)
            assert len(turns(tmp_path)) > at
            # Callbacks are called once for each restore, by the main thread.
            assert re.findall("^restored .*$", (tmp_path / "log").read_text(), re.MULTILINE) == ["restored True"] * (generation + 1)
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


PRINTING = """
import io, sys
import stasis

sys.stdout = text = io.StringIO()
device = stasis.Device(0)
stasis.Module(device, "print.co")["print"][4, 32](120)
try:
    device.synchronize(timeout=0.2)
    early = "over"
except stasis.Timeout:
    early = "runs" if text.getvalue() else "silent"
made = stasis.checkpoint("image", mode="preempt", timeout=60)
device.synchronize()
lines = text.getvalue().splitlines()
with open("restored" if made.restored else "original", "w") as file:
    print(early, len(lines), len(set(lines)), file=file)
"""


def test_kernel_that_is_preempted_while_it_prints_prints_each_line_once(program, tmp_path, command, compiled):
    (tmp_path / "print.co").write_bytes(compiled(Path(__file__).parents[2] / "tests" / "kernels" / "print.c"))
    instance = f"python-{os.getpid()}-fixed"
    process = start(program(PRINTING), SOFTGPU_KERNEL="fixed", STASIS_SOFTGPU_INSTANCE=instance)
    assert process.wait(timeout=240) == 0, (tmp_path / "log").read_text()
    expected = f"runs {4 * 32 * 120} {4 * 32 * 120}\n"
    assert wait_for(tmp_path / "original") == expected
    for _ in range(2):
        (tmp_path / "restored").unlink(missing_ok=True)
        done = subprocess.run([command, "restore", "image"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert wait_for(tmp_path / "restored") == expected, (tmp_path / "log").read_text()
        wait_for_end(process.pid)
