# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the tests of the installed package share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest

os.environ.setdefault("STASIS_DEVICE", "soft:gfx1100*2")
# A software device of these tests' own: one that runs already has its settings from whoever started it.
os.environ["STASIS_SOFTGPU_INSTANCE"] = f"python-{os.getpid()}"

import stasis  # noqa: E402


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], bytes]:
    """Compiles kernels in C."""

    def compile(source: Path) -> bytes:
        clang = os.environ.get("STASIS_CLANG", "clang-19")
        out = tmp_path_factory.mktemp("kernels") / "kernels.co"
        flags = ["--target=amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-O2", "-nogpulib", "-ffreestanding"]
        subprocess.run([clang, *flags, "-o", out, source], check=True)
        return out.read_bytes()

    return compile


@pytest.fixture(scope="session")
def code(compiled: Callable[[Path], bytes]) -> bytes:
    """The tests' kernels, compiled."""
    return compiled(Path(__file__).with_name("kernels.c"))


@pytest.fixture()
def device() -> stasis.Device:
    return stasis.Device(0)


@pytest.fixture()
def module(device: stasis.Device, code: bytes) -> stasis.Module:
    return stasis.Module(device, code)


@pytest.fixture()
def program(tmp_path: Path, code: bytes) -> Callable[[str], Path]:
    """Makes a file of a program, beside a file of the kernels."""
    (tmp_path / "kernels.co").write_bytes(code)

    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture()
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program with this interpreter, in a directory of its own."""

    def start(path: Path, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **more}
        return subprocess.run(
            [sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )

    return start


@pytest.fixture(scope="session")
def command() -> Path:
    """The installed ``stasis`` command."""
    found = shutil.which("stasis", path=str(Path(sys.executable).parent))
    assert found is not None
    return Path(found)


@pytest.fixture(scope="module")
def active_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Triton with our devices, and a cache of its own."""
    import stasis.triton

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        stasis.triton.activate()
        yield
        stasis.triton.deactivate()
