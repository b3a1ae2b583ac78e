# SPDX-License-Identifier: MIT OR Apache-2.0
"""``python -m stasis``: the ``stasis`` command, and ``python -m stasis demo``."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from . import _programs


def command() -> NoReturn:
    """Become the ``stasis`` command with this program's arguments."""
    program = _programs.path("stasis")
    if program is None:
        sys.exit(f"stasis: the command is not in {_programs.DIRECTORY}: install the wheel that `cargo xtask wheel` builds")
    # The command finds the software device beside itself.
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    if sys.argv[1:2] == ["demo"]:
        from . import _demo

        sys.exit(_demo.main(sys.argv[2:]))
    command()
