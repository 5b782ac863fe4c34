"""Builds a NetProgram: hands out columns, appends instructions, and lays out parameters. Knows no torch functions."""

# W columns, L labels
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from springtide.kernels.cpu.net import program as ops
from springtide.kernels.cpu.net.program import NetProgram

Int64Array = npt.NDArray[np.int64]

ELEMENTWISE_PAIRS = (ops.ADD, ops.SUBTRACT, ops.MULTIPLY)  # operations that read as many columns of a second operand

PARAMETER_OPERANDS = {  # which operands of an instruction are places in the parameters
    ops.LINEAR: (5, 6),
    ops.PARAMETER: (1,),
    ops.STANDARDIZE: (4, 5, 6),
    ops.CALIBRATE: (4, 5, 6),
}


class ProgramBuilder:
    """A program that grows by one instruction at a time, in the order in which they run."""

    def __init__(self, learned: Iterable[Tensor]) -> None:
        """`learned`: the parameters of the net; other tensors that instructions read are statistics."""
        self._learned = {id(tensor): tensor for tensor in learned}
        self._used: dict[int, Tensor] = {}  # parameters and statistics, by identity
        self._instructions: list[list[int]] = []
        self._indices: list[int] = []
        self._constants: list[float] = []
        self._needs_gradient: list[bool] = []  # of each column

    def is_learned(self, tensor: Tensor) -> bool:
        """Return True for a parameter of the net."""
        return id(tensor) in self._learned

    def add_columns(self, width: int, *, needs_gradient: bool) -> int:
        """Return the first of `width` new columns."""
        first = len(self._needs_gradient)
        self._needs_gradient += [needs_gradient] * width
        return first

    def needs_gradient(self, first: int, width: int) -> bool:
        """Return True if any of these columns needs a gradient."""
        return any(self._needs_gradient[first : first + width])

    def add_indices(self, indices: Iterable[int]) -> int:
        """Return where in the program's indices these begin."""
        first = len(self._indices)
        self._indices += indices
        return first

    def add_constants(self, *constants: float) -> int:
        """Return where in the program's constants these begin."""
        first = len(self._constants)
        self._constants += constants
        return first

    def add_tensor(self, tensor: Tensor) -> int:
        """Return the number of a parameter or a statistic, the operand by which an instruction reads it."""
        self._used.setdefault(id(tensor), tensor)
        return list(self._used).index(id(tensor))

    def emit(self, *operands: int) -> None:
        """Append an instruction: the operation and its operands, as program.py lists them."""
        self._instructions.append([*operands, *[0] * (ops.NUM_OPERANDS - len(operands))])

    def contiguous(self, columns_W: Int64Array) -> tuple[int, int]:
        """Return the first column and the number of columns that hold these, copied if they are not adjacent."""
        width = len(columns_W)
        if width == 0:
            return 0, 0
        if np.array_equal(columns_W, np.arange(columns_W[0], columns_W[0] + width)):
            return int(columns_W[0]), width
        out = self.add_columns(width, needs_gradient=any(self._needs_gradient[c] for c in columns_W))
        starts = np.flatnonzero(np.diff(columns_W, prepend=columns_W[0] - 2) != 1)
        sizes = np.diff(starts, append=width)
        runs = np.stack([columns_W[starts], out + starts, sizes], axis=1)
        self.emit(ops.COPY, 0, len(starts), out, self.add_indices(runs.reshape(-1).tolist()))
        return out, width

    def build(self, outputs_L: Int64Array) -> tuple[NetProgram, list[Tensor]]:
        """Return the program, and the tensors that it reads: parameters first, then statistics.

        `outputs_L`: the columns of the logits. Call it once.
        """
        learned = [tensor for tensor in self._used.values() if self.is_learned(tensor)]
        statistics = [tensor for tensor in self._used.values() if not self.is_learned(tensor)]
        self._place_tensors([*learned, *statistics])
        self._drop_unused_products(outputs_L)
        program = NetProgram(
            np.array(self._instructions, np.int64).reshape(-1, ops.NUM_OPERANDS),
            np.array(self._indices, np.int64),
            np.array(self._constants, np.float32),
            np.array(self._needs_gradient, np.bool_),
            sum(tensor.numel() for tensor in learned),
            self._num_flops(),
        )
        return program, [*learned, *statistics]

    def _place_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Replace the numbers that `add_tensor` returned by where a tensor begins when all are joined."""
        starts, num = {}, 0
        for tensor in tensors:
            starts[id(tensor)] = num
            num += tensor.numel()
        start_of_number = [starts[key] for key in self._used]
        for instruction in self._instructions:
            for operand in PARAMETER_OPERANDS.get(instruction[0], ()):
                if instruction[operand] >= 0:
                    instruction[operand] = start_of_number[instruction[operand]]

    def _drop_unused_products(self, outputs_L: Any) -> None:
        """Leave out dot products that nothing reads: of all pairs of vectors a net mostly takes each once."""
        read = set(outputs_L.tolist())
        for op, source, width, _, other, *rest in self._instructions:
            if op == ops.COPY:
                for run in range(width):
                    first, _, size = self._indices[other + 3 * run : other + 3 * run + 3]
                    read.update(range(first, first + size))
            elif op == ops.PRODUCTS:
                for pair in range(width):
                    for first in self._indices[other + 3 * pair : other + 3 * pair + 2]:
                        read.update(range(first, first + rest[0]))
            elif op == ops.SUM:
                read.update(range(source, source + width * other * rest[0]))
            elif op == ops.SOFTMAX:
                read.update(range(source, source + width * other))
            elif op != ops.PARAMETER:
                read.update(range(source, source + width))
                if op in ELEMENTWISE_PAIRS:
                    read.update(range(other, other + width))
        for instruction in self._instructions:
            if instruction[0] == ops.PRODUCTS:
                num, at = instruction[2], instruction[4]
                pairs = np.array(self._indices[at : at + 3 * num]).reshape(-1, 3)
                out = set(range(instruction[3], instruction[3] + num)) & read
                kept = pairs[[int(to) in out for to in pairs[:, 2]]]
                self._indices[at : at + kept.size] = kept.reshape(-1).tolist()
                instruction[2] = len(kept)

    def _num_flops(self) -> int:
        """See NetProgram."""
        num = 0
        for op, _, width, _, other, *rest in self._instructions:
            num += {
                ops.LINEAR: 2 * width * other,
                ops.PRODUCTS: 2 * width * rest[0],
                ops.SUM: width * other * rest[0],
                ops.SOFTMAX: width * other,
                ops.COPY: sum(self._indices[other + 2 : other + 3 * width : 3]),
            }.get(op, width)
        return num
