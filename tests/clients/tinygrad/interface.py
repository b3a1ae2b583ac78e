# SPDX-License-Identifier: MIT OR Apache-2.0
"""By which of tinygrad's interfaces the tests reach AMD's GPU: the kernel driver's, or that of our Python package."""

import os

NAME = os.environ.get("STASIS_TEST_INTERFACE", "KFDIface")

if NAME == "STASISIface":
    import stasis.tinygrad

    stasis.tinygrad.activate()
