# SPDX-License-Identifier: MIT OR Apache-2.0
"""The extension module: the runtime's objects."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Literal, Sequence, TypedDict, final

import numpy as np
import numpy.typing as npt
from typing_extensions import CapsuleType, Self

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
    "Launcher",
    "LoadError",
    "Module",
    "OutOfMemory",
    "Queue",
    "RawQueue",
    "Timeout",
    "__version__",
    "_activity",
    "_counts",
    "_forked",
    "_pass_on_prints",
    "adopt",
    "checkpoint",
    "device_count",
    "open",
    "save",
    "synchronize",
]
__version__: str

_Shape = int | Sequence[int]
_Memory = Literal["vram", "host"]

class Error(RuntimeError):
    """An act of the runtime failed; the text says which, with the numbers, and what to do."""

class OutOfMemory(MemoryError):
    """An agent has not that much memory left."""

class LoadError(Error):
    """A code object could not be loaded, or has no such kernel."""

class LaunchError(ValueError):
    """A launch is not one: its shape or its arguments are wrong. Nothing was submitted."""

class KernelFault(Error):
    """A kernel faulted, and its queue stopped."""

class DeviceLost(KernelFault):
    """The device runs nothing of this process any more, after a kernel's memory fault or because it is gone."""

class CheckpointError(Error):
    """The process was not checkpointed; it runs on."""

class Forked(Error):
    """The process was forked after the runtime was opened: only the parent has the device."""

class Timeout(TimeoutError):
    """Time was up before what was waited for came about."""

class _MemoryInfo(TypedDict):
    total: int
    available: int
    held: int
    peak: int

@final
class Device:
    """A GPU, or a software GPU, by its index.

    Parameters
    ----------
    index
        From 0 to ``device_count() - 1``.
    """

    def __new__(cls, index: int = 0) -> Self: ...
    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str:
        """Its target, such as ``gfx1100``."""

    @property
    def uuid(self) -> str: ...
    @property
    def compute_units(self) -> int: ...
    @property
    def wave_size(self) -> int:
        """Work-items of a wave."""

    @property
    def is_software(self) -> bool:
        """Whether it is a software GPU."""

    @property
    def queue(self) -> Queue:
        """The queue of launches that name none."""

    def memory(self) -> _MemoryInfo:
        """Bytes of its memory: in all, that could be allocated now, that this process holds, and the most it held."""

    def _topology(self) -> dict[str, int]: ...
    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until all queues of the device have completed what was submitted.

        Parameters
        ----------
        timeout
            Seconds; ``None`` is for ever.

        Raises
        ------
        Timeout, KernelFault
        """

@final
class Queue:
    """Launches in order: one begins when those before it have completed. As a context manager it is waited for at the end.

    Parameters
    ----------
    device
        Where its kernels run.
    packets
        How many launches it has room for, a power of two from 64 to 131072.
    priority
        0 (lowest) to 15.
    """

    def __new__(cls, device: Device, *, packets: int = 1024, priority: int = 7) -> Self: ...
    @property
    def device(self) -> Device: ...
    @property
    def packets(self) -> int: ...
    def record(self) -> Event:
        """Submit an event, which comes about when all that was submitted before has completed."""

    def wait_for(self, event: Event) -> None:
        """Have what is submitted from here on wait for an event, of any queue."""

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until all that was submitted has completed; seconds, ``None`` is for ever."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Event:
    """A place in a queue that comes about; made by :meth:`Queue.record`."""

    def query(self) -> bool:
        """Whether it has come about."""

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until it has come about; seconds, ``None`` is for ever."""

    def elapsed(self, end: Event) -> float:
        """Seconds from this event to ``end``, by the devices' clocks. Waits for both."""

