"""A small exported model over every kind of feature, for hand-written logs."""

import io
from functools import cache

import torch
from torch import nn

from springtide_client.schema import Schema

DIM = 4
TOY_SCHEMA = Schema(
    labels=("click", "order"),
    categorical=("user_id", "item_id"),
    multi_value=("genres",),
    sequence=("last_items",),
    dense=("age",),
    share={"last_items": "item_id"},
)


class ToyModel(nn.Module):
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


@cache
def toy_program() -> torch.export.ExportedProgram:
    """Return the exported model as a trainer publishes it: without example inputs."""
    torch.set_num_threads(1)
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
    program = torch.export.export(ToyModel().eval(), example, dynamic_shapes=sizes)
    program._example_inputs = None
    return program


@cache
def toy_archive() -> bytes:
    """Return the bytes of the program's .pt2 archive."""
    file = io.BytesIO()
    torch.export.save(toy_program(), file)
    return file.getvalue()
