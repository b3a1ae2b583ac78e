# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a checkpoint is doing, where somebody may look: in a notebook's output, or on a terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

from . import _stasis

_INTERVAL = 0.1


class Progress:
    """Says what the process's checkpoint into ``directory`` is doing, by a thread, until the end of a ``with`` statement.

    A restored copy has that thread too; it says nothing there.
    """

    def __init__(self, directory: str, is_wanted: bool | None) -> None:
        self._directory = Path(directory)
        self._show = _display(is_wanted)
        self._begun = time.monotonic()
        self._said = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if self._show is not None:
            self._thread = threading.Thread(target=self._watch, name="stasis-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def complete(self) -> None:
        """Say that the checkpoint is complete, once nothing else is said any more."""
        seconds = time.monotonic() - self._begun
        self._say(f"Checkpoint complete in {self._directory} ({_megabytes(self._directory)}, {seconds:.1f} s)\n")

    def fail(self) -> None:
        """Say that there is none."""
        self._say("No checkpoint was made; the process runs on\n")

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL):
            activity, is_let_go = _stasis._activity()
            if activity == "idle":
                # The process stands still for most of this.
                activity = "CRIU writes the process" if is_let_go else ""
            if activity == "writing the buffers":
                activity += f" ({_megabytes(self._directory)})"
            if activity and not self._ended.is_set():
                self._say(f"Checkpoint: {activity}")

    def _say(self, text: str) -> None:
        if self._show is not None and text != self._said:
            self._said = text
            self._show(text)


def _megabytes(directory: Path) -> str:
    """How much is in the files of a directory."""
    files = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                # What is allocated: files are made in their full length.
                files += os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:
                pass
    return f"{files / 1e6:.1f} MB"


def _display(is_wanted: bool | None) -> Callable[[str], None] | None:
    """What shows a text in the place of the one before; a line's end says that it is the last."""
    if is_wanted is False:
        return None
    in_notebook = _notebook()
    if in_notebook is not None:
        return in_notebook
    if is_wanted or (sys.stderr is not None and sys.stderr.isatty()):
        return _on_stderr
    return None


def _notebook() -> Callable[[str], None] | None:
    """The display of a notebook, if this is one's process."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython import display

    show_at_once: Any = display.display
    # Where the cell's output goes is known to its own thread.
    handle = show_at_once({"text/plain": ""}, raw=True, display_id=True)

    def show(text: str) -> None:
        handle.update({"text/plain": text.rstrip("\n")}, raw=True)

    return show


def _on_stderr(text: str) -> None:
    if sys.stderr is None:
        return
    replace = "\r\x1b[2K" if sys.stderr.isatty() else ""
    end = "" if replace or text.endswith("\n") else "\n"
    try:
        sys.stderr.write(f"{replace}{text}{end}")
        sys.stderr.flush()
    except (OSError, ValueError):
        # Nobody looks any more.
        pass
