"""Builds the model that `[model]` names: a built-in one, or a class of the user's own as "package.module:Class"."""

import importlib
import os
import sys
import threading

import torch
from torch import nn

from springtide.app.models.config import BUILT_IN_MODELS, ModelConfig
from springtide.app.models.interface import ModelSpec, groups_of
from springtide_client.model.inputs import ModelInputs

# torch's generator is one for all threads, and trainers of several ranks may be threads
generator_lock = threading.Lock()


def build_model(config: ModelConfig, spec: ModelSpec, *, seed: int) -> nn.Module:
    """Return the module, its weights a function of the seed. ValueError if the name or the options are wrong.

    A class of the user's own is any `nn.Module` that is built as `Class(spec, **options)` and maps the inputs of
    `interface.DenseModel.forward` to logits [N, L]; it is tried on a few samples here.
    """
    if config.name not in BUILT_IN_MODELS and (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)  # last: nothing in the user's folder takes the place of an installed package
    model_class = _load_class(BUILT_IN_MODELS.get(config.name, config.name))
    with generator_lock, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = model_class(spec, **config.options)
        except Exception as error:  # of the user's own class, whatever it raises
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"model {config.name!r} with options {dict(config.options)}: {reason}") from error
        try_forward(config.name, model, spec)
        groups_of(model)
    return model


def _load_class(name: str) -> type[nn.Module]:
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # of the user's own module, whatever it raises
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"model {name!r}: {module_name!r} cannot be imported: {reason}") from error
    model_class = getattr(module, class_name, None)
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise ValueError(
            f"model {name!r}: {module_name} ({getattr(module, '__file__', 'built in')}) has no torch.nn.Module "
            f"called {class_name!r}"
        )
    return model_class


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
