"""Rows of a call, or bags of them, from the rows of its unique ids: functions of torch, which have gradients."""

# K keys of one call, U unique ones, B bags, D dimension
from torch import Tensor
from torch.nn import functional

from springtide.embeddings.lookup.handle import LookupSlice
from springtide.kernels.ops import Ops


def pooled(ops: Ops, rows_UD: Tensor, inverse_K: Tensor, part: LookupSlice) -> Tensor:
    """Return the row of each key, (K, D), or the bags of `part`, (B, D): zeros for an empty one."""
    if part.offsets_B1 is None:
        return functional.embedding(inverse_K, rows_UD)
    if len(part.offsets_B1) == 1:
        return rows_UD.new_zeros(0, rows_UD.shape[1])
    (offsets_B1,) = ops.put(part.offsets_B1)
    starts_B = ops.tensor_of(offsets_B1[:-1])
    return functional.embedding_bag(inverse_K, rows_UD, starts_B, mode=part.mode)
