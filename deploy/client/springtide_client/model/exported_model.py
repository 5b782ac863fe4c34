"""The dense model: an exported program that is loaded once and called with the parameters of any version.

Imports torch, so it is imported when the first model is loaded, not with the package.
"""

# N samples, L labels
import io
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from springtide_client.array_types import Float32Array
from springtide_client.errors import LogError
from springtide_client.log.base import ADVICE
from springtide_client.model.archive_check import check_archive
from springtide_client.model.inputs import ModelInputs

# torch.export.load keeps its state in a global and fails when two threads are in it
_LOAD_LOCK = threading.Lock()


@dataclass(frozen=True)
class ModelParameters:
    """The parameters and buffers of one version: the leading arguments of the program, in its order."""

    tensors: tuple[torch.Tensor, ...]

    @cached_property
    def num_bytes(self) -> int:
        """The memory they hold."""
        return sum(tensor.nbytes for tensor in self.tensors)


class ExportedModel:
    """A program without state of its own: threads may call it with different parameters at the same time."""

    def __init__(self, archive: bytes) -> None:
        """Load a torch.export archive; LogError unless it holds only plain tensors and plain operators."""
        check_archive(archive)
        try:
            with _LOAD_LOCK:
                program = torch.export.load(io.BytesIO(archive))
        except Exception as error:  # torch documents no exceptions
            raise LogError(f"the model's archive cannot be loaded by torch {torch.__version__}: {error}") from error
        signature = program.graph_signature
        if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
            raise LogError("the model's program writes its buffers: export it in eval mode")
        # the graph takes parameters as arguments; functional_call would swap them in place under another thread's call
        self._call: Callable[..., Any] = program.graph_module.forward
        self._constants = {**program.constants}
        self._leading = [spec.target for spec in signature.input_specs if spec.target is not None]
        self._initial = {name: tensor.detach() for name, tensor in program.state_dict.items()}
        num_inputs = len(signature.input_specs) - len(self._leading)
        if num_inputs != len(ModelInputs._fields):
            raise LogError(f"the model's program takes {num_inputs} inputs, not {', '.join(ModelInputs._fields)}")
        if any(spec.target is None for spec in signature.input_specs[: len(self._leading)]):
            raise LogError("the model's program takes its parameters after its inputs")

    @staticmethod
    def load(path: Path) -> "ExportedModel":
        """Load the model of a base's `model.pt2`; LogError as by the constructor."""
        try:
            return ExportedModel(path.read_bytes())
        except LogError as error:
            raise LogError(f"{path}: {error}; if the file is damaged, {ADVICE}") from error

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The names of parameters and buffers, which a version's `dense.<name>` replaces."""
        return tuple(self._initial)

    def parameters(
        self, dense: Mapping[str, npt.NDArray[Any]], before: ModelParameters | None = None
    ) -> ModelParameters:
        """Return the parameters `before`, or the archive's own, with copies of those in `dense` in their places.

        Names that the program does not use are ignored: they serve training alone. LogError when a shape or a dtype
        differs.
        """
        tensors = []
        for index, name in enumerate(self._leading):
            if name in dense:
                tensors.append(_checked_tensor(name, dense[name], self._initial.get(name, self._constants.get(name))))
            elif before is not None:
                tensors.append(before.tensors[index])
            else:
                tensors.append(self._initial[name] if name in self._initial else self._constants[name])
        return ModelParameters(tuple(tensors))

    def named_arrays(self, parameters: ModelParameters) -> dict[str, npt.NDArray[Any]]:
        """The parameters and buffers by name; constants of the program are left out."""
        named = zip(self._leading, parameters.tensors, strict=True)
        return {name: tensor.numpy() for name, tensor in named if name in self._initial}

    def predict(self, parameters: ModelParameters, inputs: ModelInputs) -> Float32Array:
        """Return probabilities float32 (N, L): the sigmoid, computed in float32, of the program's logits."""
        with torch.inference_mode():
            probabilities: Float32Array = torch.sigmoid(self._logits(parameters, inputs)).numpy()
        return probabilities

    def logits(self, parameters: ModelParameters, inputs: ModelInputs) -> Float32Array:
        """Return the program's logits float32 (N, L)."""
        with torch.inference_mode():
            logits_NL: Float32Array = self._logits(parameters, inputs).numpy()
        return logits_NL

    def _logits(self, parameters: ModelParameters, inputs: ModelInputs) -> torch.Tensor:
        arguments = [torch.from_numpy(np.ascontiguousarray(array)) for array in inputs]
        (logits_NL,) = self._call(*parameters.tensors, *arguments)
        floats_NL: torch.Tensor = logits_NL.float()
        return floats_NL


def _checked_tensor(name: str, array: npt.NDArray[Any], old: torch.Tensor | None) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array))
    if old is None or tensor.shape != old.shape or tensor.dtype != old.dtype:
        was = "nothing" if old is None else f"{tuple(old.shape)} {old.dtype}"
        raise LogError(f"the log's parameter {name!r} is {tuple(tensor.shape)} {tensor.dtype}, the model's is {was}")
    return tensor
