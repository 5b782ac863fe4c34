"""Exports a model as a torch program that followers load without the model's class."""

import io
import warnings

import torch
from numba.core.compiler_lock import global_compiler_lock
from torch import nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from springtide.app.models.interface import ModelSpec
from springtide.app.models.wide_part import NAME, wide_part_of
from springtide_client.model.inputs import ModelInputs

# samples and longest sequence; tracing would take 0 and 1 for constants
NUM_SAMPLES, LONGEST = 2, 3


def example_inputs(spec: ModelSpec) -> ModelInputs:
    """Return zeros of every kind of input; absent kinds have an axis of size 0."""
    return ModelInputs(
        categorical=torch.zeros(NUM_SAMPLES, spec.num_categorical, spec.dim),
        pooled=torch.zeros(NUM_SAMPLES, spec.num_pooled, spec.dim),
        sequence=torch.zeros(NUM_SAMPLES, spec.num_sequence, LONGEST, spec.dim),
        sequence_length=torch.zeros(NUM_SAMPLES, spec.num_sequence, dtype=torch.int64),
        dense=torch.zeros(NUM_SAMPLES, spec.num_dense),
    )


def export_model(model: nn.Module, spec: ModelSpec) -> bytes:
    """Return the archive of torch.export, for any number of samples and any longest sequence, without sample inputs.

    Its forward takes the arguments of springtide_client.model.inputs.ModelInputs and returns float32 logits [N, L]; its
    parameters and buffers keep the model's names. The wide part is left out: followers score it themselves. ValueError
    if the model cannot be traced.
    """
    samples, longest = Dim("samples"), Dim("longest")
    only_samples = {0: samples}
    axes = (only_samples, only_samples, {0: samples, 2: longest}, only_samples, only_samples)
    was_training, wide_part = model.training, wide_part_of(model)
    model.eval()
    if wide_part is not None:
        delattr(model, NAME)
    try:
        # while torch traces, `max` and `min` are its own in every thread: a kernel compiled meanwhile would meet them
        with global_compiler_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own warnings, about its internals
            program = torch.export.export(model, tuple(example_inputs(spec)), dynamic_shapes=axes)
            _check_shapes(program)
            program.example_inputs = None  # they would be pickled
            archive = io.BytesIO()
            torch.export.save(program, archive)
    except Exception as error:  # torch raises whatever its tracer meets
        first_line = str(error).partition("\n")[0]
        hint = "its forward must not use len(x), branch on values, or make shapes of them; x.shape[0] is fine"
        raise ValueError(f"{type(model).__name__} cannot be exported by torch.export: {first_line} ({hint})") from error
    finally:
        if wide_part is not None:
            model.add_module(NAME, wide_part)
        model.train(was_training)
    return archive.getvalue()


def _check_shapes(program: torch.export.ExportedProgram) -> None:
    """Raise ValueError where the shape of a tensor depends on values, not on the inputs' shapes alone."""
    for node in program.graph.nodes:
        if free_unbacked_symbols(node.meta.get("val")):
            raise ValueError(f"the size of {node.name} depends on values, as that of x[mask] does; use torch.where")
