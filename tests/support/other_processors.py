"""Compiled functions of this process as object code for other processors: `python -m tests.support.other_processors`.

The LLVM code that Numba makes, before it is optimized for this processor, is given to the back end of another one,
which refuses what it lacks. The arguments are halves of `compile_kernels`; prints how many modules there were.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import llvmlite.binding as llvm
from numba.core.codegen import CPUCodeLibrary

from springtide.app.tools.compile_kernels import DIMS, HALVES

TRIPLES = ("aarch64-unknown-linux-gnu", "arm64-apple-darwin")
OF_ONE_PROCESSOR = re.compile(r"@llvm\.(?:x86|aarch64|arm)\.[\w.]+")


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Collect the LLVM code of what is compiled within the context."""
    codes: list[str] = []
    add = CPUCodeLibrary.add_ir_module

    def record(self: Any, module: Any) -> None:
        codes.append(str(module))
        add(self, module)

    with mock.patch.object(CPUCodeLibrary, "add_ir_module", record):
        yield codes


def emit(code: str, triple: str) -> int:
    """Return how many bytes of object code a module has for a processor; RuntimeError if it has none."""
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2)
    lines = [line for line in code.splitlines() if not line.startswith(("target triple", "target datalayout"))]
    module = llvm.parse_assembly("\n".join([f'target triple = "{triple}"', *lines]))
    module.data_layout = str(machine.target_data)
    module.verify()
    return len(machine.emit_object(module))


def check(codes: list[str]) -> None:
    """Emit every module for every processor; AssertionError for one that names an instruction of one of them."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for code in codes:
        assert not (found := OF_ONE_PROCESSOR.findall(code)), found
        for triple in TRIPLES:
            assert emit(code, triple) > 0


if __name__ == "__main__":
    with recorded() as codes:
        for half in sys.argv[1:]:
            HALVES[half](DIMS[:1])
    check(codes)
    print(len(codes))
