"""Traces the forward pass of a built-in net into a program for the CPU, which is run forward and backward.

The module is called once on a few samples while torch reports each function that runs. Beside each tensor is kept which
column of which sample each of its numbers is. A function that only rearranges numbers (view, slice, cat) is applied to
these columns and adds no instruction; where a layer needs inputs that are not in adjacent columns, a copy is added.
"""

# N samples, W columns of a sample
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from springtide.app.models.calibrated_model import CalibratedModel, Calibration
from springtide.app.models.interface import DenseModel, ModelSpec
from springtide.app.models.layers import DenseFeatureNormalizer, FieldProjection
from springtide.app.models.program_builder import ELEMENTWISE_PAIRS, ProgramBuilder
from springtide.kernels.cpu.net import program as ops
from springtide.kernels.cpu.net.program import NetProgram

NUM_SAMPLES = 3  # of the traced call
COLUMN_BITS = 32  # a place is a sample's number and, in the lower bits, its column

# functions that only rearrange numbers: the same function is applied to the numbers' places
SHAPES = {
    "flatten",
    "view",
    "reshape",
    "unflatten",
    "unsqueeze",
    "squeeze",
    "transpose",
    "permute",
    "movedim",
    "t",
    "T",
}
PARTS = {"__getitem__", "gather", "index_select", "narrow", "select", "unbind", "split", "chunk"}
COPIES = {"cat", "stack", "expand", "expand_as", "broadcast_to", "repeat", "contiguous"}
MOVES = SHAPES | PARTS | COPIES
SAME = {"float", "to", "type_as", "clone"}  # a copy of the same numbers
BINARY = {"add": ops.ADD, "sub": ops.SUBTRACT, "mul": ops.MULTIPLY}
QUOTIENTS = {"__truediv__", "div", "true_divide"}
UNARY = {"relu": ops.RELU, "relu_": ops.RELU, "sigmoid": ops.SIGMOID, "tanh": ops.TANH}
REFLECTED = {"__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub", "rsub": "rsub"}
NAMES = {"__add__": "add", "__sub__": "sub", "__mul__": "mul", "multiply": "mul", "subtract": "sub", "concat": "cat"}


class TraceError(Exception):
    """The net does something that a program cannot; the text says what."""


class TracedNet(NamedTuple):
    """A program, and the tensors and columns that it works on."""

    spec: ModelSpec
    program: NetProgram
    parameters: list[Tensor]  # those it uses, in their order: learned ones first, then statistics
    num_rows: int  # the columns that are rows of tables: the first
    num_columns: int
    outputs_L: np.ndarray[Any, np.dtype[np.int64]]  # the columns of the logits


def trace(model: DenseModel) -> TracedNet:
    """Trace one call of a net. TraceError if something in it has no instruction."""
    spec = model.spec
    if spec.num_sequence and getattr(type(model), "fields", None) is not CalibratedModel.fields:
        raise TraceError("the net reads sequences element by element")
    if any(isinstance(module, FieldProjection) and module.widths for module in model.modules()):
        raise TraceError("the net maps rows of several widths to one")
    recorder = Recorder(model)
    inputs = [
        recorder.input((spec.num_categorical, spec.dim), is_row=True),
        recorder.input((spec.num_pooled, spec.dim), is_row=True),
        recorder.input((spec.num_sequence, 1, spec.dim), is_row=True),  # its mean, as of a list with one element
        recorder.lengths(spec.num_sequence),
        recorder.input((spec.num_dense,), is_row=False),
    ]
    with ExitStack() as hooks, torch.no_grad():
        for module in model.modules():
            if isinstance(module, (DenseFeatureNormalizer, Calibration)):
                hooks.callback(module.register_forward_pre_hook(recorder.enter_leaf).remove)
                hooks.callback(module.register_forward_hook(recorder.leave_leaf).remove)
        with recorder:
            logits_NL = model(*inputs)
    return recorder.finish(logits_NL)


