"""The dense step as CUDA graphs: full batches are copied into standing tensors and one launch replays everything.

Every shape has a graph of its own: batches of one size, sequences padded to a power of two. What does not fit, such as
the last batch of a stream, is learned without a graph.
"""

# N samples, S sequence features, T longest sequence, D dimension
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from springtide_client.model.inputs import ModelInputs
from torch import Tensor

from app.training.step.dense_step import NUM_ROW_INPUTS, DeviceStep, StepOutcome, backward_into_rows, row_inputs_by_name

MAX_GRAPHS = 6  # each keeps the memory of a step
WARMUP_RUNS = 3

logger = logging.getLogger(__name__)


class GraphOutput(NamedTuple):
    """What a step gives: its outcome, and a gradient for each kind of rows that has one."""

    outcome: StepOutcome
    grads: list[Tensor | None]


class GraphCapture(Protocol):
    """Turns work into something that is played again."""

    def __call__(self, work: Callable[[], GraphOutput], warm_ups: int) -> tuple[GraphOutput, Callable[[], None]]:
        """Does the work a few times, then captures it: what it gives, which each play writes anew, and how to play."""
        ...


def capture_cuda_graph(work: Callable[[], GraphOutput], warm_ups: int) -> tuple[GraphOutput, Callable[[], None]]:
    """As a CUDA graph with memory of its own. RuntimeError where the work asks for something a graph cannot hold."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_ups):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads go on
        result = work()
    return result, graph.replay


class CapturedStep(NamedTuple):
    """A captured step and the tensors that it reads and writes."""

    inputs: ModelInputs
    labels_NL: Tensor
    weights_N: Tensor
    result: GraphOutput
    replay: Callable[[], None]


class CudaGraphStep:
    """A DeviceStep whose full batches are played; what it gives stands until the next call."""

    def __init__(self, step: DeviceStep, capture: GraphCapture, batch_size: int) -> None:
        self.step, self.capture, self.batch_size = step, capture, batch_size
        self.num_replays = 0
        self._graphs: dict[Any, CapturedStep | None] = {}

    def __call__(self, inputs: ModelInputs, labels_NL: Tensor, weights_N: Tensor, *, bfloat16: bool) -> StepOutcome:
        played = self._graph(inputs, labels_NL, weights_N, bfloat16=bfloat16)
        if played is None:
            return self.step(inputs, labels_NL, weights_N, bfloat16=bfloat16)
        copy_into_static(played.inputs, inputs)
        played.labels_NL.copy_(labels_NL)
        played.weights_N.copy_(weights_N)
        played.replay()
        self.num_replays += 1
        longest = inputs.sequence.shape[2]
        grads = [g if g is None or g.dim() < 4 else g[:, :, :longest] for g in played.result.grads]
        backward_into_rows(inputs, grads)
        return played.result.outcome

    def _graph(
        self, inputs: ModelInputs, labels_NL: Tensor, weights_N: Tensor, *, bfloat16: bool
    ) -> CapturedStep | None:
        if len(labels_NL) != self.batch_size:
            return None
        longest = padded_length(inputs.sequence.shape[2])
        key = (longest, bfloat16, tuple(rows.requires_grad for rows in inputs[:NUM_ROW_INPUTS]))
        if key not in self._graphs:
            if len(self._graphs) >= MAX_GRAPHS:
                return None
            self._graphs[key] = self._captured(inputs, labels_NL, weights_N, longest, bfloat16=bfloat16)
        return self._graphs[key]

    def _captured(
        self, inputs: ModelInputs, labels_NL: Tensor, weights_N: Tensor, longest: int, *, bfloat16: bool
    ) -> CapturedStep | None:
        standing = static_inputs(inputs, longest)
        copy_into_static(standing, inputs)
        labels, weights = labels_NL.clone(), weights_N.clone()
        leaves = standing[:NUM_ROW_INPUTS]

        def work() -> GraphOutput:
            for leaf in leaves:
                leaf.grad = None
            outcome = self.step.learn(standing, labels, weights, bfloat16=bfloat16)
            return GraphOutput(outcome, [leaf.grad for leaf in leaves])

        moved = self._moved()
        before = [tensor.detach().clone() for tensor in moved]
        try:
            result, play = self.capture(work, WARMUP_RUNS)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            logger.warning("the dense step cannot be captured and runs without a graph", extra={"reason": reason})
            return None
        finally:  # warming up is no learning
            with torch.no_grad():
                for tensor, old in zip(moved, before, strict=True):
                    tensor.copy_(old)
        return CapturedStep(standing, labels, weights, result, play)

    def _moved(self) -> list[Tensor]:
        """All that a step moves."""
        model, optimizer = self.step.model, self.step.optimizer
        optimizer.prepare()
        states = [tensor for state in optimizer.state.values() for tensor in state.values()]
        return [*model.parameters(), *model.buffers(), *states]


def padded_length(longest: int) -> int:
    """To how many places sequences are padded: the next power of two."""
    return 1 << (longest - 1).bit_length()


def static_inputs(inputs: ModelInputs, longest: int) -> ModelInputs:
    """Tensors that batches of this shape are copied into, sequences padded to so many places."""
    num, num_sequences, _, dim = inputs.sequence.shape
    shapes = {"sequence": (num, num_sequences, longest, dim)}
    standing = {name: tensor.new_zeros(shapes.get(name, tensor.shape)) for name, tensor in inputs._asdict().items()}
    leaves = zip(standing.values(), inputs[:NUM_ROW_INPUTS], strict=False)
    return ModelInputs(
        **standing | row_inputs_by_name([leaf.requires_grad_(rows.requires_grad) for leaf, rows in leaves])
    )


def copy_into_static(standing: ModelInputs, inputs: ModelInputs) -> None:
    """A batch into its standing tensors, zeros behind its sequences."""
    with torch.no_grad():
        for name, to, tensor in zip(ModelInputs._fields, standing, inputs, strict=True):
            if name == "sequence":
                to[:, :, : tensor.shape[2]].copy_(tensor)
                to[:, :, tensor.shape[2] :].zero_()
            else:
                to.copy_(tensor)
