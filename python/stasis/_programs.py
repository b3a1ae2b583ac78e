# SPDX-License-Identifier: MIT OR Apache-2.0
"""The programs that the wheel has: the software device and the ``stasis`` command."""

from __future__ import annotations

import os
from pathlib import Path

DIRECTORY = Path(__file__).parent / "bin"

# Where the runtime looks for them first, by the variable.
_FOUND_BY = {"STASIS_SOFTGPUD": "softgpud", "STASIS_PROGRAM": "stasis"}


def path(name: str) -> Path | None:
    """The program of this name, if the wheel has it."""
    program = DIRECTORY / name
    return program if os.access(program, os.X_OK) else None


def announce() -> None:
    """Has the runtime find the wheel's programs, unless the environment names others."""
    for variable, name in _FOUND_BY.items():
        program = path(name)
        if program is not None:
            os.environ.setdefault(variable, str(program))
