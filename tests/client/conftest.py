"""A small exported model and the schema it was exported for."""

import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from springtide_client.schema import Schema
from torch import nn

# pytest's importlib mode leaves this folder off the path
sys.path.append(str(Path(__file__).parent))

from toy_log import ToyLog

DIM = 4
TOY_SCHEMA = Schema(
    labels=("click", "order"),
    categorical=("user_id", "item_id"),
    multi_value=("genres",),
    sequence=("last_items",),
    dense=("age",),
    share={"last_items": "item_id"},
)


class Toy(nn.Module):
    """Linear in everything, with a float and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * DIM + DIM + DIM + 2, 2)
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(
        self,
        categorical: torch.Tensor,
        pooled: torch.Tensor,
        sequence: torch.Tensor,
        sequence_length: torch.Tensor,
        dense: torch.Tensor,
    ) -> torch.Tensor:
        mask = torch.arange(sequence.shape[2])[None, None] < sequence_length[..., None]
        summed = (sequence * mask[..., None]).sum(2)
        numbers = torch.nan_to_num(dense) - self.mean
        seen = (self.seen + 0 * sequence_length).float()
        parts = [categorical.flatten(1), pooled.flatten(1), summed.flatten(1), numbers, seen]
        return self.linear(torch.cat(parts, 1))


def export_toy() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    batch, longest = torch.export.Dim("batch", min=1), torch.export.Dim("longest", min=1)
    example = (
        torch.randn(3, 2, DIM),
        torch.randn(3, 1, DIM),
        torch.randn(3, 1, 5, DIM),
        torch.ones(3, 1, dtype=torch.int64),
        torch.randn(3, 1),
    )
    sizes = ({0: batch}, {0: batch}, {0: batch, 2: longest}, {0: batch}, {0: batch})
    return torch.export.export(Toy().eval(), example, dynamic_shapes=sizes)


def save(program: torch.export.ExportedProgram) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


@pytest.fixture(scope="session")
def toy_program() -> torch.export.ExportedProgram:
    torch.set_num_threads(1)
    return export_toy()


@pytest.fixture(scope="session")
def toy_archive(toy_program: torch.export.ExportedProgram) -> bytes:
    toy_program._example_inputs = None
    return save(toy_program)


@pytest.fixture(scope="session")
def toy_schema() -> Schema:
    return TOY_SCHEMA


@pytest.fixture
def make_log(tmp_path: Path, toy_schema: Schema, toy_archive: bytes) -> Callable[[], ToyLog]:
    """A new log, with its first base, at each call."""
    numbers = itertools.count()
    return lambda: ToyLog(tmp_path / f"log-{next(numbers)}", toy_schema, toy_archive)
