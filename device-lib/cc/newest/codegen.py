# SPDX-License-Identifier: MIT OR Apache-2.0
"""LLVM bitcode to gfx1100 objects, by the code generator inside Triton's wheel.

Usage: codegen.py LANES IN.bc OUT.o [IN.bc OUT.o ...], for waves of 32 or 64 lanes. Prints the code generator's revision.
"""

import ctypes
import sys
from pathlib import Path

from triton.backends.amd import compiler

PROCESSOR = "gfx1100"


def generate(library, bitcode: bytes) -> str:
    """Assembly of a module."""
    triple = compiler.get_amd_codegen_target_triple(PROCESSOR).encode()
    # The layout is the library's own: version 1, then the target, then what may be left out.
    options = compiler._AMDGPUCodegenOptions(1, triple, PROCESSOR.encode(), b"", b"", b"", b"", 0, 0, 0, 0, 0)
    text, size, error = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
    failed = library.triton_amdgpu_compile(
        bitcode, len(bitcode), ctypes.byref(options), ctypes.byref(text), ctypes.byref(size), ctypes.byref(error)
    )
    if failed:
        raise RuntimeError(ctypes.string_at(error).decode() if error.value else "no reason given")
    try:
        return ctypes.string_at(text, size.value).decode()
    finally:
        library.triton_amdgpu_free(text)


def main() -> None:
    library = compiler._load_amd_codegen(compiler.get_amd_codegen_path())
    # The functions of a module say it to the code generator; the assembler has to be told.
    features = "+wavefrontsize64" if sys.argv[1] == "64" else ""
    names = [Path(name) for name in sys.argv[2:]]
    for source, target in zip(names[::2], names[1::2]):
        assembly = generate(library, source.read_bytes())
        target.write_bytes(compiler.assemble_amdgcn(assembly, PROCESSOR, features))
    print(compiler.get_amd_codegen_revision())


main()
