# SPDX-License-Identifier: MIT OR Apache-2.0
"""The process that a session of pytest has copies of: ``python -m stasis._warm DIRECTORY``."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path


def main(directory: Path) -> int:
    settings = json.loads((directory / "settings").read_text())
    os.environ.pop("PYTEST_ADDOPTS", None)
    sys.path.insert(0, settings["rootdir"])
    module, _, function = settings["function"].partition(":")

    import pytest

    import stasis

    getattr(importlib.import_module(module), function)()
    (directory / "ready").write_text("")
    made = stasis.checkpoint(directory / "image", leave_running=False)
    assert made.restored
    (directory / "begun").write_text("")
    # The file that it had is as it was at the checkpoint, for the next copy.
    out = os.open(directory / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(out, descriptor)
    return int(pytest.main(json.loads((directory / "arguments").read_text())))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
