"""A backward pass in Python, node by node, without autograd's engine.

Once its engine has run, a torch built for CUDA refuses a backward pass in every process that is forked afterwards, also
where there is no GPU. A process that wants to run a step and then fork does it within `without_autograd_engine`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node


@contextmanager
def without_autograd_engine() -> Iterator[None]:
    """Let `Tensor.backward` and `torch.autograd.backward` accumulate gradients in the leaves by `run_backward`."""
    with mock.patch("torch.autograd._engine_run_backward", run_backward):
        yield


def run_backward(roots: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], *_: Any, **__: Any) -> tuple[()]:
    """Call each node once, when the gradients of all its uses are added up."""
    inputs: dict[Node, dict[int, torch.Tensor]] = {}
    for root, grad in zip(roots, grads, strict=True):
        assert root.grad_fn is not None
        add(inputs, root.grad_fn, root.output_nr, grad)
    with torch.no_grad():
        for node in in_order([root.grad_fn for root in roots if root.grad_fn is not None]):
            given = inputs.pop(node, {})
            if not given:
                continue
            is_python = isinstance(node, BackwardCFunction)
            grads = [given.get(position) for position in range(len(node._input_metadata))]
            if is_python:  # gets zeros for outputs that were not used
                each = zip(grads, node._input_metadata, strict=True)
                grads = [torch.zeros(of.shape, dtype=of.dtype) if grad is None else grad for grad, of in each]
            outputs = (node.apply if is_python else node)(*grads)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            for (following, position), grad in zip(node.next_functions, outputs, strict=False):
                if following is not None and grad is not None:
                    add(inputs, following, position, grad)
    return ()


def add(inputs: dict[Node, dict[int, torch.Tensor]], node: Node, position: int, grad: torch.Tensor) -> None:
    given = inputs.setdefault(node, {})
    grad = grad.sum_to_size(node._input_metadata[position].shape)  # of what the forward pass has broadcast
    given[position] = given[position] + grad if position in given else grad


def in_order(roots: Sequence[Node]) -> list[Node]:
    """Return the nodes of a graph, each before those that it feeds its gradients."""
    done: list[Node] = []
    seen: set[Node] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions if following is not None]
    return done[::-1]
