# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checkpoints of the ranks of a job as one: the labelled buffers and the state of all ranks, or of none.

Ranks talk to each other by what the job has: mpi4py's communicators are of the right shape, and so is anything with
:class:`Communicator`'s methods. All ranks see the same directory.

>>> from mpi4py import MPI
>>> ranks = stasis.ranks.Ranks(MPI.COMM_WORLD, "sets")
>>> buffers, state = ranks.load() or (None, {"step": 0})
>>> if ranks.agree(asked_to_leave):
...     ranks.save({"step": step})

A set of images counts once its file ``set.json`` is there, which one rank renames into place after all have written theirs. A rank or
a node that fails at any moment before leaves a set that is passed over, and the one before it whole.

Each start of a job has a number, by a directory that one rank makes. A start that was thought lost and is not, since only its network was
gone, finds a newer one: all its ranks raise :class:`Superseded`, and what it saved after the newer one had begun counts less than what
that saves.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Protocol

from . import _stasis

_PREFIX = "set-"
_COMPLETE = "set.json"
_START = "start-"
_IMAGE = "runtime-0.img"
# The beginning of an image: it has the hashes of all else.
_HEAD = 4096
# Seconds between two looks for a newer start: the directory may be on another machine.
_LOOK = 2.0


class Superseded(_stasis.Error):
    """The job was started again meanwhile, and goes on there: this start is to end."""


class Communicator(Protocol):
    """How ranks talk: as mpi4py's communicators do."""

    def Get_rank(self) -> int: ...
    def Get_size(self) -> int: ...
    def allgather(self, sendobj: Any, /) -> list[Any]: ...


