# SPDX-License-Identifier: MIT OR Apache-2.0
"""tinygrad on our devices: ``import stasis.tinygrad; stasis.tinygrad.activate()``.

tinygrad goes on to write its own packets; memory and queues are the runtime's, so that the process can be checkpointed.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, Literal

from tinygrad.runtime import ops_amd
from tinygrad.runtime.autogen import kfd
from tinygrad.runtime.support.hcq import HCQBuffer, MMIOInterface

import stasis
from stasis._stasis import RawQueue

__all__ = ["activate", "deactivate"]

# Versions of compute engines, copy engines and bus interfaces by instruction set, as a card's driver tells them.
_VERSIONS: dict[int, tuple[tuple[int, int, int], ...]] = {
    110000: ((11, 0, 0), (6, 0, 0), (4, 3, 0)),
    110001: ((11, 0, 3), (6, 0, 3), (4, 3, 0)),
    110002: ((11, 0, 2), (6, 0, 2), (4, 3, 1)),
    120001: ((12, 0, 1), (7, 0, 1), (6, 3, 1)),
}
# Kinds of queues by the driver's numbers, and how many bytes their positions count.
_KINDS = {
    kfd.KFD_IOC_QUEUE_TYPE_COMPUTE: ("pm4", 4),
    kfd.KFD_IOC_QUEUE_TYPE_COMPUTE_AQL: ("aql", 64),
    kfd.KFD_IOC_QUEUE_TYPE_SDMA: ("sdma", 1),
}
# Bytes of the largest ring of AQL packets.
_MOST_AQL = 8 << 20
# Submissions whose ends are remembered before they are looked at.
_MOST_ENDS = 64
# How long a wait sleeps, seconds.
_SLEEP = 0.002


class _Position:
    """How far a queue was read, in the positions that tinygrad counts."""

    def __init__(self, queue: _Packets) -> None:
        self._queue = queue

    def __getitem__(self, _: int) -> int:
        return self._queue.read_position()


class _Doorbell:
    """Submits what lies in the ring up to the write pointer."""

    def __init__(self, queue: _Packets) -> None:
        self._queue = queue

    def __setitem__(self, _: int, _value: int) -> None:
        self._queue.submit()


class _Packets:
    """Takes packets out of a ring in the process's own memory, where tinygrad writes them, and submits them.

    The hardware's ring is the runtime's: no packet is in it that a checkpoint does not know of.
    """

    def __init__(self, queue: RawQueue, ring_bytes: int, unit: int) -> None:
        self.queue = queue
        self._unit = unit
        self._memory = (ctypes.c_uint8 * ring_bytes)()
        self._write = (ctypes.c_uint64 * 1)()
        self._submitted = 0
        # tinygrad's positions and the queue's: padding to the ring's end is not the same in both.
        self._ends: list[tuple[int, int]] = []
        self._read = 0
        self.descriptor = ops_amd.AMDQueueDesc(
            ring=MMIOInterface(ctypes.addressof(self._memory), ring_bytes, fmt="I"),
            read_ptr=_Position(self),
            write_ptr=MMIOInterface(ctypes.addressof(self._write), 8, fmt="Q"),
            doorbell=_Doorbell(self),
        )

    def submit(self) -> None:
        end, size = self._write[0], len(self._memory)
        begin, length = self._submitted * self._unit % size, (end - self._submitted) * self._unit
        if length == 0:
            return
        memory = memoryview(self._memory)
        packets = bytes(memory[begin : begin + length]) + bytes(memory[: max(0, begin + length - size)])
        position = self.queue.submit(packets)
        self._submitted = end
        self._ends.append((position, end))
        if len(self._ends) > _MOST_ENDS:
            self.read_position()

    def read_position(self) -> int:
        read = self.queue.read_position()
        while self._ends and self._ends[0][0] <= read:
            self._read = self._ends.pop(0)[1]
        return self._read


class STASISIface:
    """tinygrad's interface to a device, on the runtime."""

    def __init__(self, dev: Any, device_id: int) -> None:
        self.dev = dev
        devices = stasis.devices()
        visible = ops_amd.hcq_filter_visible_devices(list(range(len(devices))), "AMD")
        if device_id >= len(visible):
            raise RuntimeError(f"There is no device {device_id}: {len(visible)} are here")
        self.device = devices[visible[device_id]]
        self.count = len(visible)
        self.props = self.device._topology()
        version = self.props["gfx_target_version"]
        if version not in _VERSIONS:
            raise RuntimeError(f"tinygrad's packets for {self.device.name} are not known here: use `stasis run`")
        blocks = (ops_amd.am.GC_HWIP, ops_amd.am.SDMA0_HWIP, ops_amd.am.NBIF_HWIP)
        self.ip_versions = dict(zip(blocks, _VERSIONS[version]))
        self._queues: list[RawQueue] = []
        # What its packets interrupt with, when there is a queue.
        self.dev.queue_event = SimpleNamespace(event_id=0)
        self.dev.queue_event_mailbox_ptr = 0

    def alloc(
        self,
        size: int,
        host: bool = False,
        uncached: bool = False,
        cpu_access: bool = False,
        contiguous: bool = False,
        cpu_addr: int | None = None,
    ) -> Any:
        if cpu_addr is not None:
            raise RuntimeError("Memory of the process's own is not given to the device: copy it")
        try:
            memory: Literal["host", "vram"] = "host" if host or uncached else "vram"
            buffer = stasis.Buffer(self.device, size, memory=memory, executable=True)
        except stasis.OutOfMemory as error:
            raise MemoryError(str(error)) from error
        address, view = buffer.data_ptr(), None
        if host or cpu_access or uncached:
            if not buffer.is_host_visible:
                raise MemoryError("The CPU does not see the device's memory: a resizable BAR is needed")
            # The CPU writes it by its address from here on.
            buffer.numpy()
            view = MMIOInterface(address, size, fmt="B")
        return HCQBuffer(address, size, meta=buffer, view=view, owner=self.dev)

    def free(self, memory: Any) -> None:
        if memory.owner == self.dev:
            memory.meta.free()

    def map(self, memory: Any) -> Any:
        if memory.owner is not None and memory.owner._is_cpu():
            return self.alloc(memory.size, cpu_addr=memory.va_addr)
        memory.meta.allow(self.device)
        return HCQBuffer(memory.va_addr, memory.size, meta=memory.meta, owner=memory.owner)

    def create_queue(self, queue_type: int, ring: Any, gart: Any, rptr: int, wptr: int, **more: Any) -> Any:
        kind, unit = _KINDS[queue_type]
        # The runtime makes what a queue needs.
        for given in (ring, gart, more.get("eop_buffer"), more.get("cwsr_buffer")):
            if given is not None and not (kind == "aql" and given is gart):
                self.free(given)
        # tinygrad's rings are larger than AQL's can be.
        made = RawQueue(self.device, kind, min(ring.size, _MOST_AQL) if kind == "aql" else ring.size)
        if not self._queues:
            mailbox, event = made.interrupt()
            self.dev.queue_event, self.dev.queue_event_mailbox_ptr = SimpleNamespace(event_id=event), mailbox
        self._queues.append(made)
        return _Packets(made, ring.size, unit).descriptor

    def sleep(self, _milliseconds: int) -> None:
        for queue in self._queues:
            queue.sleep(_SLEEP / len(self._queues))

    def on_device_hang(self) -> None:
        self.sleep(1)
        raise RuntimeError("The device does not answer")

    def require_profile_mode(self, can_set_mode: bool = True) -> None:
        raise RuntimeError("Counters of the hardware are not to be had through the runtime")

    def is_wgp_active(self, xcc: int, se: int, sa: int, wgp: int) -> bool:
        return True


def activate() -> None:
    """Have tinygrad's AMD devices be ours: those that STASIS_DEVICE names, or that `stasis.open` was given.

    Call it before tinygrad opens its first device. Where tinygrad's DEV names an interface, its name is STASIS.
    """
    if STASISIface not in ops_amd.AMDDevice.ifaces:
        ops_amd.AMDDevice.ifaces.insert(0, STASISIface)


def deactivate() -> None:
    """Have tinygrad's AMD devices that are opened from here on be what they would be without us."""
    if STASISIface in ops_amd.AMDDevice.ifaces:
        ops_amd.AMDDevice.ifaces.remove(STASISIface)
