# SPDX-License-Identifier: MIT OR Apache-2.0
"""Triton's kernels on our devices, without torch: ``import stasis.triton; stasis.triton.activate()``.

Kernels take a :class:`stasis.Buffer` wherever they take a tensor. Compiled kernels are in Triton's own cache.
"""

from __future__ import annotations

import statistics
from typing import Any, Callable, Literal, Sequence

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

import stasis
from stasis._stasis import Launcher

__all__ = ["activate", "assert_close", "deactivate", "do_bench"]

# LDS that a work-group can have.
_LDS_BYTES = 64 << 10


# Waves of gfx11 are privileged while the driver may have to save them, and pass over the instruction by which Triton's assertions stop
# them. What LLVM has after its own is put behind Triton's: a message with the queue's doorbell and the cause, then a halt.
_TRAP = "\ts_trap 2\n"
_HALT = """\ts_sendmsg_rtn_b32 s0, sendmsg(MSG_RTN_GET_DOORBELL)
\ts_waitcnt lgkmcnt(0)
\ts_and_b32 s0, s0, 0x3ff
\ts_bitset1_b32 s0, 10
\ts_mov_b32 m0, s0
\ts_nop 0
\ts_sendmsg sendmsg(MSG_INTERRUPT)
\ts_sethalt 5
\ts_branch 0xfffe
"""


def _add_halts(
    _backend: Any = None, stages: dict[str, Any] | None = None, options: Any = None, *_more: Any
) -> tuple[str, str] | None:
    """Has assertions of gfx11's kernels stop them. Without stages: what Triton's cache tells such kernels by."""
    if stages is None:
        return "stasis-halts", "stasis-halts"
    if str(options.arch).startswith("gfx11"):
        made = stages["amdgcn"]
        stages["amdgcn"] = lambda source, metadata: made(source, metadata).replace(_TRAP, _TRAP + _HALT)
    return None


class _Utils:
    """What Triton asks of a device: its properties, and kernels loaded on it."""

    def __init__(self, devices: list[stasis.Device]) -> None:
        self._devices = devices

    def load_binary(
        self, name: str, code: bytes, shared: int, device: int
    ) -> tuple[stasis.Module, stasis.Kernel, int, int, int]:
        module = stasis.Module(self._devices[device], code)
        kernel = module.kernel(name)
        return module, kernel, kernel.registers, kernel.scratch_bytes // 4, kernel.max_block

    def unload_module(self, module: stasis.Module) -> None:
        """Nothing: it is unloaded when nothing names it."""

    def get_device_properties(self, device: int) -> dict[str, Any]:
        found = self._devices[device]
        return {
            "arch": found.name,
            "cooperativeLaunch": 0,
            "max_num_regs": 256 * 1024,
            "max_shared_mem": _LDS_BYTES,
            "multiprocessor_count": found.compute_units,
            "warpSize": found.wave_size,
        }


class _Launch:
    """Launches of a compiled kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        signature = dict(source.signature.items())
        descriptions = getattr(metadata, "tensordesc_meta", None)
        types = tuple(signature.values())
        self._call: Callable[..., None] = self._submit
        if any(isinstance(each, str) and each.startswith("tensordesc") for each in types):
            types, self._call = _with_descriptors(signature, descriptions, self._submit)
        self._launcher = Launcher(list(types))
        self._scratch = [
            (getattr(metadata, f"{kind}_scratch_size", 0), getattr(metadata, f"{kind}_scratch_align", 1))
            for kind in ("global", "profile")
        ]
        if getattr(metadata, "launch_cooperative_grid", False):
            raise stasis.LaunchError("A cooperative grid was asked for, which the runtime does not have")
        self._items = metadata.num_warps * metadata.warp_size
        self._shared = metadata.shared

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        queue: stasis.Queue,
        kernel: stasis.Kernel,
        _packed: Any,
        launch_metadata: Any,
        enter: Callable[[Any], None] | None,
        leave: Callable[[Any], None] | None,
        *args: Any,
    ) -> None:
        if enter is not None:
            enter(launch_metadata)
        self._call((x, y, z), queue, kernel, args)
        if leave is not None:
            leave(launch_metadata)

    def _submit(self, grid: tuple[int, int, int], queue: stasis.Queue, kernel: stasis.Kernel, args: Any) -> None:
        groups = grid[0] * grid[1] * grid[2]
        # A buffer that is dropped here is freed when the kernel has completed.
        scratch = [_scratch(size * groups, align, queue) for size, align in self._scratch]
        self._launcher(kernel, queue, grid, self._items, self._shared, tuple(args), (scratch[0], scratch[1]))


def _scratch(size: int, align: int, queue: stasis.Queue) -> Any:
    """Memory for a grid from the user's allocator if there is one, else from ours."""
    if size == 0:
        return None
    from triton.runtime import _allocation

    allocator = _allocation._allocator.get()
    if isinstance(allocator, _allocation.NullAllocator):
        return stasis.Buffer(queue.device, size)
    return allocator(size, align, queue)


