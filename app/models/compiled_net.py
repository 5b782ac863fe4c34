"""A built-in net as a program on the CPU: one compiled call scores, and another finds the gradients.

Worth it where a batch is so small that calling torch's operators costs more than what they compute.
"""

# N samples, W columns, R numbers of rows (fields times dimension), D dimension, L labels, P parameters and statistics
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from springtide.app.models.interface import DenseModel
from springtide.app.models.trace import TracedNet, TraceError, trace
from springtide.kernels.cpu.net.run import CHUNK, backward, forward
from springtide_client.model.inputs import ModelInputs

Float32Array = npt.NDArray[np.float32]

# `num_flops` of all samples of a batch up to which the program is the faster one: see deploy/docs/decisions/training.md
MOST_FLOPS = 30_000_000
MOST_NUMBERS = 1 << 23  # in the columns of a batch: 32 MiB
SHIPPED = "springtide.app.models."


class CompiledNet:
    """Parameters and the statistics that the net reads move into one array; the module's tensors are views of it.

    A model has one program: a second one would take the tensors from the first.
    """

    def __init__(self, traced: TracedNet) -> None:
        self.program, self._traced = traced.program, traced
        num_learned = sum(one.numel() for one in traced.parameters)
        self.flat_P = torch.empty(num_learned)
        self.gradient_P = torch.zeros(self.program.num_parameters)
        self._gradients: list[tuple[Tensor, Tensor]] = []  # of each parameter, a view of `gradient_P`
        start = 0
        for one in traced.parameters:
            stop = start + one.numel()
            view = self.flat_P[start:stop].view(one.shape)
            view.copy_(one.detach())
            one.data = view
            if stop <= self.program.num_parameters:
                self._gradients.append((one, self.gradient_P[start:stop].view(one.shape)))
            start = stop
        self._parameters_P, self._gradients_P = self.flat_P.numpy(), self.gradient_P.numpy()
        spec, first = traced.spec, int(traced.outputs_L[0])
        self._widths = spec.num_categorical * spec.dim, (spec.num_pooled + spec.num_sequence) * spec.dim, spec.num_dense
        self._outputs = slice(first, first + spec.num_labels)
        self._scratch_CW = np.zeros((CHUNK, traced.num_columns), np.float32)
        self._columns_NW = np.zeros((0, traced.num_columns), np.float32)

    @staticmethod
    def of(model: nn.Module) -> "CompiledNet":
        """Return the program of a built-in net. TraceError with the reason if the net must learn by autograd."""
        # a user's own net may draw random numbers, or take branches that one call does not show
        if not isinstance(model, DenseModel) or not type(model).__module__.startswith(SHIPPED):
            raise TraceError("the net is none of the built-in ones")
        if any(one.dtype != torch.float32 or one.device.type != "cpu" for one in model.parameters()):
            raise TraceError("parameters of the net are not float32 on the CPU")
        traced = trace(model)
        if traced.num_rows == 0:
            raise TraceError("the net reads no rows of tables")
        return CompiledNet(traced)

    @property
    def max_samples(self) -> int:
        """The most samples of a batch that pays. A function of the net alone: after a restart it is the same."""
        return min(MOST_FLOPS // max(1, self.program.num_flops), MOST_NUMBERS // self._traced.num_columns)

    def forward(self, inputs: ModelInputs) -> Float32Array:
        """Return logits, or what the wide part's are added to, float32 (N, L).

        `inputs.pooled` has a vector for each list, of a sequence the mean of its rows.
        """
        num, program = len(inputs.dense), self.program
        if num > len(self._columns_NW):
            self._columns_NW = np.zeros((2 * num, self._columns_NW.shape[1]), np.float32)
        columns_NW, start = self._columns_NW[:num], 0
        for part, width in zip((inputs.categorical, inputs.pooled, inputs.dense), self._widths, strict=True):
            if width:
                columns_NW[:, start : start + width] = np.asarray(part).reshape(num, width)
                start += width
        forward(program.instructions_IO, program.indices_X, program.constants_A, self._parameters_P, columns_NW)
        return columns_NW[:, self._outputs].copy()

    def backward(self, errors_NL: Float32Array, rows_NR: Float32Array) -> Tensor:
        """Leave the gradients of the newest `forward` in the parameters, and the rows' in `rows_NR`.

        Returns the norm of the parameters' gradients.
        """
        program = self.program
        backward(
            program.instructions_IO,
            program.indices_X,
            program.constants_A,
            program.needs_gradient_W,
            self._parameters_P,
            self._columns_NW[: len(errors_NL)],
            errors_NL,
            self._traced.outputs_L,
            self._gradients_P,
            self._scratch_CW,
            rows_NR,
        )
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        norm: Tensor = torch.linalg.vector_norm(self.gradient_P)
        return norm
