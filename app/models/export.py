"""A model as an exported program: what followers load without its class."""

import io
import warnings

import torch
from torch import nn
from torch.export import Dim

from app.models.example_inputs import example_inputs
from app.models.interface import ModelSpec


def export_model(model: nn.Module, spec: ModelSpec) -> bytes:
    """The archive of torch.export, for any number of samples and any longest sequence, without sample inputs.

    Its forward takes the arguments of springtide_client.model.inputs.ModelInputs and gives float32 logits [N, L]; its
    parameters and buffers keep the model's names. ValueError where the model cannot be traced.
    """
    samples, longest = Dim("samples"), Dim("longest")
    only_samples = {0: samples}
    axes = (only_samples, only_samples, {0: samples, 2: longest}, only_samples, only_samples)
    was_training = model.training
    model.eval()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its internals
            program = torch.export.export(model, tuple(example_inputs(spec)), dynamic_shapes=axes)
            program.example_inputs = None  # they would be pickled
            archive = io.BytesIO()
            torch.export.save(program, archive)
    except Exception as error:  # torch raises whatever its tracer met
        first_line = str(error).partition("\n")[0]
        hint = "its forward must not ask for len(x) or take branches on values; x.shape[0] is fine"
        raise ValueError(f"{type(model).__name__} cannot be exported by torch.export: {first_line} ({hint})") from error
    finally:
        model.train(was_training)
    return archive.getvalue()
