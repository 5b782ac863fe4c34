"""The dense step as CUDA graphs: full batches are copied into static tensors, and one launch replays the whole step.

Every shape has a graph of its own: batches of one size, sequences padded to a power of two. Any other batch, such as
the last one of a stream, is learned without a graph.
"""

# N samples, S sequence features, T longest sequence, D dimension
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from springtide.app.training.device.graph_capture import GraphCapture
from springtide.app.training.step.dense_step import (
    NUM_ROW_INPUTS,
    DeviceStep,
    StepOutcome,
    backward_into_rows,
    row_inputs_by_name,
)
from springtide_client.model.inputs import ModelInputs

MAX_GRAPHS = 6  # each keeps the memory of a step
WARMUP_RUNS = 3

logger = logging.getLogger(__name__)


class GraphOutput(NamedTuple):
    """A step's outcome, and the gradient of each row input that has one."""

    outcome: StepOutcome
    grads: list[Tensor | None]


class CapturedStep(NamedTuple):
    """A captured step and the tensors that it reads and writes."""

    inputs: ModelInputs
    labels_NL: Tensor
    weights_N: Tensor
    groups_NG: Tensor | None
    output: GraphOutput
    replay: Callable[[], None]


class CudaGraphStep:
    """A DeviceStep that replays full batches; its outcome is valid until the next call."""

    def __init__(self, step: DeviceStep, capture: GraphCapture, batch_size: int) -> None:
        self.step, self.capture, self.batch_size = step, capture, batch_size
        self.num_replays = 0
        self._graphs: dict[Any, CapturedStep | None] = {}  # by shape; None: it cannot be captured

    def __call__(
        self,
        inputs: ModelInputs,
        labels_NL: Tensor,
        weights_N: Tensor,
        *,
        bfloat16: bool,
        groups_NG: Tensor | None = None,
    ) -> StepOutcome:
        captured = self._graph_for(inputs, labels_NL, weights_N, groups_NG, bfloat16=bfloat16)
        if captured is None:
            return self.step(inputs, labels_NL, weights_N, bfloat16=bfloat16, groups_NG=groups_NG)
        copy_into_static(captured.inputs, inputs)
        captured.labels_NL.copy_(labels_NL)
        captured.weights_N.copy_(weights_N)
        if captured.groups_NG is not None:
            assert groups_NG is not None
            captured.groups_NG.copy_(groups_NG)
        captured.replay()
        self.num_replays += 1
        longest = inputs.sequence.shape[2]
        grads = [g if g is None or g.dim() < 4 else g[:, :, :longest] for g in captured.output.grads]
        backward_into_rows(inputs, grads)
        return captured.output.outcome

    def _graph_for(
        self,
        inputs: ModelInputs,
        labels_NL: Tensor,
        weights_N: Tensor,
        groups_NG: Tensor | None,
        *,
        bfloat16: bool,
    ) -> CapturedStep | None:
        if len(labels_NL) != self.batch_size:
            return None
        longest = padded_length(inputs.sequence.shape[2])
        key = (longest, bfloat16, self.step.update.form, tuple(rows.requires_grad for rows in inputs[:NUM_ROW_INPUTS]))
        if key not in self._graphs:
            if len(self._graphs) >= MAX_GRAPHS:
                return None
            self._graphs[key] = self._capture(inputs, labels_NL, weights_N, groups_NG, longest, bfloat16=bfloat16)
        return self._graphs[key]

    def _capture(
        self,
        inputs: ModelInputs,
        labels_NL: Tensor,
        weights_N: Tensor,
        groups_NG: Tensor | None,
        longest: int,
        *,
        bfloat16: bool,
    ) -> CapturedStep | None:
        static = static_inputs(inputs, longest)
        copy_into_static(static, inputs)
        labels, weights = labels_NL.clone(), weights_N.clone()
        groups = None if groups_NG is None else groups_NG.clone()
        leaves = static[:NUM_ROW_INPUTS]

        def work() -> GraphOutput:
            for leaf in leaves:
                leaf.grad = None
            outcome = self.step.learn(static, labels, weights, bfloat16=bfloat16, groups_NG=groups)
            return GraphOutput(outcome, [leaf.grad for leaf in leaves])

        updated = self._updated_tensors()
        before = [tensor.detach().clone() for tensor in updated]
        try:
            output, replay = self.capture(work, WARMUP_RUNS)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            logger.warning("the dense step cannot be captured and runs without a CUDA graph", extra={"reason": reason})
            return None
        finally:  # warming up must not count as learning
            with torch.no_grad():
                for tensor, old in zip(updated, before, strict=True):
                    tensor.copy_(old)
        return CapturedStep(static, labels, weights, groups, output, replay)

    def _updated_tensors(self) -> list[Tensor]:
        """Return everything that a step updates: parameters, statistics, optimizer state, averages."""
        model = self.step.model
        return [*model.parameters(), *model.buffers(), *self.step.update.prepare()]


def padded_length(longest: int) -> int:
    """Return the length that sequences are padded to: the next power of two."""
    return 1 << (longest - 1).bit_length()


def static_inputs(inputs: ModelInputs, longest: int) -> ModelInputs:
    """Return tensors that batches of this shape can be copied into, with sequences of this length."""
    num, num_sequences, _, dim = inputs.sequence.shape
    shapes = {"sequence": (num, num_sequences, longest, dim)}
    static = {name: tensor.new_zeros(shapes.get(name, tensor.shape)) for name, tensor in inputs._asdict().items()}
    leaves = zip(static.values(), inputs[:NUM_ROW_INPUTS], strict=False)
    return ModelInputs(
        **static | row_inputs_by_name([leaf.requires_grad_(rows.requires_grad) for leaf, rows in leaves])
    )


def copy_into_static(static: ModelInputs, inputs: ModelInputs) -> None:
    """Copy a batch, with zeros after its sequences."""
    with torch.no_grad():
        for name, to, tensor in zip(ModelInputs._fields, static, inputs, strict=True):
            if name == "sequence":
                to[:, :, : tensor.shape[2]].copy_(tensor)
                to[:, :, tensor.shape[2] :].zero_()
            else:
                to.copy_(tensor)
