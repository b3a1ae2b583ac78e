# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checkpoints of the ranks of a job as one: all or none, whichever rank fails at whatever moment."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

# A rank that computes: its weights are the step in all elements, and the rank behind the comma. It talks through a socket of the test's.
RANK = """
import json, os, socket, sys
import numpy as np
import stasis
from stasis.ranks import Ranks

rank, size, steps = (int(word) for word in sys.argv[1:4])

class Communicator:
    def __init__(self):
        self.file = socket.socket(fileno=int(sys.argv[4])).makefile("rw")

    def Get_rank(self): return rank
    def Get_size(self): return size

    def allgather(self, item):
        try:
            print(json.dumps(item), file=self.file, flush=True)
            line = self.file.readline()
        except OSError:
            line = ""
        if not line:
            # As MPI ends a job of which a rank is gone.
            os._exit(3)
        return json.loads(line)

ranks = Ranks(Communicator(), "sets")
adopted, state = ranks.load() or ({}, {"step": 0})
device = stasis.Device(0)
weights = adopted.get("weights") or stasis.Buffer.zeros(device, 100_000).set_label("weights")
assert not adopted or (weights.numpy() == np.float32(state["step"] + rank / 10)).all(), weights.numpy()
print("from", state["step"], flush=True)
for step in range(state["step"], steps):
    weights.write(np.full(100_000, step + 1 + rank / 10, "f4"))
    if ranks.agree(rank == 1 and step % 2 == 1):
        print("saved", step + 1, ranks.save({"step": step + 1}), flush=True)
print("done", round(float(weights.numpy()[-1]), 3), flush=True)
"""


class Job:
    """Ranks, and who passes on what they say to each other."""

    def __init__(self, program: Path, ranks: int, steps: int, **more: str) -> None:
        self._sockets = []
        self.ranks = []
        for rank in range(ranks):
            ours, theirs = socket.socketpair()
            words = [sys.executable, program, str(rank), str(ranks), str(steps), str(theirs.fileno())]
            self.ranks.append(
                subprocess.Popen(
                    words,
                    cwd=program.parent,
                    # Not the other tests' machine, which has two devices.
                    env={**os.environ, "STASIS_DEVICE": "soft:gfx1100", "STASIS_SOFTGPU_INSTANCE": f"ranks-{os.getpid()}", **more},
                    pass_fds=[theirs.fileno()],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            theirs.close()
            self._sockets.append(ours)
        self.is_connected, self.is_cut = threading.Event(), threading.Event()
        self.is_connected.set()
        self._thread = threading.Thread(target=self._pass_on)
        self._thread.start()

    def _pass_on(self) -> None:
        """Until a rank is gone: then all others are told so, as MPI does."""
        files = [ours.makefile("rw") for ours in self._sockets]
        try:
            while True:
                lines = [file.readline() for file in files]
                if not self.is_connected.is_set():
                    # All ranks wait: whatever they had begun has come about.
                    self.is_cut.set()
                    self.is_connected.wait()
                if not all(line.endswith("\n") for line in lines):
                    break
                for file in files:
                    print(json.dumps([json.loads(line) for line in lines]), file=file, flush=True)
        except OSError:
            pass
        for ours in self._sockets:
            ours.close()
        for file in files:
            try:
                file.close()
            except OSError:
                pass

    def end(self) -> list[tuple[int, str]]:
        """Waits for all ranks; their statuses, and what they said."""
        said = [rank.communicate(timeout=120)[0] for rank in self.ranks]
        self._thread.join()
        return [(rank.returncode, text) for rank, text in zip(self.ranks, said)]


def complete(directory: Path) -> list[Path]:
    return sorted(directory.glob("sets/set-*/set.json"), key=lambda path: int(path.parent.name[4:]))


@pytest.fixture()
def job(program):
    path = program(RANK)
    return lambda ranks, steps, **more: Job(path, ranks, steps, **more)


def test_ranks_save_together_and_go_on_together(job, tmp_path):
    for status, said in job(3, 5).end():
        assert status == 0 and "from 0" in said and "saved 4" in said, said
    assert [path.parent.name for path in complete(tmp_path)] == ["set-1", "set-2"]
    for rank, (status, said) in enumerate(job(3, 8).end()):
        assert status == 0 and "from 4\n" in said and f"done {8 + rank / 10}\n" in said, said
    # Two sets are kept.
    assert [path.parent.name for path in complete(tmp_path)] == ["set-3", "set-4"]


def test_other_number_of_ranks_is_refused_by_all(job):
    job(2, 2).end()
    for status, said in job(3, 4).end():
        assert status == 1 and "the set was saved by 2 ranks, and 3 are here" in said, said


def test_damaged_image_has_all_ranks_take_the_set_before(job, tmp_path):
    job(2, 4).end()
    image = tmp_path / "sets" / "set-2" / "rank-1" / "runtime-0.img"
    whole = image.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:100] + b"\1" + whole[101:], whole[:-5000] + b"\1" * 5000):
        image.write_bytes(damaged)
        for status, said in job(2, 3).end():
            assert status == 0 and "from 2\n" in said, said
    # One of another set is no damage that it could see itself.
    shutil.copy(tmp_path / "sets" / "set-1" / "rank-1" / "runtime-0.img", image)
    for status, said in job(2, 3).end():
        assert status == 0 and "from 2\n" in said, said