class Alone:
    """A communicator for a job of one process."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def allgather(self, sendobj: Any, /) -> list[Any]:
        return [sendobj]


class Ranks:
    """The ranks of a job, and the sets of images that they have saved together.

    Parameters
    ----------
    communicator
        Of all ranks.
    directory
        Where sets are, for all ranks the same.
    keep
        How many complete sets are kept, at least one.
    """

    def __init__(self, communicator: Communicator, directory: str | os.PathLike[str], *, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"{keep} sets cannot be kept: give 1 or more")
        self._all = communicator
        self._directory = Path(directory)
        self._keep = keep
        self._rank = communicator.Get_rank()
        self._start: int | None = None
        self._looked = 0.0

    def agree(self, wanted: bool) -> bool:
        """Whether any rank wants it. All ranks call this at the same point, such as the end of a step, and get the same answer.

        Raises
        ------
        Superseded
            On all ranks: the job was started again.
        """
        self._begin()
        newer = 0
        if not 0 <= time.monotonic() - self._looked < _LOOK:
            newer = self._newer()
        answers = self._all.allgather((bool(wanted), newer))
        self._check(answers[0][1])
        return any(answer[0] for answer in answers)

    def save(self, state: dict[str, Any] | None = None, *, timeout: float = 10.0) -> int:
        """Save the labelled buffers of all ranks, and a state of each, as one set. All ranks call this at the same point.

        Parameters
        ----------
        state
            What this rank needs besides to go on: what JSON can say.
        timeout
            How long this rank's launches may take, seconds.

        Returns
        -------
        int
            The set's number.

        Raises
        ------
        CheckpointError
            On all ranks: at least one could not save, and there is no new set. Earlier ones are as they were.
        Superseded
            On all ranks: the job was started again, and there is no new set.
        """
        self._begin()
        # A rank that cannot even begin must not leave the others waiting.
        number, newer, failed = 0, 0, None
        try:
            text = json.dumps(state if state is not None else {})
            number = max(self._numbers(), default=0) + 1
            newer = self._newer()
        except (OSError, TypeError, ValueError) as error:
            failed = f"{type(error).__name__}: {error}"
        seen = self._all.allgather((number, newer, failed))
        self._raise("begin a set", [error for _, _, error in seen])
        self._check(seen[0][1])
        number = max(int(number) for number, _, _ in seen)
        place = self._directory / f"{_PREFIX}{number}"
        try:
            self._together("make the set's directory", lambda: place.mkdir(parents=True), only_first=True)
            made = self._together("save", lambda: self._write(place / f"rank-{self._rank}", timeout))
            entries = self._all.allgather((made, text))
            self._together("complete the set", lambda: self._complete(place, entries), only_first=True)
        except _stasis.CheckpointError:
            if self._rank == 0:
                shutil.rmtree(place, ignore_errors=True)
            # The newer start may have removed what this one had begun.
            self._check(self._all.allgather(self._newer())[0])
            raise
        if self._rank == 0:
            self._tidy(number)
        return number

    def load(self, *, devices: dict[int, int] | None = None) -> tuple[dict[str, _stasis.Buffer], dict[str, Any]] | None:
        """Adopt this rank's buffers of the newest set that all ranks can adopt. All ranks call this, before they allocate anything.

        Parameters
        ----------
        devices
            As for :func:`stasis.adopt`.

        Returns
        -------
        tuple or None
            This rank's buffers by their labels, and the state that it saved with them; ``None`` if there is no set.

        Raises
        ------
        CheckpointError
            On all ranks: there are sets, and none can be adopted by all.
        """
        failures = []
        for number in self._of_first("look for sets", self._complete_numbers):
            place = self._directory / f"{_PREFIX}{number}"
            buffers: dict[str, _stasis.Buffer] = {}
            state: dict[str, Any] = {}
            failed = None
            try:
                state = self._read(place)
                buffers = _stasis.adopt(place / f"rank-{self._rank}", devices=devices)
            except Exception as error:
                # Whatever it is: the others wait for this rank.
                failed = f"{type(error).__name__}: {error}"
            all_failed = self._all.allgather(failed)
            if not any(all_failed):
                return buffers, state
            # The addresses have to be free for an earlier set.
            for buffer in buffers.values():
                buffer.free()
            failures.append(f"set {number}: " + "; ".join(self._named(all_failed)))
        if failures:
            raise _stasis.CheckpointError("No set of images can be adopted by all ranks: " + ". ".join(failures))
        return None

    def _begin(self) -> None:
        """Give this start of the job its number, if it has none: one that only looks at sets is no start."""
        if self._start is None:
            self._start = int(self._of_first("note the start of the job", self._note_start))

    def _note_start(self) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        # A copy of the sets may be without the directories of their starts.
        number = max([0, *self._numbers(_START), *(start for start, _ in self._found())])
        while True:
            number += 1
            try:
                (self._directory / f"{_START}{number}").mkdir()
            except FileExistsError:
                # Another start was faster.
                continue
            return number

    def _newer(self) -> int:
        """The number of a newer start of the job, or 0. Only the first rank looks; what cannot be read is not known to be one."""
        if self._rank != 0:
            return 0
        self._looked = time.monotonic()
        try:
            newest = max(self._numbers(_START), default=0)
        except OSError:
            return 0
        return newest if newest > (self._start or 0) else 0

    def _check(self, newer: int) -> None:
        if newer:
            raise Superseded(
                f"This is start {self._start} of the job, and start {newer} has begun in {self._directory}: the job goes on there, and "
                "this start is to end"
            )

    def _write(self, place: Path, timeout: float) -> dict[str, Any]:
        """Write this rank's image; what tells it from every other one."""
        _stasis.save(place, timeout=timeout)
        return _identity(place)

    def _complete(self, place: Path, entries: list[tuple[dict[str, Any], str]]) -> None:
        """Make the set count."""
        newer = self._newer()
        if newer:
            raise ValueError(f"start {newer} of the job has begun")
        ranks = [{"image": image, "state": state} for image, state in entries]
        text = json.dumps({"start": self._start, "ranks": ranks})
        new = place / f"{_COMPLETE}.new"
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.rename(place / _COMPLETE)
        for directory in (place, self._directory):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _read(self, place: Path) -> dict[str, Any]:
        """This rank's state of a set, whose image is the one that was saved with it."""
        ranks = json.loads((place / _COMPLETE).read_text())["ranks"]
        size = self._all.Get_size()
        if len(ranks) != size:
            raise ValueError(f"the set was saved by {len(ranks)} ranks, and {size} are here")
        entry = ranks[self._rank]
        if _identity(place / f"rank-{self._rank}") != entry["image"]:
            raise ValueError(f"the image of rank {self._rank} is another one than was saved with the set")
        state: dict[str, Any] = json.loads(entry["state"])
        return state

    def _tidy(self, newest: int) -> None:
        """Remove sets that are not needed, and those that never came about."""
        try:
            # A newer start may be reading one of them.
            if self._newer():
                return
            kept = self._complete_numbers()[: self._keep]
            old = [f"{_PREFIX}{number}" for number in self._numbers() if number < newest and number not in kept]
            old += [f"{_START}{number}" for number in self._numbers(_START) if number < (self._start or 0)]
        except OSError:
            # After the next save.
            return
        for name in old:
            shutil.rmtree(self._directory / name, ignore_errors=True)

    def _numbers(self, prefix: str = _PREFIX) -> list[int]:
        if not self._directory.exists():
            return []
        names = (entry.name.removeprefix(prefix) for entry in self._directory.iterdir() if entry.name.startswith(prefix))
        return [int(name) for name in names if name.isascii() and name.isdecimal()]

    def _complete_numbers(self) -> list[int]:
        """The numbers of the sets that count, the newest first: those of a newer start before all of an earlier one."""
        return [number for _, number in sorted(self._found(), reverse=True)]

    def _found(self) -> list[tuple[int, int]]:
        """The sets that count: the start that has completed each, as far as that can be read, and its number."""
        found = []
        for number in self._numbers():
            try:
                text = (self._directory / f"{_PREFIX}{number}" / _COMPLETE).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                text = b""
            found.append((_start_of(text), number))
        return found

    def _of_first(self, act: str, look: Callable[[], Any]) -> Any:
        """What the first rank sees, for all the same."""
        return self._all.allgather(self._together(act, look, only_first=True))[0]

    def _together(self, act: str, do: Callable[[], Any], *, only_first: bool = False) -> Any:
        """Have all ranks do something, or the first; raise on all what any could not do."""
        made, failed = None, None
        if self._rank == 0 or not only_first:
            try:
                made = do()
            except Exception as error:
                # Whatever it is: the others wait for this rank.
                failed = f"{type(error).__name__}: {error}"
        self._raise(act, self._all.allgather(failed))
        return made

    def _raise(self, act: str, failures: list[str | None]) -> None:
        if any(failures):
            raise _stasis.CheckpointError(f"The ranks could not {act}: " + "; ".join(self._named(failures)))

    @staticmethod
    def _named(failures: list[str | None]) -> list[str]:
        return [f"rank {rank}: {failure}" for rank, failure in enumerate(failures) if failure is not None]


def _start_of(text: bytes) -> int:
    """Which start of the job has completed a set; 0 if it does not say so, which is for :meth:`Ranks._read` to refuse."""
    try:
        said = json.loads(text)["start"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return said if isinstance(said, int) and 0 <= said < 1 << 60 else 0


def _identity(place: Path) -> dict[str, Any]:
    """What tells an image from every other one."""
    with (place / _IMAGE).open("rb") as file:
        head = file.read(_HEAD)
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.sha256(head).hexdigest()}
