# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tests of this directory are for tinygrad on AMD's driver, or on ours, with its LLVM compiler.

They fail, and do not skip, when tinygrad has chosen anything else: then they would say nothing about the device.
"""

import interface
import pytest
from tinygrad import Device


@pytest.fixture(scope="session", autouse=True)
def device():
    """AMD's GPU, reached by the interface that is meant; kernels are compiled by LLVM."""
    opened = Device["AMD"]
    assert Device.DEFAULT == "AMD"
    assert type(opened.iface).__name__ == interface.NAME
    assert type(opened.renderer).__name__ == "AMDLLVMRenderer"
    assert opened.renderer.target.arch == "gfx1100"
    return opened
