"""Every backend has the ops of the specification, with the same signatures and nothing else."""

import inspect

import pytest

from springtide.kernels.cpu.ops import CpuOps
from springtide.kernels.cuda.ops import CudaOps
from springtide.kernels.ops import Ops


def ops_of(kind: type) -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}


@pytest.mark.parametrize("backend", [CpuOps, CudaOps])
def test_a_backend_has_the_signatures_of_the_specification(backend: type) -> None:
    specified, offered = ops_of(Ops), ops_of(backend)
    assert offered.keys() == specified.keys()
    for name, op in specified.items():
        parameters = inspect.signature(op).parameters.values()  # type: ignore[arg-type]
        ours = inspect.signature(offered[name]).parameters.values()  # type: ignore[arg-type]
        assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in parameters]


def test_every_op_says_what_it_promises() -> None:
    assert all(op.__doc__ for op in ops_of(Ops).values())
