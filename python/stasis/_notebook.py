# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the kernel of a notebook needs to be restored."""

from __future__ import annotations

import os
import sys
from typing import Any


def _started() -> str:
    """When this process began, by the system's clock: a restored copy began later (field 22 of proc_pid_stat(5))."""
    with open("/proc/self/stat") as file:
        return file.read().rpartition(")")[2].split()[19]


class _Os:
    """The module ``os``, for ipykernel's look at its parent: a copy's is another one, and the kernel ends where its parent has changed."""

    def __init__(self) -> None:
        self._started, self._parent = _started(), os.getppid()

    def getppid(self) -> int:
        return os.getppid() if _started() == self._started else self._parent

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def outlive_parent() -> None:
    """Have a restored copy of a notebook's kernel go on without the server that started it."""
    poller: Any = sys.modules.get("ipykernel.parentpoller")
    if poller is not None and poller.os is os:
        poller.os = _Os()
