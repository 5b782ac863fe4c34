"""Every twin has the ops of the specification, with the same signatures and nothing else."""

import inspect

import pytest

from kernels.cpu.ops import CpuOps
from kernels.cuda.ops import CudaOps
from kernels.spec import Ops


def verbs_of(kind: type) -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}


@pytest.mark.parametrize("twin", [CpuOps, CudaOps])
def test_a_twin_has_the_signatures_of_the_specification(twin: type) -> None:
    specified, offered = verbs_of(Ops), verbs_of(twin)
    assert offered.keys() == specified.keys()
    for name, verb in specified.items():
        parameters = inspect.signature(verb).parameters.values()  # type: ignore[arg-type]
        ours = inspect.signature(offered[name]).parameters.values()  # type: ignore[arg-type]
        assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in parameters]


def test_every_verb_says_what_it_promises() -> None:
    assert all(verb.__doc__ for verb in verbs_of(Ops).values())