def _with_descriptors(
    signature: dict[Any, Any], descriptions: Any, submit: Callable[..., None]
) -> tuple[tuple[Any, ...], Callable[..., None]]:
    """The types of a signature with tensor descriptors as they are passed, and what takes descriptors apart."""
    from triton.backends.driver import decompose_descriptor, expand_signature, wrap_handle_tensordesc_impl

    if descriptions:
        raise stasis.LaunchError("The kernel wants descriptors in hardware's form, which these devices do not have")
    types = tuple(expand_signature(signature.values(), descriptions, "tensordesc"))
    wrapped = wrap_handle_tensordesc_impl(
        submit, signature, descriptions, lambda argument, _description, _base: decompose_descriptor(argument)
    )
    return types, wrapped


class _Driver(DriverBase):  # type: ignore[misc]
    """Triton's way to our devices."""

    def __init__(self) -> None:
        super().__init__()
        self._devices = stasis.devices()
        self._current = 0
        self.utils = _Utils(self._devices)
        self.launcher_cls = _Launch

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        from triton.backends.amd.driver import ty_to_cpp

        return str(ty_to_cpp(ty))

    def get_current_target(self) -> GPUTarget:
        device = self._devices[self._current]
        return GPUTarget("hip", device.name, device.wave_size)

    def get_current_device(self) -> int:
        return self._current

    def set_current_device(self, device: int) -> None:
        if not 0 <= device < len(self._devices):
            raise IndexError(f"There is no device {device}: {len(self._devices)} are here, from 0 on")
        self._current = device

    def get_current_stream(self, device: int) -> stasis.Queue:
        return self._devices[device].queue

    def get_active_torch_device(self) -> Any:
        raise stasis.Error("There is no device of torch: kernels take stasis.Buffer for tensors")

    def get_device_interface(self) -> Any:
        raise stasis.Error("There is no device of torch: measure with stasis.triton.do_bench")

    def get_benchmarker(self) -> Callable[..., Any]:
        return do_bench

    def get_empty_cache_for_benchmark(self) -> stasis.Buffer:
        return stasis.Buffer(self._devices[self._current], 256 << 10)

    def clear_cache(self, cache: stasis.Buffer) -> None:
        cache.fill(0)


def activate(device: int = 0) -> None:
    """Have Triton compile for our devices and launch on them.

    Parameters
    ----------
    device
        The index of the device that launches go to.
    """
    driver = _Driver()
    driver.set_current_device(device)
    triton.runtime.driver.set_active(driver)
    if triton.knobs.runtime.add_stages_inspection_hook is None:
        triton.knobs.runtime.add_stages_inspection_hook = _add_halts


def deactivate() -> None:
    """Have Triton use what it uses by itself again."""
    triton.runtime.driver._active = None
    if triton.knobs.runtime.add_stages_inspection_hook is _add_halts:
        triton.knobs.runtime.add_stages_inspection_hook = None


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Any = None,
    quantiles: Sequence[float] | None = None,
    return_mode: Literal["mean", "median", "min", "max", "all"] = "mean",
) -> Any:
    """Measure ``fn`` by the device's clock; called as ``triton.testing.do_bench`` is.

    Parameters
    ----------
    fn
        What is measured: launches on the active device's queue.
    warmup, rep
        How long it is repeated before and while it is measured, milliseconds; it is measured once at least.
    quantiles
        Which quantiles of the times are given instead of what ``return_mode`` says.

    Returns
    -------
    float or list of float
        Milliseconds.
    """
    queue = triton.runtime.driver.active.get_current_stream(triton.runtime.driver.active.get_current_device())

    def measured() -> float:
        begin = queue.record()
        fn()
        end = queue.record()
        return float(begin.elapsed(end) * 1e3)

    fn()
    estimate = max(measured(), 1e-3)
    for _ in range(int(warmup / estimate)):
        fn()
    queue.synchronize()
    times = [measured() for _ in range(max(1, int(rep / estimate)))]
    if quantiles is not None:
        found = [float(np.quantile(times, each)) for each in quantiles]
        return found[0] if len(found) == 1 else found
    if return_mode == "all":
        return times
    if return_mode in ("min", "max"):
        return min(times) if return_mode == "min" else max(times)
    return statistics.median(times) if return_mode == "median" else statistics.fmean(times)


def assert_close(found: Any, expected: Any, rtol: float = 1e-2, atol: float = 1e-2) -> None:
    """Raise ``AssertionError`` unless two arrays or buffers are alike; it says how many elements are not, and the worst.

    Parameters
    ----------
    found, expected
        Buffers, or what numpy makes arrays of.
    rtol, atol
        An element may differ by ``atol + rtol * abs(expected)``.
    """

    def array(given: Any) -> Any:
        return (given.numpy() if isinstance(given, stasis.Buffer) else np.asarray(given)).astype(np.float64)

    np.testing.assert_allclose(array(found), array(expected), rtol=rtol, atol=atol)
