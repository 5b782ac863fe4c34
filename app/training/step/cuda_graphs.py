"""The dense step as CUDA graphs: full batches are copied into static tensors, and one launch replays the whole step.

Every shape has a graph of its own: batches of one size, sequences padded to a power of two. Any other batch, such as
the last one of a stream, is learned without a graph.
"""

# N samples, S sequence features, T longest sequence, D dimension
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from springtide.app.training.device import GraphCapture
from springtide.app.training.step.learning_step import LearningStep, LossObjective, StepColumns, StepOutcome
from springtide_client.model.inputs import ModelInputs

NUM_ROW_INPUTS = 3  # of a model's inputs: categorical, pooled, sequence
MAX_GRAPHS = 6  # each keeps the memory of a step
WARMUP_RUNS = 3

logger = logging.getLogger(__name__)


class GraphOutput(NamedTuple):
    """A step's outcome, and the gradient of each row input that has one."""

    outcome: StepOutcome
    grads: list[Tensor | None]


class CapturedStep(NamedTuple):
    """A captured step and the tensors that it reads and writes."""

    columns: StepColumns
    output: GraphOutput
    replay: Callable[[], None]


class CudaGraphStep:
    """Replays a step of full batches, always of one objective; its outcome is valid until the next call."""

    def __init__(self, step: LearningStep, capture: GraphCapture, batch_size: int) -> None:
        self.step, self.capture, self.batch_size = step, capture, batch_size
        self.num_replays = 0
        self._graphs: dict[Any, CapturedStep | None] = {}  # by shape; None: it cannot be captured

    def __call__(self, objective: LossObjective, columns: StepColumns, *, bfloat16: bool) -> StepOutcome:
        captured = self._graph_for(objective, columns, bfloat16=bfloat16)
        if captured is None:
            return self.step(objective, columns, bfloat16=bfloat16)
        copy_into_static(captured.columns, columns)
        captured.replay()
        self.num_replays += 1
        longest = columns.inputs.sequence.shape[2]
        grads = [g if g is None or g.dim() < 4 else g[:, :, :longest] for g in captured.output.grads]
        backward_into_rows(columns.inputs, grads)
        return captured.output.outcome

    def _graph_for(self, objective: LossObjective, columns: StepColumns, *, bfloat16: bool) -> CapturedStep | None:
        if len(columns.labels_NL) != self.batch_size:
            return None
        inputs = columns.inputs
        longest = padded_length(inputs.sequence.shape[2])
        key = (longest, bfloat16, self.step.update.form, tuple(rows.requires_grad for rows in inputs[:NUM_ROW_INPUTS]))
        if key not in self._graphs:
            if len(self._graphs) >= MAX_GRAPHS:
                return None
            self._graphs[key] = self._capture(objective, columns, longest, bfloat16=bfloat16)
        return self._graphs[key]

    def _capture(
        self, objective: LossObjective, columns: StepColumns, longest: int, *, bfloat16: bool
    ) -> CapturedStep | None:
        static = StepColumns(
            static_inputs(columns.inputs, longest),
            *(None if column is None else torch.zeros_like(column) for column in columns[1:]),  # type: ignore[arg-type]
        )
        copy_into_static(static, columns)
        leaves = static.inputs[:NUM_ROW_INPUTS]

        def work() -> GraphOutput:
            for leaf in leaves:
                leaf.grad = None
            outcome = self.step(objective, static, bfloat16=bfloat16)
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
        return CapturedStep(static, output, replay)

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
    for rows, leaf in zip(inputs[:NUM_ROW_INPUTS], static.values(), strict=False):
        leaf.requires_grad_(rows.requires_grad)
    return ModelInputs(**static)


def copy_into_static(static: StepColumns, columns: StepColumns) -> None:
    """Copy a batch, with zeros after its sequences."""
    with torch.no_grad():
        for name, to, tensor in zip(ModelInputs._fields, static.inputs, columns.inputs, strict=True):
            if name == "sequence":
                to[:, :, : tensor.shape[2]].copy_(tensor)
                to[:, :, tensor.shape[2] :].zero_()
            else:
                to.copy_(tensor)
        for to_column, column in zip(static[1:], columns[1:], strict=True):
            if isinstance(to_column, Tensor) and isinstance(column, Tensor):
                to_column.copy_(column)


def backward_into_rows(inputs: ModelInputs, grads: Sequence[Tensor | None]) -> None:
    """Continue the backward pass from the row inputs to the table's rows."""
    pairs = [(rows, g) for rows, g in zip(inputs, grads, strict=False) if rows.requires_grad and g is not None]
    if pairs:
        torch.autograd.backward([rows for rows, _ in pairs], [g for _, g in pairs])
