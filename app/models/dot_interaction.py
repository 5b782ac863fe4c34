"""The dot products of a sample's vectors, each pair once: plain torch, and on a GPU a kernel each way, as torch ops.

The ops are torch's own kind: autograd, autocast, fake tensors and so torch.compile know them.
"""

# N samples, V vectors of a sample, D dimension, I pairs of vectors
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.cuda.launchers.dot_interaction import MOST_VECTORS, DotInteraction, num_pairs_of

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def dot_interaction(vectors_NVD: Tensor, pairs_I: Tensor) -> Tensor:
    """(N, I): vector i times vector j for each i < j; `pairs_I` are their places i * V + j.

    An exported program holds the plain form: whoever loads it need not have our ops.
    """
    fits = 2 <= vectors_NVD.shape[1] <= MOST_VECTORS and vectors_NVD.dtype in DTYPES
    if vectors_NVD.is_cuda and fits and not torch.compiler.is_exporting():
        products_NI: Tensor = fused_dot_interaction(vectors_NVD)
        return products_NI
    return torch_dot_interaction(vectors_NVD, pairs_I)


def torch_dot_interaction(vectors_NVD: Tensor, pairs_I: Tensor) -> Tensor:
    """The same in plain torch: every product twice, and those that are asked for picked out."""
    products_NVV = torch.bmm(vectors_NVD, vectors_NVD.transpose(1, 2))
    # gather: an index with two tensors is five times slower, mostly in its backward
    return products_NVV.flatten(1).gather(1, pairs_I.expand(vectors_NVD.shape[0], -1))


@torch.library.custom_op("springtide::pair_products", mutates_args=(), device_types="cuda")
def fused_dot_interaction(vectors_NVD: Tensor) -> Tensor:
    """`pair_products` in one kernel."""
    return launch_products(gpu_launcher(), vectors_NVD)


@torch.library.custom_op("springtide::pair_gradients", mutates_args=(), device_types="cuda")
def fused_dot_interaction_backward(vectors_NVD: Tensor, grads_NI: Tensor) -> Tensor:
    """The gradients of vectors, given those of their products; they have no gradients themselves."""
    return launch_gradients(gpu_launcher(), vectors_NVD, grads_NI)


def launch_products(pairs: DotInteraction, vectors_NVD: Tensor) -> Tensor:
    """The products as launched by these."""
    return _tensor(pairs, pairs.products(_array(vectors_NVD)), vectors_NVD.dtype)


def launch_gradients(pairs: DotInteraction, vectors_NVD: Tensor, grads_NI: Tensor) -> Tensor:
    """The gradients as launched by these."""
    return _tensor(pairs, pairs.gradients(_array(vectors_NVD), _array(grads_NI)), vectors_NVD.dtype)


@cache
def gpu_launcher() -> DotInteraction:
    """The launcher on torch's GPU; ValueError where there is none or CuPy is missing."""
    return DotInteraction()


def _array(tensor: Tensor) -> Tensor:
    """What the launcher takes: array libraries do not know bfloat16, so its bits."""
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


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _go_back(ctx: Any, grads_NI: Tensor) -> Tensor:
    gradients_NVD: Tensor = fused_dot_interaction_backward(*ctx.saved_tensors, grads_NI)
    return gradients_NVD


fused_dot_interaction.register_autograd(_go_back, setup_context=_keep)
fused_dot_interaction.register_autocast("cuda", torch.bfloat16)  # as bmm, whose place it takes
