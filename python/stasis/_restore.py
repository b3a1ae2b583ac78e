# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checkpoints of the process, and what is done in a restored copy before it goes on."""

from __future__ import annotations

import os
from typing import Callable, Literal, TypeVar

from . import _notebook, _stasis
from ._progress import Progress

_Callback = TypeVar("_Callback", bound=Callable[[], object])

_callbacks: list[Callable[[], object]] = []


def on_restore(callback: _Callback) -> _Callback:
    """Have ``callback`` called, without arguments, in a restored copy: before :func:`checkpoint` returns there, or, where the
    process was checkpointed from outside, by the main thread between two steps of its own.

    Callbacks are called in the order in which they were given. What one raises, :func:`checkpoint` raises, after the
    others were called; after a checkpoint from outside ``sys.unraisablehook`` gets it. Usable as a decorator.
    """
    _callbacks.append(callback)
    return callback


def checkpoint(
    directory: str | os.PathLike[str],
    *,
    leave_running: bool = True,
    mode: Literal["drain", "preempt"] = "drain",
    timeout: float = 10.0,
    connections: Literal["refuse", "close", "keep"] = "refuse",
    file_locks: bool = False,
    progress: bool | None = None,
) -> _stasis.Checkpoint:
    """Checkpoint this process. The call returns twice, as ``os.fork`` does: here, and in every restored copy.

    Parameters
    ----------
    directory
        Where the checkpoint is written. It must be empty or not exist.
    leave_running
        Whether this process runs on. Otherwise it ends, and the call returns in restored copies only.
    mode
        ``"drain"`` waits for the kernels that were launched; ``"preempt"`` stops them in the middle.
    timeout
        How long stopping them may take, seconds.
    connections
        What becomes of established TCP connections: there must be none; copies find them closed; or copies have them, which needs
        CAP_NET_ADMIN and the end of this process.
    file_locks
        Whether locks of files are checkpointed too. Otherwise there must be none.
    progress
        Whether to show what the checkpoint is doing. ``None``: in a notebook, and where standard error is a terminal.

    Returns
    -------
    Checkpoint
        ``restored`` says in which of the two lives the call has returned.

    Raises
    ------
    CheckpointError
        The process was not checkpointed; the text says why. It runs on.
    """
    path = os.fspath(directory)
    # The kernel may have begun to look at its parent since this package was imported.
    _notebook.outlive_parent()
    shown = Progress(path, progress)
    try:
        with shown:
            made = _stasis.checkpoint(
                path,
                leave_running=leave_running,
                mode=mode,
                timeout=timeout,
                connections=connections,
                file_locks=file_locks,
            )
    except BaseException:
        shown.fail()
        raise
    if made.restored:
        _call_back()
    else:
        shown.complete()
    return made


def _call_back() -> None:
    """Call all callbacks; raise what the first of them raised."""
    raised: list[Exception] = []
    for callback in list(_callbacks):
        try:
            callback()
        except Exception as error:
            raised.append(error)
    if raised:
        raise raised[0]
