"""DLRM's dot interaction: the dot product of each pair of a sample's vectors, in plain torch or as fused CUDA kernels.

The kernels are torch custom ops, so autograd, autocast, fake tensors and torch.compile know them.
"""

# N samples, V vectors of a sample, D dimension, I pairs of vectors
from functools import cache
from typing import Any

import torch
from torch import Tensor

from springtide.kernels.cuda.launchers.dot_interaction import MOST_VECTORS, DotInteraction, num_pairs_of

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def dot_interaction(vectors_NVD: Tensor, pairs_I: Tensor) -> Tensor:
    """Return (N, I): vector i times vector j for each i < j; `pairs_I` are their places i * V + j.

    Exported programs hold the plain form, so that they can be loaded without these ops.
    """
    fits = 2 <= vectors_NVD.shape[1] <= MOST_VECTORS and vectors_NVD.dtype in DTYPES
    if vectors_NVD.is_cuda and fits and not torch.compiler.is_exporting():
        products_NI: Tensor = fused_dot_interaction(vectors_NVD)
        return products_NI
    return torch_dot_interaction(vectors_NVD, pairs_I)


def pair_places(num_vectors: int) -> Tensor:
    """Return the places i * V + j of all pairs i < j, in the order of `dot_interaction`."""
    left_I, right_I = torch.triu_indices(num_vectors, num_vectors, 1)
    places_I: Tensor = left_I * num_vectors + right_I
    return places_I


def torch_dot_interaction(vectors_NVD: Tensor, pairs_I: Tensor) -> Tensor:
    """Compute the products in plain torch: all of them, then pick each pair once."""
    products_NVV = torch.bmm(vectors_NVD, vectors_NVD.transpose(1, 2))
    # gather, because an index with two tensors is five times slower, mostly in its backward
    return products_NVV.flatten(1).gather(1, pairs_I.expand(vectors_NVD.shape[0], -1))


@torch.library.custom_op("springtide::dot_interaction", mutates_args=(), device_types="cuda")
def fused_dot_interaction(vectors_NVD: Tensor) -> Tensor:
    """Compute `dot_interaction` in one kernel."""
    return launch_products(gpu_launcher(), vectors_NVD)


@torch.library.custom_op("springtide::dot_interaction_backward", mutates_args=(), device_types="cuda")
def fused_dot_interaction_backward(vectors_NVD: Tensor, grads_NI: Tensor) -> Tensor:
    """Return the gradients of the vectors from those of their products; they are not differentiable themselves."""
    return launch_gradients(gpu_launcher(), vectors_NVD, grads_NI)


def launch_products(pairs: DotInteraction, vectors_NVD: Tensor) -> Tensor:
    """Compute the products with this launcher."""
    return _tensor(pairs, pairs.products(_array(vectors_NVD)), vectors_NVD.dtype)


def launch_gradients(pairs: DotInteraction, vectors_NVD: Tensor, grads_NI: Tensor) -> Tensor:
    """Compute the gradients with this launcher."""
    return _tensor(pairs, pairs.gradients(_array(vectors_NVD), _array(grads_NI)), vectors_NVD.dtype)


@cache
def gpu_launcher() -> DotInteraction:
    """Return the launcher on torch's GPU; ValueError if there is no GPU or CuPy is missing."""
    return DotInteraction()


def _array(tensor: Tensor) -> Tensor:
    """Return the tensor as the launcher takes it: bfloat16 as its bits, which array libraries do not know."""
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _tensor(pairs: DotInteraction, array: Any, dtype: torch.dtype) -> Tensor:
    tensor: Tensor = pairs.tensor(array)
    return tensor.view(dtype)


@fused_dot_interaction.register_fake
def _(vectors_NVD: Tensor) -> Tensor:
    num, num_vectors, _ = vectors_NVD.shape
    return vectors_NVD.new_empty(num, num_pairs_of(num_vectors))


@fused_dot_interaction_backward.register_fake
def _(vectors_NVD: Tensor, grads_NI: Tensor) -> Tensor:
    return torch.empty_like(vectors_NVD, memory_format=torch.contiguous_format)


def _save_inputs(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grads_NI: Tensor) -> Tensor:
    gradients_NVD: Tensor = fused_dot_interaction_backward(*ctx.saved_tensors, grads_NI)
    return gradients_NVD


fused_dot_interaction.register_autograd(_backward, setup_context=_save_inputs)
fused_dot_interaction.register_autocast("cuda", torch.bfloat16)  # like bmm, which it replaces
