"""Tries a new model's forward: the shape of its logits, and that it is a function of parameters, buffers and inputs."""

import torch
from torch import nn

from springtide.app.models.interface import ModelSpec
from springtide_client.model.inputs import ModelInputs

SIZES = ((2, 3), (3, 1))  # samples, longest sequence


def try_forward(name: str, model: nn.Module, spec: ModelSpec) -> None:
    """Call forward on batches of two sizes, as in training and as in serving.

    ValueError if logits are not of shape [N, L], or if forward writes a buffer: a server would not do that, so what is
    served would not be what was trained.
    """
    was_training = model.training
    with torch.no_grad():
        for training in (False, True):
            model.train(training)
            for num_samples, longest in SIZES:
                before = {key: buffer.clone() for key, buffer in model.named_buffers()}
                _check_logits(name, model(*random_inputs(spec, num_samples, longest)), (num_samples, spec.num_labels))
                for key, buffer in model.named_buffers():
                    if key not in before or not torch.equal(buffer, before[key]):
                        raise ValueError(
                            f"model {name!r} writes the buffer {key!r} in forward: write statistics in observe_inputs "
                            "or observe_labels (springtide.DenseModel), and use LayerNorm for BatchNorm"
                        )
    model.train(was_training)


def random_inputs(spec: ModelSpec, num_samples: int, longest: int) -> ModelInputs:
    """Return the same numbers each time; no number is missing, no sequence empty."""
    draw = torch.Generator().manual_seed(0)
    return ModelInputs(
        categorical=torch.randn(num_samples, spec.num_categorical, spec.dim, generator=draw),
        pooled=torch.randn(num_samples, spec.num_pooled, spec.dim, generator=draw),
        sequence=torch.randn(num_samples, spec.num_sequence, longest, spec.dim, generator=draw),
        sequence_length=torch.full((num_samples, spec.num_sequence), longest),
        dense=torch.rand(num_samples, spec.num_dense, generator=draw),
    )


def _check_logits(name: str, logits_NL: object, wanted: tuple[int, int]) -> None:
    if not isinstance(logits_NL, torch.Tensor) or tuple(logits_NL.shape) != wanted:
        got = tuple(logits_NL.shape) if isinstance(logits_NL, torch.Tensor) else type(logits_NL).__name__
        raise ValueError(f"model {name!r} must give logits of shape [N, L], here {wanted}, not {got}")
