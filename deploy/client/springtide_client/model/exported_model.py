"""The dense model: an exported program loaded once, called with the parameters of whichever view asks.

Imports torch, so it is imported when the first model is loaded, not with the package.
"""

# N samples, L labels
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from springtide_client.errors import LogError
from springtide_client.model.archive_check import check_archive
from springtide_client.model.inputs import FloatArray, ModelInputs


@dataclass(frozen=True)
class ModelParameters:
    """The parameters and buffers of one view: the program's leading arguments, in its own order."""

    tensors: tuple[torch.Tensor, ...]

    @property
    def num_bytes(self) -> int:
        """The memory they hold."""
        return sum(tensor.nbytes for tensor in self.tensors)


class ExportedModel:
    """A program without state of its own: calls with different parameters may run at once, in any thread."""

    def __init__(self, archive: bytes) -> None:
        """Load the archive; LogError where it holds anything but plain tensors and plain operators."""
        check_archive(archive)
        try:
            program = torch.export.load(io.BytesIO(archive))
        except Exception as error:  # torch raises whatever its parser met
            raise LogError(f"the model's archive cannot be loaded by torch {torch.__version__}: {error}") from error
        signature = program.graph_signature
        if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
            raise LogError("the model's program writes its buffers: export it in eval mode")
        # the graph takes its parameters as arguments, so that nothing is swapped in place under another thread's call
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
        """The model of a base's `model.pt2`."""
        return ExportedModel(path.read_bytes())

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """What a version's `dense.<name>` may replace."""
        return tuple(self._initial)

    def parameters(
        self, dense: Mapping[str, npt.NDArray[Any]], before: ModelParameters | None = None
    ) -> ModelParameters:
        """The parameters `before` (at first: the archive's own) with those of `dense` in place of theirs, copied.

        Names that the program does not use are skipped (the trainer keeps what only training needs); LogError where a
        shape or a type differs.
        """
        tensors = []
        for index, name in enumerate(self._leading):
            if name in dense:
                tensors.append(_same_shape(name, dense[name], self._initial.get(name, self._constants.get(name))))
            elif before is not None:
                tensors.append(before.tensors[index])
            else:
                tensors.append(self._initial[name] if name in self._initial else self._constants[name])
        return ModelParameters(tuple(tensors))

    def named_arrays(self, parameters: ModelParameters) -> dict[str, npt.NDArray[Any]]:
        """The parameters and buffers by name; constants of the program are left out."""
        named = zip(self._leading, parameters.tensors, strict=True)
        return {name: tensor.numpy() for name, tensor in named if name in self._initial}

    def predict(self, parameters: ModelParameters, inputs: ModelInputs) -> FloatArray:
        """The probabilities [N, L] float32: the sigmoid, in float32, of the program's logits."""
        with torch.inference_mode():
            arguments = [torch.from_numpy(np.ascontiguousarray(array)) for array in inputs]
            (logits_NL,) = self._call(*parameters.tensors, *arguments)
            probabilities: FloatArray = torch.sigmoid(logits_NL.float()).numpy()
        return probabilities


def _same_shape(name: str, array: npt.NDArray[Any], old: torch.Tensor | None) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array))
    if old is None or tensor.shape != old.shape or tensor.dtype != old.dtype:
        was = "nothing" if old is None else f"{tuple(old.shape)} {old.dtype}"
        raise LogError(f"the log's parameter {name!r} is {tuple(tensor.shape)} {tensor.dtype}, the model's is {was}")
    return tensor