@final
class Buffer:
    """Device memory, with the shape and the type that numpy gives arrays. Its address stays the same, over restores too.

    Parameters
    ----------
    device
        Which device's kernels use it.
    nbytes
        Its length; its elements are bytes.
    memory
        ``"vram"`` is the device's own, ``"host"`` the host's, which every device sees.
    executable
        Whether waves may execute what is written there: for packets that the caller writes, with code of the caller's.

    Raises
    ------
    OutOfMemory
        The text says what this process holds there.
    """

    def __new__(
        cls, device: Device, nbytes: int, *, memory: _Memory = "vram", executable: bool = False
    ) -> Self: ...
    @staticmethod
    def from_numpy(device: Device, array: npt.ArrayLike, *, memory: _Memory = "vram") -> Buffer:
        """Make a buffer with the shape, type and contents of an array, or of what numpy makes one of."""

    @staticmethod
    def empty(device: Device, shape: _Shape, dtype: npt.DTypeLike | None = None, *, memory: _Memory = "vram") -> Buffer:
        """Make a buffer with whatever its memory has; without a dtype its elements are 32-bit floats."""

    @staticmethod
    def zeros(device: Device, shape: _Shape, dtype: npt.DTypeLike | None = None, *, memory: _Memory = "vram") -> Buffer:
        """Make a buffer of zeros; without a dtype its elements are 32-bit floats."""

    @staticmethod
    def from_dlpack(device: Device, tensor: Any, *, memory: _Memory = "vram") -> Buffer:
        """Make a buffer with the contents of another library's tensor, which is in memory that the CPU sees."""

    def numpy(self) -> npt.NDArray[Any]:
        """Wait for the launches that were given it, and give the contents.

        Returns
        -------
        numpy.ndarray
            A view where the CPU sees the memory (``is_host_visible``): what kernels write later shows in it, and what is
            written to it later launches see. Otherwise a copy.
        """

    @property
    def label(self) -> str | None:
        """What it is called, by which another process can adopt it."""

    def set_label(self, label: str) -> Self:
        """Give it a label, which :func:`save` keeps with it. No other buffer of the process may have it.

        Raises
        ------
        ValueError
            Another buffer has it, or the memory may be held by other processes.
        """

    def name(self) -> bytes:
        """What other processes of the same user can ask for its memory by, for as long as it is not freed."""

    @staticmethod
    def named(device: Device, name: bytes, *, timeout: float = 10.0) -> Buffer:
        """A buffer of another process's memory, which both see from now on: nothing is copied. The owner's program need not do anything.

        Parameters
        ----------
        device
            Which device's kernels use it.
        name
            What :meth:`name` gave there.
        timeout
            For how many seconds an owner is asked that does not answer, because it is being checkpointed.

        Raises
        ------
        ValueError
            The name is none, or its buffer is gone.
        Timeout
            The owner did not answer.
        """

    def write(self, array: npt.ArrayLike) -> None:
        """Wait for the launches that were given it, and copy an array of its shape into it."""

    def fill(self, value: int) -> None:
        """Wait for the launches that were given it, and set each byte."""

    def allow(self, device: Device) -> None:
        """Let kernels of another device use it too. Host memory every device may use anyway."""

    def zero_(self) -> Buffer:
        """Wait as ``fill`` does, and set each byte to 0; as torch's tensors have it."""

    def copy_(self, source: Buffer) -> Buffer:
        """Wait for the launches that were given either, and take the contents of a buffer of as many bytes."""

    def clone(self) -> Buffer:
        """Another buffer with its contents, in memory of the same kind, once the launches that were given it have completed."""

    def data_ptr(self) -> int:
        """Its address, for the CPU and the device alike."""

    def free(self, timeout: float | None = None) -> None:
        """Give its memory back, once launches that were given it have completed.

        It also happens when nothing names the buffer any more.

        Parameters
        ----------
        timeout
            Seconds; ``None`` is for ever.

        Raises
        ------
        BufferError
            Arrays or tensors are views of it.
        Timeout
            Launches that were given it have not completed.
        """

    @property
    def nbytes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def memory(self) -> _Memory: ...
    @property
    def device(self) -> Device: ...
    @property
    def is_host_visible(self) -> bool:
        """Whether the CPU sees its memory, so that arrays are views of it."""

    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Module:
    """A code object on a device.

    Parameters
    ----------
    device
        Where its kernels are to run.
    code
        A code object (ELF, versions 4 to 6) or an offload bundle of several, as bytes, or the path of a file of it.

    Raises
    ------
    LoadError
        It is none, or not for this device.
    """

    def __new__(cls, device: Device, code: bytes | str | os.PathLike[str]) -> Self: ...
    def kernel(self, name: str) -> Kernel:
        """The kernel of this name; `LoadError` says which there are."""

    def __getitem__(self, key: str, /) -> Kernel: ...
    @property
    def kernels(self) -> list[str]:
        """The names of its kernels."""

    def global_ptr(self, name: str) -> int:
        """The address of an exported variable."""

    @property
    def device(self) -> Device: ...

