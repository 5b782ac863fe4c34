"""A dense net as a list of instructions, which kernels/cpu/net/run.py runs forward and backward in one call each.

Each sample has a row of columns: its inputs, then the result of each instruction. What only moves numbers (flatten,
slice, concatenate) needs no instruction of its own: it names other columns.
"""

# I instructions, O operands, X indices of instructions, A constants of instructions
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# operations; beside each what its operands say
LINEAR = 0  # source, width, out, out width, weight, bias (-1: none); weight and bias are places in the parameters
RELU = 1  # source, width, out
COPY = 2  # -, number of runs, -, first index: runs of (source, out, width) among the indices
ADD = 3  # source, width, out, other
SUBTRACT = 4  # source, width, out, other
MULTIPLY = 5  # source, width, out, other
SCALE = 6  # source, width, out, first constant: times the first plus the second
SUM = 7  # source, outer, out, summed, inner: (outer, summed, inner) to (outer, inner)
PRODUCTS = 8  # -, number of pairs, out, first index, width: dot products; (source, other, out) of each pair
PARAMETER = 9  # place, width, out: numbers that are the same for every sample
SIGMOID = 10  # source, width, out
TANH = 11  # source, width, out
SOFTMAX = 12  # source, outer, out, width
STANDARDIZE = 13  # source, width, out, mean, variance, count: DenseFeatureNormalizer; has no gradient
CALIBRATE = 14  # source, width, out, bias, rate, trust: Calibration

NUM_OPERANDS = 7  # operation and up to six more


class NetProgram(NamedTuple):
    """Instructions, and the sizes of what they work on. Plain arrays: compiled functions take it apart once."""

    instructions_IO: npt.NDArray[np.int64]
    indices_X: npt.NDArray[np.int64]
    constants_A: npt.NDArray[np.float32]
    needs_gradient_W: npt.NDArray[np.bool_]  # of each column: whether a parameter or a row has a part in it
    num_parameters: int  # numbers that are learned: the first ones; those after them are statistics
    # An estimate of the work of one sample's forward pass. In LINEAR and PRODUCTS an addition and a multiplication are
    # one each (the bias is left out); in other instructions each number that is computed, summed or copied is one, even
    # if its function (a sigmoid) takes more. The backward pass is not in it.
    num_flops: int
