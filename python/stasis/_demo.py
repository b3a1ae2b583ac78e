# SPDX-License-Identifier: MIT OR Apache-2.0
"""``python -m stasis demo``: a kernel on the device, whose result is checked."""

from __future__ import annotations

import argparse
import sys
import time


def main(arguments: list[str]) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m stasis demo", description=__doc__)
    parser.add_argument("--device", help="kfd, soft, soft:gfx1100*2 (default: STASIS_DEVICE, else what is here)")
    parser.add_argument("--elements", type=int, default=1 << 20, help="elements of each array (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.elements < 1:
        parser.error("there must be at least one element")

    import numpy as np

    import stasis
    from stasis import _programs

    stasis.open(options.device)
    device = stasis.Device(0)
    print(f"{device.name} ({'software' if device.is_software else 'hardware'}), {device.compute_units} compute units")
    axpy = stasis.Module(device, _programs.DIRECTORY / "axpy.co")["axpy"]
    count = options.elements
    x = np.arange(count, dtype="f4") % 1000
    device_x = stasis.Buffer.from_numpy(device, x)
    device_y = stasis.Buffer.from_numpy(device, np.ones(count, dtype="f4"))
    start = time.perf_counter()
    begin = device.queue.record()
    axpy[-(-count // 256), 256](device_x, device_y, 2.0, count)
    end = device.queue.record()
    result = device_y.numpy()
    wall = time.perf_counter() - start
    if not np.array_equal(result, 2 * x + 1):
        print("axpy: wrong", file=sys.stderr)
        return 1
    print(f"axpy of {count} elements: right; {begin.elapsed(end) * 1e3:.3f} ms on the device, {wall * 1e3:.3f} ms in all")
    return 0