@final
class Kernel:
    """A kernel of a module: ``kernel[grid, block](...)`` launches ``grid`` work-groups of ``block`` work-items.

    Both are a whole number or a tuple of up to three. ``kernel[grid, block, queue](...)`` names a queue. An argument is a
    `Buffer`, an address, a number (an int for a whole number, a float for a floating-point one, of the parameter's size), a
    numpy scalar, or the bytes of a struct. The launch is submitted and not waited for.
    """

    def __getitem__(self, key: tuple[_Shape, _Shape] | tuple[_Shape, _Shape, Queue | None], /) -> Launch: ...
    def launch(
        self, grid: _Shape, block: _Shape, args: tuple[Any, ...], *, queue: Queue | None = None, dynamic_lds: int = 0
    ) -> None:
        """Launch it with LDS beyond what it has compiled in, bytes."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> list[tuple[str | None, str, int]]:
        """Of each argument its name, its kind and its bytes."""

    @property
    def registers(self) -> int:
        """Vector registers of a wave."""

    @property
    def lds_bytes(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    @property
    def wave_size(self) -> int: ...
    @property
    def max_block(self) -> int: ...

@final
class Launch:
    """A kernel with the shape of its launch."""

    def __call__(self, *args: Any) -> None: ...

@final
class Launcher:
    """Launches by the types of one of Triton's signatures."""

    def __new__(cls, signature: Sequence[Any]) -> Self: ...
    def __call__(
        self,
        kernel: Kernel,
        queue: Queue,
        grid: tuple[int, int, int],
        items: int,
        shared: int,
        args: tuple[Any, ...],
        scratch: tuple[Any, Any],
    ) -> None: ...

@final
class RawQueue:
    """Packets that the caller writes; of kind ``pm4``, ``aql`` or ``sdma``."""

    def __new__(cls, device: Device, kind: str, ring_bytes: int) -> Self: ...
    def submit(self, packets: bytes) -> int:
        """Append whole packets; give the position behind them."""

    def read_position(self) -> int: ...
    def interrupt(self) -> tuple[int, int]:
        """Where packets write an event's id before they interrupt with it, and the id."""

    def sleep(self, seconds: float) -> None:
        """Sleep for so long at most; raise if the queue has stopped."""

    def synchronize(self, timeout: float | None = None) -> None: ...

@final
class Checkpoint:
    """What a checkpoint has come to."""

    @property
    def directory(self) -> str: ...
    @property
    def restored(self) -> bool:
        """Whether the call has returned in a restored copy."""

def open(device: str | None = None) -> None:
    """Open the process's runtime: on ``kfd``, ``soft``, ``soft:gfx1100*2``; `None` is what STASIS_DEVICE says.

    Without it the first `Device` opens the runtime. A process has one.
    """

def device_count() -> int: ...
def synchronize(timeout: float | None = None) -> None:
    """Wait until all queues have completed what was submitted; seconds, ``None`` is for ever."""

def checkpoint(
    directory: str,
    *,
    leave_running: bool = True,
    mode: str = "drain",
    timeout: float = 10.0,
    connections: str = "refuse",
    file_locks: bool = False,
) -> Checkpoint: ...
def save(directory: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
    """Write the labelled buffers of this process, once its launches have completed. It runs on; CRIU is not needed.

    Parameters
    ----------
    directory
        Where it is written. What was saved there before is replaced in one step, when this is complete.
    timeout
        How long the launches may take, seconds.

    Raises
    ------
    CheckpointError
        Nothing was saved.
    """

def adopt(directory: str | os.PathLike[str], *, devices: dict[int, int] | None = None) -> dict[str, Buffer]:
    """Take over the labelled buffers that another process has saved, at the addresses that they had, with their contents.

    To be called before anything else is allocated, so that the addresses are free.

    Parameters
    ----------
    directory
        Where they were saved.
    devices
        Which device here takes the buffers of which device there: new indices by old ones. Those not named keep theirs.

    Returns
    -------
    dict
        The buffers by their labels.

    Raises
    ------
    Error
        Nothing was adopted; the text says why.
    """

def _activity() -> tuple[str, bool]: ...
def _counts() -> list[tuple[str, int]]: ...
def _forked() -> None: ...
def _pass_on_prints() -> None: ...