class Recorder(TorchFunctionMode):
    """Turns each torch function that is called into instructions. Tensors are known by identity, so all are kept."""

    def __init__(self, model: DenseModel) -> None:
        super().__init__()
        self._spec = model.spec
        self._builder = ProgramBuilder(model.parameters())
        self._places: dict[int, Tensor] = {}  # of the numbers of a tensor
        self._alive: list[Tensor] = []
        self._lengths: dict[int, Tensor] = {}  # what follows from lengths of sequences
        self._in_leaf = False
        self._num_rows = 0

    def input(self, shape: tuple[int, ...], *, is_row: bool) -> Tensor:
        """Return a tensor of the next columns."""
        out = self._builder.add_columns(int(np.prod(shape)), needs_gradient=is_row)
        self._num_rows += int(np.prod(shape)) * is_row
        tensor = torch.rand(NUM_SAMPLES, *shape, generator=torch.Generator().manual_seed(0))
        self._remember(tensor, out)
        return tensor

    def lengths(self, num_sequences: int) -> Tensor:
        """Return lengths of sequences, all 1, so that dividing by them changes nothing."""
        tensor = torch.ones(NUM_SAMPLES, num_sequences, dtype=torch.int64)
        self._lengths[id(tensor)] = tensor
        return tensor

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and any(id(one) in self._lengths for one in _tensors((*args, *kwargs.values()))):
            self._lengths[id(result)] = result
        if not self._in_leaf and any(self._is_known(one) for one in _tensors((*args, *kwargs.values()))):
            self._record(func, args, kwargs, result)
        return result

    def enter_leaf(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a module that is one instruction."""
        self._in_leaf = True

    def leave_leaf(self, module: nn.Module, args: tuple[Any, ...], result: Tensor) -> None:
        """After a module that is one instruction."""
        self._in_leaf = False
        with torch._C.DisableTorchFunction():
            if isinstance(module, DenseFeatureNormalizer):
                source, width = self._contiguous(args[0])
                out = self._builder.add_columns(2 * width, needs_gradient=False)
                tensors = [self._builder.add_tensor(one) for one in (module.mean_F, module.variance_F, module.count_F)]
                self._builder.emit(ops.STANDARDIZE, source, width, out, *tensors)
            else:
                assert isinstance(module, Calibration)
                source, width = self._contiguous_places(self._expanded(args[0], result))
                out = self._builder.add_columns(width, needs_gradient=True)
                tensors = [self._builder.add_tensor(one) for one in (module.bias_L, module.rate_L, module.trust_L)]
                self._builder.emit(ops.CALIBRATE, source, width, out, *tensors)
            self._remember(result, out)

    def finish(self, logits_NL: Tensor) -> TracedNet:
        """Return the program."""
        if not self._is_known(logits_NL):
            raise TraceError("the logits do not follow from the inputs")
        first, width = self._contiguous(logits_NL)
        outputs_L = np.arange(first, first + width)
        program, parameters = self._builder.build(outputs_L)
        return TracedNet(self._spec, program, parameters, self._num_rows, len(program.needs_gradient_W), outputs_L)

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        name = NAMES.get(name := getattr(func, "__name__", str(func)), name)
        if name == "__setitem__":
            raise TraceError("an assignment into a tensor has no instruction")
        if not any(True for _ in _tensors([result])):
            return  # a shape, a dtype, a device
        try:
            self._write(name, func, args, kwargs, result)
        except TypeError as error:
            raise TraceError(f"{name} with these arguments has no instruction: {error}") from None

    def _write(self, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Write down one function that has an instruction."""
        with torch._C.DisableTorchFunction():
            if name in SAME and result.dtype == torch.float32:
                self._remember_places(result, self._require(args[0]))
            elif name in QUOTIENTS and id(args[1]) in self._lengths and bool((args[1] == 1).all()):
                self._remember_places(result, self._require(args[0]))  # a mean of one element
            elif name in MOVES:
                self._move(func, args, kwargs, result)
            elif name == "linear":
                self._linear(result, *args, **kwargs)
            elif name in UNARY:
                source, width = self._contiguous(args[0])
                self._result(result, UNARY[name], source, width)
            elif name in BINARY or name in REFLECTED:
                self._binary(name, result, *args, **kwargs)
            elif name in ("square",):
                source, width = self._contiguous(args[0])
                self._result(result, ops.MULTIPLY, source, width, other=source)
            elif name in ("sum", "mean"):
                self._sum(name, result, *args, **kwargs)
            elif name in ("bmm", "matmul", "__matmul__"):
                self._products(result, *args)
            elif name == "softmax":
                self._softmax(result, args[0], kwargs.get("dim", args[1] if len(args) > 1 else None))
            else:
                raise TraceError(f"{name} has no instruction")

    def _move(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        places = func(*self._with_places(args), **dict(zip(kwargs, self._with_places(kwargs.values()), strict=True)))
        for one, moved in zip(_tensors([result]), _tensors([places]), strict=True):
            self._remember_places(one, moved)

    def _with_places(self, values: Any) -> list[Any]:
        """Return arguments with tensors replaced by the places of their numbers."""
        replaced: list[Any] = []
        for value in values:
            if isinstance(value, (list, tuple)) and any(isinstance(one, Tensor) for one in value):
                replaced.append([self._require(one) for one in value])
            else:
                replaced.append(self._places.get(id(value), value) if isinstance(value, Tensor) else value)
        return replaced

    def _require(self, tensor: Tensor) -> Tensor:
        if not self._is_known(tensor):
            raise TraceError("a constant is joined with what follows from the inputs")
        return self._places[id(tensor)]

    def _linear(self, result: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        if not self._is_known(x) or not self._builder.is_learned(weight):
            raise TraceError("linear of something else than inputs and a parameter")
        num_out, num_in = weight.shape
        source, width = self._contiguous(x)
        num_vectors = width // num_in if num_in else 1
        out = self._builder.add_columns(num_vectors * num_out, needs_gradient=True)
        shift = -1 if bias is None else self._builder.add_tensor(bias)
        for v in range(num_vectors):
            self._builder.emit(
                ops.LINEAR,
                source + v * num_in,
                num_in,
                out + v * num_out,
                num_out,
                self._builder.add_tensor(weight),
                shift,
            )
        self._remember(result, out)

    def _binary(self, name: str, result: Tensor, x: Any, y: Any, *, alpha: float = 1.0) -> None:
        if name in REFLECTED:
            name, x, y = REFLECTED[name], y, x
            if name == "rsub":
                name = "sub"
        if alpha != 1.0:
            raise TraceError(f"{name} with alpha has no instruction")
        numbers = [one for one in (x, y) if isinstance(one, (int, float))]
        if numbers:
            self._scale(name, result, x, y)
            return
        source, width = self._contiguous_places(self._expanded(x, result))
        other, _ = self._contiguous_places(self._expanded(y, result))
        self._result(result, BINARY[name], source, width, other=other)

    def _scale(self, name: str, result: Tensor, x: Any, y: Any) -> None:
        """An operation with a number."""
        if isinstance(y, (int, float)):
            source, width = self._contiguous(x)
            factor, shift = {"add": (1.0, y), "sub": (1.0, -y), "mul": (y, 0.0)}[name]
        else:
            source, width = self._contiguous(y)
            factor, shift = {"add": (1.0, x), "sub": (-1.0, x), "mul": (x, 0.0)}[name]
        self._result(result, ops.SCALE, source, width, other=self._builder.add_constants(factor, shift))

    def _sum(
        self, name: str, result: Tensor, x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False
    ) -> None:
        if isinstance(dim, (list, tuple)) and len(dim) == 1:
            (dim,) = dim
        if not isinstance(dim, int) or dim % x.dim() == 0:
            raise TraceError(f"{name} over {dim} has no instruction")
        dim %= x.dim()
        shape = x.shape[1:]
        outer, num, inner = int(np.prod(shape[: dim - 1])), shape[dim - 1], int(np.prod(shape[dim:]))
        source, _ = self._contiguous(x)
        needs = self._builder.needs_gradient(source, outer * num * inner)
        out = self._builder.add_columns(outer * inner, needs_gradient=needs)
        self._builder.emit(ops.SUM, source, outer, out, num, inner)
        if name == "mean":
            at, summed = self._builder.add_constants(1.0 / num, 0.0), out
            out = self._builder.add_columns(outer * inner, needs_gradient=needs)
            self._builder.emit(ops.SCALE, summed, outer * inner, out, at)
        self._remember(result, out)

    def _products(self, result: Tensor, x_NVD: Tensor, y_NDE: Tensor) -> None:
        """The dot products of all vectors of one with all of another."""
        if x_NVD.dim() != 3 or y_NDE.dim() != 3 or not self._is_known(x_NVD) or not self._is_known(y_NDE):
            raise TraceError("a product of matrices that are not inputs has no instruction")
        (_, num, dim), num_others = x_NVD.shape, y_NDE.shape[2]
        source, _ = self._contiguous(x_NVD)
        other, _ = self._contiguous_places(self._places[id(y_NDE)].transpose(1, 2))
        needs = self._builder.needs_gradient(source, num * dim) or self._builder.needs_gradient(other, 1)
        out = self._builder.add_columns(num * num_others, needs_gradient=needs)
        pairs = [
            (source + v * dim, other + e * dim, out + v * num_others + e) for v in range(num) for e in range(num_others)
        ]
        at = self._builder.add_indices(chain.from_iterable(pairs))
        self._builder.emit(ops.PRODUCTS, 0, num * num_others, out, at, dim)
        self._remember(result, out)

    def _softmax(self, result: Tensor, x: Tensor, dim: int | None) -> None:
        if dim is None or dim % x.dim() != x.dim() - 1 or x.dim() < 2:
            raise TraceError("a softmax over another than the last axis has no instruction")
        source, width = self._contiguous(x)
        self._result(result, ops.SOFTMAX, source, width // x.shape[-1], other=x.shape[-1], size=width)

    # tensors and columns

    def _expanded(self, value: Any, like: Tensor) -> Tensor:
        """Return the places of a value's numbers as many times as an operation with another needs them."""
        if not isinstance(value, Tensor):
            raise TraceError(f"an operation with {type(value).__name__} has no instruction")
        if not self._is_known(value):
            if not self._builder.is_learned(value):
                raise TraceError("an operation with a constant tensor has no instruction")
            out = self._builder.add_columns(value.numel(), needs_gradient=True)
            self._builder.emit(ops.PARAMETER, self._builder.add_tensor(value), value.numel(), out)
            places = self._new_places((NUM_SAMPLES, *value.shape), out)
            return places.reshape(NUM_SAMPLES, *[1] * (like.dim() - 1 - value.dim()), *value.shape).expand(like.shape)
        return self._places[id(value)].expand(like.shape)

    def _contiguous(self, tensor: Tensor) -> tuple[int, int]:
        """Return the first column and the number of columns of a tensor's numbers, copied if they are apart."""
        if not self._is_known(tensor):
            raise TraceError("something that does not follow from the inputs is an operand")
        return self._contiguous_places(self._places[id(tensor)])

    def _contiguous_places(self, places: Tensor) -> tuple[int, int]:
        """Return the same, given the places of the numbers."""
        if places.shape[0] != NUM_SAMPLES:
            raise TraceError("the first axis is not that of samples")
        flat = places.reshape(NUM_SAMPLES, -1).numpy()
        columns_NW = flat - (np.arange(NUM_SAMPLES)[:, None] << COLUMN_BITS)
        if (columns_NW < 0).any() or (columns_NW != columns_NW[0]).any():
            raise TraceError("samples are mixed")
        return self._builder.contiguous(columns_NW[0])

    def _result(
        self, result: Tensor, op: int, source: int, width: int, *, other: int = 0, size: int | None = None
    ) -> None:
        """An operation whose result has as many numbers as its operand."""
        size = width if size is None else size
        needs = self._builder.needs_gradient(source, size) or (
            op in ELEMENTWISE_PAIRS and self._builder.needs_gradient(other, size)
        )
        out = self._builder.add_columns(size, needs_gradient=needs)
        self._builder.emit(op, source, width, out, other)
        self._remember(result, out)

    def _remember(self, tensor: Tensor, out: int) -> None:
        self._remember_places(tensor, self._new_places(tensor.shape, out))

    def _remember_places(self, tensor: Tensor, places: Tensor) -> None:
        if tensor.shape != places.shape:
            raise TraceError("a result has another shape than its numbers' places")
        self._places[id(tensor)] = places
        self._alive.append(tensor)

    def _new_places(self, shape: Sequence[int], out: int) -> Tensor:
        width = int(np.prod(shape[1:]))
        columns = torch.arange(out, out + width)
        samples = torch.arange(shape[0]) << COLUMN_BITS
        return (samples[:, None] + columns).reshape(tuple(shape))

    def _is_known(self, value: Any) -> bool:
        return isinstance(value, Tensor) and id(value) in self._places


def _tensors(values: Any) -> Iterator[Tensor]:
    """All tensors among values and lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
