"""How rows and gradients travel: float32, bfloat16, or int8 with a scale for each row."""

# U rows, N of them that travel, D dimension, S other numbers of a row, B bytes of one
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from springtide.kernels.cpu.rows import row_codec
from springtide.kernels.cpu.rows.rows import ELEMENT, MIX_1, MIX_2
from springtide_client.keys import mix64

FORMATS = ("float32", "bfloat16", "int8")
SCALE_BYTES = 4
LARGEST = 127
GOLDEN, MASK, MASK_32 = 0x9E37_79B9_7F4A_7C15, 0xFFFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF


def check_formats(*names: str) -> None:
    """ValueError for a name that is not one of FORMATS."""
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"rows can travel as {', '.join(FORMATS)}, not as {name!r}")


@dataclass(frozen=True)
class RowFormat:
    """Turns rows, float32, into bytes (N, B) and back, on the device where they are.

    `seed`: int8 is rounded stochastically, so that the mean of many roundings is the number itself; None: to nearest.
    A row with a number that is not finite comes back as NaN in int8.
    """

    name: str
    dim: int
    seed: int | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of a row, a multiple of 4."""
        words = {"float32": self.dim, "bfloat16": (self.dim + 1) // 2, "int8": (self.dim + 3) // 4 + 1}
        return 4 * words[self.name]

    def pack(
        self, rows_UX: Tensor, order_N: Tensor | None = None, numbers_US: Tensor | None = None, step: int = 0
    ) -> Tensor:
        """Return the first D numbers of rows order_N, all of them if it is None, and after them their other numbers as
        float32: uint8 (N, B + 4 S).

        `step`: makes stochastic rounding differ from call to call, and repeatable.
        """
        if numbers_US is None:
            if self.name == "float32" and order_N is None and rows_UX.shape[1] == self.dim:
                return bytes_of(rows_UX)
            numbers_US = rows_UX.new_empty(len(rows_UX), 0)
        if order_N is None:
            order_N = torch.arange(len(rows_UX), device=rows_UX.device)
        pack = self._pack_by_kernel if rows_UX.is_cpu else self.pack_plainly
        return pack(rows_UX, order_N, numbers_US, step)

    def unpack(self, bytes_NB: Tensor, order_N: Tensor, rows_UX: Tensor, numbers_US: Tensor | None = None) -> None:
        """Write what `pack` made to the first D numbers of rows order_N, and to their other numbers."""
        if numbers_US is None:
            numbers_US = rows_UX.new_empty(len(rows_UX), 0)
        unpack = self._unpack_by_kernel if rows_UX.is_cpu else self.unpack_plainly
        unpack(bytes_NB, order_N, rows_UX, numbers_US)

    def unpacked(self, bytes_NB: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows (N, D) and other numbers (N, S) as they came."""
        num_numbers = (bytes_NB.shape[1] - self.num_bytes) // 4
        if self.name == "float32" and not num_numbers:
            rows_ND = numbers_of(bytes_NB, torch.float32)
            return rows_ND, rows_ND.new_empty(len(rows_ND), 0)
        rows_ND, numbers_NS = (
            bytes_NB.new_empty(len(bytes_NB), width, dtype=torch.float32) for width in (self.dim, num_numbers)
        )
        self.unpack(bytes_NB, torch.arange(len(bytes_NB), device=bytes_NB.device), rows_ND, numbers_NS)
        return rows_ND, numbers_NS

    # the plain form, on any device, which the kernels of the CPU equal

    def pack_plainly(self, rows_UX: Tensor, order_N: Tensor, numbers_US: Tensor, step: int) -> Tensor:
        """Return what `pack` does."""
        return torch.cat([self.encode(rows_UX[order_N, : self.dim], step), bytes_of(numbers_US[order_N])], dim=1)

    def unpack_plainly(self, bytes_NB: Tensor, order_N: Tensor, rows_UX: Tensor, numbers_US: Tensor) -> None:
        """Write what `unpack` does."""
        rows_UX[order_N, : self.dim] = self.decode(bytes_NB[:, : self.num_bytes])
        numbers_US[order_N] = numbers_of(bytes_NB[:, self.num_bytes :], torch.float32)

    def encode(self, rows_ND: Tensor, step: int = 0) -> Tensor:
        """Return uint8 (N, B)."""
        if self.name == "float32":
            return bytes_of(rows_ND)
        if self.name == "bfloat16":
            return _padded(bytes_of(rows_ND.to(torch.bfloat16)), self.num_bytes)
        scales_N1 = rows_ND.abs().amax(dim=1, keepdim=True) / LARGEST
        scaled_ND = rows_ND / scales_N1.clamp(min=torch.finfo(torch.float32).tiny)
        if self.seed is None:
            rounded_ND = scaled_ND.round()
        else:
            rounded_ND = (scaled_ND + self._noise(rows_ND, step)).floor()
        whole_ND = rounded_ND.nan_to_num(0.0).clamp(-LARGEST, LARGEST).to(torch.int8)
        return torch.cat([_padded(bytes_of(whole_ND), self.num_bytes - SCALE_BYTES), bytes_of(scales_N1)], dim=1)

    def decode(self, bytes_NB: Tensor) -> Tensor:
        """Return the rows, float32 (N, D)."""
        if self.name == "float32":
            return numbers_of(bytes_NB, torch.float32)
        if self.name == "bfloat16":
            return numbers_of(bytes_NB[:, : 2 * self.dim], torch.bfloat16).to(torch.float32)
        whole_ND = numbers_of(bytes_NB[:, : self.dim], torch.int8)
        scales_N1 = numbers_of(bytes_NB[:, -SCALE_BYTES:], torch.float32)
        return torch.where(scales_N1.isfinite(), whole_ND * scales_N1, torch.nan)

    def _noise_bits(self, step: int) -> int:
        return 0 if self.seed is None else mix64((self.seed + GOLDEN * step) & MASK)

    def _noise(self, rows_ND: Tensor, step: int) -> Tensor:
        """Return numbers in [0, 1), by a hash of each element's place: of seed and step alone, whatever the device."""
        bits = self._noise_bits(step)
        x = torch.arange(rows_ND.numel(), device=rows_ND.device) * ELEMENT + (bits & MASK_32)
        x = (x & MASK_32) ^ (bits >> 32)
        x = ((x ^ (x >> 16)) * MIX_1) & MASK_32
        x = ((x ^ (x >> 15)) * MIX_2) & MASK_32
        return ((x >> 8).to(torch.float32) * 2.0**-24).reshape(rows_ND.shape)

    # on the CPU

    def _pack_by_kernel(self, rows_UX: Tensor, order_N: Tensor, numbers_US: Tensor, step: int) -> Tensor:
        rows = np.ascontiguousarray(rows_UX.detach().numpy())
        numbers = np.ascontiguousarray(numbers_US.detach().numpy())
        order = order_N.numpy()
        words = np.empty((len(order), self.num_bytes // 4 + numbers.shape[1]), np.float32)
        if self.name == "float32":
            row_codec.pack_float32(rows, order, self.dim, numbers, words)
        elif self.name == "bfloat16":
            row_codec.pack_bfloat16(rows.view(np.uint32), order, self.dim, numbers, words, words.view(np.uint16))
        else:
            is_random, noise = self.seed is not None, np.uint64(self._noise_bits(step))
            bits, whole = rows.view(np.uint32), words.view(np.int8)
            row_codec.pack_int8(rows, bits, order, self.dim, noise, is_random, numbers, words, whole)
        return torch.from_numpy(words.view(np.uint8))

    def _unpack_by_kernel(self, bytes_NB: Tensor, order_N: Tensor, rows_UX: Tensor, numbers_US: Tensor) -> None:
        words = numbers_of(bytes_NB, torch.float32).numpy()
        rows, numbers, order = rows_UX.detach().numpy(), numbers_US.numpy(), order_N.numpy()
        if self.name == "float32":
            row_codec.unpack_float32(words, order, self.dim, rows, numbers)
        elif self.name == "bfloat16":
            halves = words.view(np.uint16)
            row_codec.unpack_bfloat16(words, halves, order, self.dim, rows.view(np.uint32), numbers)
        else:
            row_codec.unpack_int8(words, words.view(np.int8), order, self.dim, rows, numbers)


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


def _padded(bytes_NB: Tensor, num_bytes: int) -> Tensor:
    return torch.nn.functional.pad(bytes_NB, (0, num_bytes - bytes_NB.shape[1]))


class Precision(msgspec.Struct, frozen=True):
    """Each one float32, bfloat16 or int8; dense gradients float32 or bfloat16."""

    rows: str = "float32"
    gradients: str = "float32"
    dense: str = "float32"

    def __post_init__(self) -> None:
        check_formats(self.rows, self.gradients, self.dense)
        if self.dense == "int8":
            raise ValueError("gradients of the dense net can travel as float32 or bfloat16, not as int8")
