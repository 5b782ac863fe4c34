"""A row optimizer is declared once: what is missing is an error where it is declared, or where a backend begins."""

import re
from dataclasses import replace
from typing import Any

import pytest

from springtide.embeddings.config import TableConfig
from springtide.embeddings.optimizer import RowOptimizer
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels import row_optimizers
from springtide.kernels.cuda.launchers.update_ops import optimizer_defines
from springtide.kernels.row_optimizers import OPTIMIZERS, RowOptimizerKind, check_kernels
from tests.support.gpu_emulation.emulated_ops import DEVICES, device_of


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"vectors": 1, "scalars": 1}, "vectors and scalars of state must be one of"),
        ({"vectors": 3, "scalars": 0}, "vectors and scalars of state must be one of"),
        ({"vectors": 1, "scalars": 0, "settings": ("momentum",)}, "no setting of a step is named ['momentum']"),
        ({"vectors": 1, "scalars": 0, "defaults": {"rate": 1.0}}, "no setting of a step is named ['rate']"),
        ({"vectors": 0, "scalars": 1, "sees_new_rows": True}, "without vectors of state no row is known to be new"),
    ],
)
def test_an_incomplete_declaration_is_refused(declared: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"row optimizer 'lion': {words}")):
        RowOptimizerKind(name="lion", **declared)


def test_a_backend_without_a_kernel_of_a_declared_optimizer_does_not_begin() -> None:
    kernels = {"sgd": 1, "adam": 2}
    with pytest.raises(ValueError, match="row optimizers without a kernel for the CPU: adam"):
        check_kernels("the CPU", {"sgd": 1}, kernels)
    with pytest.raises(ValueError, match="kernels for CUDA of row optimizers that are not declared: adam"):
        check_kernels("CUDA", kernels, {"sgd": 1})


@pytest.mark.parametrize("device", DEVICES)
def test_a_table_on_a_gpu_refuses_an_optimizer_without_a_cuda_kernel(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from springtide.kernels.cuda.ops import CudaOps

    monkeypatch.setitem(row_optimizers.OPTIMIZERS, "adam", replace(OPTIMIZERS["adam"], cuda=None))
    words = "row optimizer 'adam' has no CUDA kernel: take one of sgd, adagrad, .*, or .*device = \"cpu\""
    config = TableConfig(dim=4, optimizer={"name": "adam"}, device_bytes=1 << 20)
    with pytest.raises(ValueError, match=words):
        EmbeddingTable(config, seed=0, device=CudaOps(device_of(device)))
    with pytest.raises(ValueError, match=words):
        optimizer_defines(OPTIMIZERS["adam"])


def test_an_optimizer_may_have_defaults_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(row_optimizers.OPTIMIZERS, "adam", replace(OPTIMIZERS["adam"], defaults={"lr": 0.001}))
    assert RowOptimizer.of({"name": "adam"}).lr == 0.001
    assert RowOptimizer.of({"name": "adam", "lr": 0.5}).lr == 0.5
    assert RowOptimizer.of({}).lr == 0.05
