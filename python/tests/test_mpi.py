# SPDX-License-Identifier: MIT OR Apache-2.0
"""The example that trains over MPI: its ranks save as one and are started again, or their processes are carried with their connections."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 40


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled kernels."""
    clang = os.environ.get("STASIS_CLANG", "clang-19")
    file = tmp_path_factory.mktemp("training") / "train.co"
    flags = ["--target=amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-O3", "-nogpulib", "-ffreestanding"]
    subprocess.run([clang, *flags, "-o", file, EXAMPLES / "train" / "train.c"], check=True)
    return file


# What runs a command in a network of its own, as on a node of its own.
APART = ("unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


class Training:
    """The example on ranks of Open MPI, in a session of its own and without a terminal: CRIU refuses one."""

    def __init__(
        self, code: Path, place: Path, ranks: int, *arguments: Any, connections: str = "tcp,self", within: tuple[str, ...] = ()
    ) -> None:
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TMPDIR": str(place)}
        words = [*within, "mpirun", "--oversubscribe", "-np", ranks, "--mca", "pml", "ob1", "--mca", "btl", connections]
        # Where there are fewer cores than ranks they would wait by yielding, a million times a second, and Linux 6.18 then keeps every other
        # thread from a core for seconds, those of the software device too.
        words += ["--mca", "mpi_yield_when_idle", 0]
        words += ["--mca", "btl_tcp_if_include", "lo", sys.executable, "-m", "mpi4py", EXAMPLES / "train_ranks" / "train.py"]
        words += ["--code", code, "--steps", STEPS, *arguments]
        self._log = place / f"log-{time.monotonic_ns()}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in words],
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, what: str) -> None:
        until = time.monotonic() + 240
        while what not in self.said():
            assert time.monotonic() < until, f"no {what!r}: {self.said()}"
            time.sleep(0.02)

    def end(self) -> int:
        return self.process.wait(timeout=240)


@pytest.fixture(scope="module")
def undisturbed(training: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a job of four ranks on one node that nobody interrupts."""
    place = tmp_path_factory.mktemp("undisturbed")
    job = Training(training, place, 4, "--sets", "sets", "--weights", "weights")
    assert job.end() == 0, job.said()
    return (place / "weights").read_bytes()


@pytest.mark.parametrize(("ranks", "devices", "of_node"), [(2, 2, 1), (4, 1, 2)])
def test_weights_are_the_same_wherever_the_gpus_are(training, undisturbed, tmp_path, ranks, devices, of_node):
    job = Training(training, tmp_path, ranks, "--devices", devices, "--node", of_node, "--sets", "sets", "--weights", "weights")
    assert job.end() == 0, job.said()
    assert (tmp_path / "weights").read_bytes() == undisturbed


def test_weights_are_the_same_however_the_job_was_interrupted(training, undisturbed, tmp_path):
    job = Training(training, tmp_path, 4, "--pace", 0.1, "--every", 10, "--sets", "sets", "--weights", "weights")
    job.wait_for("set 1")
    time.sleep(0.3)
    # SIGTERM leaves ranks a second only.
    job.process.send_signal(signal.SIGUSR1)
    job.end()
    assert "set 2" in job.said(), job.said()
    # All of it is killed in the middle, at once.
    job = Training(training, tmp_path, 4, "--pace", 0.1, "--sets", "sets", "--weights", "weights")
    job.wait_for("from step ")
    job.process.kill()
    job.end()
    assert "from step 0\n" not in job.said()
    job = Training(training, tmp_path, 4, "--sets", "sets", "--weights", "weights")
    assert job.end() == 0, job.said()
    assert "done" in job.said() and "from step 0\n" not in job.said(), job.said()
    assert (tmp_path / "weights").read_bytes() == undisturbed


@pytest.mark.parametrize("connections", ["tcp,self", "vader,self"])
def test_processes_of_one_node_are_carried_with_their_connections_and_what_they_share(
    training, undisturbed, tmp_path, command, connections
):
    words = ["--pace", 0.2, "--sets", "sets", "--weights", "weights"]
    job = Training(training, tmp_path, 4, *words, connections=connections, within=APART)
    job.wait_for("step 10 ")
    pid = str(job.process.pid)
    checkpoint = ["nsenter", "--net", "--target", pid, "--", command, "checkpoint", pid, "image", "--tcp-established"]
    # In another network, where no port waits for connections that the job has closed.
    for words in (checkpoint, [*APART, command, "restore", "image"]):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert "(4 runtimes)" in done.stdout, done.stdout
        # Its pids are free only then.
        job.end()
    job.wait_for("done")
    assert (tmp_path / "weights").read_bytes() == undisturbed
    assert job.said().count("from step 0\n") == 1 and job.said().count("step 10 ") == 1, job.said()
