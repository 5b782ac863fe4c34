"""How rows and gradients travel: float32, bfloat16, or int8 with a scale for each row."""

# N rows, D dimension, B bytes of a row
from dataclasses import dataclass

import torch
from torch import Tensor

FORMATS = ("float32", "bfloat16", "int8")
SCALE_BYTES = 4
LARGEST = 127


def check_formats(*names: str) -> None:
    """ValueError for a name that is not one of FORMATS."""
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"rows can travel as {', '.join(FORMATS)}, not as {name!r}")


@dataclass(frozen=True)
class RowFormat:
    """Turns rows (N, D), float32, into bytes (N, B) and back, on the device where they are.

    `seed`: int8 is rounded stochastically, so that the mean of many roundings is the number itself; None: to nearest.
    A row with a number that is not finite comes back as NaN in int8.
    """

    name: str
    dim: int
    seed: int | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of a row, B."""
        return {"float32": 4 * self.dim, "bfloat16": 2 * self.dim, "int8": self.dim + SCALE_BYTES}[self.name]

    def encode(self, rows_ND: Tensor, step: int = 0) -> Tensor:
        """Return uint8 (N, B). `step`: makes stochastic rounding differ from call to call, and repeatable."""
        if self.name == "float32":
            return bytes_of(rows_ND)
        if self.name == "bfloat16":
            return bytes_of(rows_ND.to(torch.bfloat16))
        scales_N1 = rows_ND.abs().amax(dim=1, keepdim=True) / LARGEST
        scaled_ND = rows_ND / scales_N1.clamp(min=torch.finfo(torch.float32).tiny)
        if self.seed is None:
            rounded_ND = scaled_ND.round()
        else:
            generator = torch.Generator(rows_ND.device).manual_seed((self.seed * 0x9E3779B1 + step) % 2**63)
            noise_ND = torch.rand(rows_ND.shape, generator=generator, device=rows_ND.device)
            rounded_ND = (scaled_ND + noise_ND).floor()
        whole_ND = rounded_ND.nan_to_num(0.0).clamp(-LARGEST, LARGEST).to(torch.int8)
        return torch.cat([bytes_of(whole_ND), bytes_of(scales_N1)], dim=1)

    def decode(self, bytes_NB: Tensor) -> Tensor:
        """Return the rows, float32 (N, D)."""
        if self.name == "float32":
            return numbers_of(bytes_NB, torch.float32)
        if self.name == "bfloat16":
            return numbers_of(bytes_NB, torch.bfloat16).to(torch.float32)
        whole_ND = numbers_of(bytes_NB[:, : self.dim], torch.int8)
        scales_N1 = numbers_of(bytes_NB[:, self.dim :], torch.float32)
        return torch.where(scales_N1.isfinite(), whole_ND * scales_N1, torch.nan)


def bytes_of(numbers_ND: Tensor) -> Tensor:
    """Return the bytes of rows of numbers, uint8 (N, B)."""
    width = numbers_ND.shape[1] * numbers_ND.element_size()
    if not numbers_ND.numel():
        return torch.zeros(len(numbers_ND), width, dtype=torch.uint8, device=numbers_ND.device)
    return numbers_ND.contiguous().view(torch.uint8).reshape(len(numbers_ND), width)


def numbers_of(bytes_NB: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows of numbers from their bytes."""
    num_rows, width = bytes_NB.shape
    if not bytes_NB.is_contiguous() or bytes_NB.storage_offset() % dtype.itemsize:
        bytes_NB = bytes_NB.clone(memory_format=torch.contiguous_format)
    return bytes_NB.reshape(-1).view(dtype).reshape(num_rows, width // dtype.itemsize)
