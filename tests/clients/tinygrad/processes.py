# SPDX-License-Identifier: MIT OR Apache-2.0
"""Processes that use the device, each for itself: `processes.py spawn | fork | fork-open`. Prints `right` and ends with 0."""

import errno
import multiprocessing
import os
import sys

LENGTH = 5000


def compute(number):
    """Opens the device in this process and has it compute something that only this process asks for."""
    from tinygrad import Device, Tensor

    assert type(Device["AMD"].iface).__name__ == "KFDIface"
    # Numbers that tinygrad has not made itself: of its own it finds the sum without a kernel.
    return (Tensor(list(range(LENGTH))) * number + 1).sum().item()


def expected(number):
    return LENGTH * (LENGTH - 1) // 2 * number + LENGTH


def children(method):
    """Two children at once, the parent beside them, the device opened by none before it was started."""
    with multiprocessing.get_context(method).Pool(2) as pool:
        answers = pool.map_async(compute, [2, 3, 4], chunksize=1)
        assert compute(5) == expected(5)
        assert answers.get(60) == [expected(number) for number in (2, 3, 4)]
    assert compute(6) == expected(6)


def child_of_an_open_device():
    """What the parent opened belongs to it: the driver answers its child EBADF; the parent goes on."""
    assert compute(2) == expected(2)
    child = os.fork()
    if child == 0:
        from tinygrad import Device

        try:
            Device["AMD"].iface.alloc(1 << 20)
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EBADF
    assert compute(3) == expected(3)


if __name__ == "__main__":
    way = sys.argv[1]
    if way == "fork-open":
        child_of_an_open_device()
    else:
        children(way)
    print("right")
