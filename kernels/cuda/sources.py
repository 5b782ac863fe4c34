"""The texts of the kernels: each `.cu` with the headers it includes put in front, which is what the compiler is given.

CuPy's cache of compiled kernels knows a source's text but no files that the text includes.
"""

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "source"
INCLUDE = re.compile(r'^#include "([a-z_]+\.cuh)"$', re.MULTILINE)
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?([a-z_0-9]+)\(')
# neither fused multiply-adds nor approximate roots and quotients: sums and steps are the CPU backend's, operation by
# operation (denormals apart: CuPy adds -ftz=true)
OPTIONS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")

Defines = tuple[tuple[str, int | str], ...]


def names() -> list[str]:
    """The families of kernels, one file each."""
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


@cache
def source_of(name: str) -> str:
    """The text of a family with its headers, each once; line numbers in messages are those of the files."""
    seen: set[str] = set()

    def text_of(file: str) -> str:
        seen.add(file)
        lines, at = [f'#line 1 "{file}"'], 0
        for number, line in enumerate((FOLDER / file).read_text().splitlines(), 1):
            if match := INCLUDE.match(line):
                if match[1] not in seen:
                    lines += [text_of(match[1]), f'#line {number + 1} "{file}"']
                else:
                    lines.append("")
            else:
                lines.append("" if line == "#pragma once" else line)
            at = number
        return "\n".join(lines) if at else ""

    return text_of(f"{name}.cu") + "\n"


@cache
def kernels_of(name: str) -> tuple[str, ...]:
    """The kernels of a family."""
    return tuple(KERNEL.findall(source_of(name)))


def options_of(defines: Defines) -> tuple[str, ...]:
    """Compiler options, including the constants a family is compiled for."""
    return (*OPTIONS, *(f"-D{key}={value}" for key, value in defines))
