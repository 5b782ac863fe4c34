"""Builds the model that `[model]` names: a built-in one, or a class of the user's own as "package.module:Class"."""

import importlib
import os
import sys

import torch
from torch import nn

from springtide.app.models.config import BUILT_IN_MODELS, ModelConfig
from springtide.app.models.interface import ModelSpec, groups_of
from springtide.app.models.trial import try_forward


def build_model(config: ModelConfig, spec: ModelSpec, *, seed: int) -> nn.Module:
    """Return the module, its weights a function of the seed. ValueError if the name or the options are wrong.

    A class of the user's own is any `nn.Module` that is built as `Class(spec, **options)` and maps the inputs of
    `interface.DenseModel.forward` to logits [N, L]; it is tried on a few samples here.
    """
    model_class = _load_class(BUILT_IN_MODELS.get(config.name, config.name))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = model_class(spec, **config.options)
        except TypeError as error:
            raise ValueError(f"model {config.name!r} with options {dict(config.options)}: {error}") from error
        try_forward(config.name, model, spec)
        groups_of(model)
    return model


def _load_class(name: str) -> type[nn.Module]:
    module_name, _, class_name = name.partition(":")
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)  # last: nothing in the user's folder takes the place of an installed package
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"model {name!r}: {module_name!r} cannot be imported: {error}") from error
    model_class = getattr(module, class_name, None)
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise ValueError(f"model {name!r}: {module_name} has no torch.nn.Module called {class_name!r}")
    return model_class
