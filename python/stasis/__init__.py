# SPDX-License-Identifier: MIT OR Apache-2.0
"""A compute runtime for AMD GPUs, and a software GPU, whose processes freeze and thaw.

>>> import numpy, stasis
>>> device = stasis.Device(0)
>>> module = stasis.Module(device, "axpy.co")
>>> x = stasis.Buffer.from_numpy(device, numpy.arange(1024, dtype="f4"))
>>> y = stasis.Buffer.from_numpy(device, numpy.ones(1024, dtype="f4"))
>>> module["axpy"][4, 256](x, y, 2.0, 1024)
>>> y.numpy()
"""

from __future__ import annotations

import atexit as _atexit
import os as _os

from . import _notebook, _programs
from ._restore import checkpoint, on_restore
from ._stasis import (
    Buffer,
    Checkpoint,
    CheckpointError,
    Device,
    DeviceLost,
    Error,
    Event,
    Forked,
    Kernel,
    KernelFault,
    Launch,
    LaunchError,
    LoadError,
    Module,
    OutOfMemory,
    Queue,
    Timeout,
    __version__,
    _forked,
    _pass_on_prints,
    adopt,
    device_count,
    open,
    save,
    synchronize,
)

_programs.announce()
_notebook.outlive_parent()
_os.register_at_fork(after_in_child=_forked)
_atexit.register(_pass_on_prints)


def devices() -> list[Device]:
    """All devices, in the order of their indices."""
    return [Device(index) for index in range(device_count())]


__all__ = [
    "Buffer",
    "Checkpoint",
    "CheckpointError",
    "Device",
    "DeviceLost",
    "Error",
    "Event",
    "Forked",
    "Kernel",
    "KernelFault",
    "Launch",
    "LaunchError",
    "LoadError",
    "Module",
    "OutOfMemory",
    "Queue",
    "Timeout",
    "__version__",
    "adopt",
    "checkpoint",
    "device_count",
    "devices",
    "on_restore",
    "open",
    "save",
    "synchronize",
]