def test_rank_that_cannot_save_has_none_save(job, tmp_path):
    job(2, 2).end()
    # A file is in the way of one rank's image.
    (tmp_path / "sets" / "set-2").mkdir()
    for status, said in job(2, 4).end():
        assert status == 0 and "saved 4 3" in said, said
    readonly = tmp_path / "sets"
    shutil.rmtree(readonly)
    readonly.write_text("")
    for status, said in job(2, 4).end():
        assert status == 1 and "The ranks could not" in said and "rank 0" in said, said


TRIALS = int(os.environ.get("STASIS_RANKS_TRIALS", "5"))


def test_rank_that_is_killed_at_any_moment_leaves_whole_sets(job, tmp_path):
    draw = random.Random(int(os.environ.get("STASIS_SEED", "1")))
    for trial in range(TRIALS):
        shutil.rmtree(tmp_path / "sets", ignore_errors=True)
        begun = 0
        for attempt in range(40):
            running = job(3, 12)
            time.sleep(0.1 + draw.random() * (0.6 + 0.1 * attempt))
            running.ranks[draw.randrange(3)].send_signal(signal.SIGKILL)
            ended = running.end()
            told = {line for _, said in ended for line in said.splitlines() if line.startswith("from ")}
            assert len(told) <= 1, f"trial {trial}: ranks of different sets: {ended}"
            if told:
                step = int(told.pop().split()[1])
                assert step >= begun, f"trial {trial}: from {begun} back to {step}"
                begun = step
            assert all("Traceback" not in said or status == -9 for status, said in ended), ended
            if all(status == 0 for status, _ in ended):
                break
        else:
            raise AssertionError(f"trial {trial} does not get on: {begun}")


def test_start_that_was_cut_off_finds_that_the_job_goes_on_elsewhere(job, tmp_path):
    lost = job(3, 1_000_000)
    wait_for(lambda: len(complete(tmp_path)) >= 2)
    lost.is_connected.clear()
    assert lost.is_cut.wait(60)
    newest = complete(tmp_path)[-1].parent
    step = json.loads(json.loads((newest / "set.json").read_text())["ranks"][0]["state"])["step"]
    for rank, (status, said) in enumerate(job(3, step + 4).end()):
        assert status == 0 and f"from {step}\n" in said and f"done {step + 4 + rank / 10}\n" in said, said
    there = [(path, path.read_bytes()) for path in complete(tmp_path)]
    lost.is_connected.set()
    for status, said in lost.end():
        assert status == 1 and "Superseded: This is start 1 of the job, and start 2 has begun" in said, said
    assert [(path, path.read_bytes()) for path in complete(tmp_path)] == there
    # Its sets are those of the newer start.
    for status, said in job(3, step + 4).end():
        assert status == 0 and f"from {step + 4}\n" in said, said


def test_sets_without_their_starts_and_what_is_no_set_do_no_harm(job, tmp_path):
    job(2, 4).end()
    # As a copy of the sets alone.
    for start in (tmp_path / "sets").glob("start-*"):
        start.rmdir()
    (tmp_path / "sets" / "set-7").write_text("")
    (tmp_path / "sets" / "set-8").mkdir()
    (tmp_path / "sets" / "set-8" / "set.json").write_bytes(b"\xff")
    for status, said in job(2, 8).end():
        assert status == 0 and "from 4\n" in said and "saved 8 10\n" in said, said
    assert [path.parent.name for path in complete(tmp_path)] == ["set-9", "set-10"]
    for status, said in job(2, 8).end():
        assert status == 0 and "from 8\n" in said, said


def test_sets_of_the_newest_start_count_whatever_their_numbers(job, tmp_path):
    job(2, 4).end()
    # As if an earlier start had completed one after a newer had begun.
    late = tmp_path / "sets" / "set-9"
    shutil.copytree(tmp_path / "sets" / "set-1", late)
    said = json.loads((late / "set.json").read_text())
    (late / "set.json").write_text(json.dumps({**said, "start": 0}))
    for status, said in job(2, 6).end():
        assert status == 0 and "from 4\n" in said and "saved 6 10\n" in said, said
    assert [path.parent.name for path in complete(tmp_path)] == ["set-2", "set-10"]


def wait_for(is_so: Any) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.02)
