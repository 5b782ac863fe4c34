"""Every CUDA source compiles for every GPU we name, on a machine without one."""

import pytest

from springtide.kernels.cuda.launchers.update_ops import optimizer_defines
from springtide.kernels.cuda.sources import kernels_of, names, options_of, source_of
from springtide.kernels.row_optimizers import OPTIMIZERS
from tests.support.gpu_emulation.nvrtc import compiled

ARCHITECTURES = (80, 90, 100)  # A100; H100 and H200; B200
DEFINES = {
    "rows": (("DIM", 64), ("HALF", 1)),
    "update": (("DIM", 68), ("HALF", 1), *optimizer_defines(OPTIMIZERS["adam"])),
    "learned_rows": (("DIM", 68), ("HALF", 1)),
    "dot_interaction": (("NUMBER", 0),),
}
CUPYS_OWN = ("-ftz=true", "--device-as-default-execution-space")  # CuPy 14 adds them to what it compiles
# for one of them optimized as in earnest, for the others in haste
EARNEST = 90
IN_HASTE = "--Ofast-compile=max"
RESOURCES = "--ptxas-options=-v"
IN_REGISTERS = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", names())
def test_a_source_compiles_without_a_complaint_and_into_registers(name: str, architecture: int) -> None:
    options = [*options_of(DEFINES.get(name, ())), *CUPYS_OWN, f"--gpu-architecture=sm_{architecture}"]
    options += [RESOURCES] if architecture == EARNEST else [IN_HASTE]
    messages, num_bytes = compiled(source_of(name), tuple(options))
    lines = messages.strip("\0\n ").splitlines()
    assert not [line for line in lines if not line.startswith("ptxas ") or "warning" in line]
    # what lies in memory where it could be in a register costs more than the work on it
    assert not [line for line in lines if "bytes stack frame" in line and IN_REGISTERS not in line]
    assert num_bytes > 1000


def test_an_error_names_the_line_of_its_file() -> None:
    source = source_of("find").replace("num_threads() / TILE,", "num_threads() / NOTHING,")
    messages, num_bytes = compiled(source, (*options_of(()), "--gpu-architecture=sm_90"))
    assert num_bytes == 0
    assert "find.cu(" in messages


def test_every_family_has_kernels_of_names_that_no_other_has() -> None:
    kernels = [kernel for name in names() for kernel in kernels_of(name)]
    assert len(set(kernels)) == len(kernels)
    assert all(kernels_of(name) for name in names())
