"""The wide part's arrays as buffers of a module beside the net, so that versions carry them like the net's own."""

from typing import Any, Self

import torch
from torch import nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.config import ModelConfig
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields
from springtide_client.wide.parameters import WideParameters

NAME = "wide"  # of the module in the net: its buffers are `wide.base_L` and so on


class WidePart(nn.Module):
    """Holds springtide_client.wide.parameters.WideParameters; a kernel writes them in place.

    They stay in the host's memory, and float64, wherever the net goes.
    """

    def __init__(self, schema: Schema, *, crosses: int) -> None:
        """`crosses`: the pairs of fields that stay, at most."""
        super().__init__()
        self.schema, self.fields, self.max_pairs = schema, WideFields.of(schema), crosses
        initial = WideParameters.initial(self.fields, len(schema.dense), len(schema.labels), crosses=crosses)
        for name, array in initial.named().items():
            self.register_buffer(name, torch.from_numpy(array.copy()))

    def _apply(self, *_: Any, **__: Any) -> Self:
        return self  # what `to` and its like call

    @property
    def arrays(self) -> WideParameters:
        """The buffers as numpy arrays over the same memory."""
        return WideParameters(**{name: buffer.numpy() for name, buffer in self.named_buffers()})


def add_wide_part(model: nn.Module, config: ModelConfig, schema: Schema) -> None:
    """If `[model] wide` asks for it, add the wide part to the net, whose logits become an offset.

    ValueError if the net has something else of that name.
    """
    if not config.has_wide_part:
        return
    if hasattr(model, NAME):
        raise ValueError(f"model {config.name!r} has an attribute {NAME!r} of its own: rename it, or set wide = false")
    if isinstance(model, CalibratedModel):
        model.use_wide_part()
    model.add_module(NAME, WidePart(schema, crosses=config.crosses))


def wide_part_of(model: nn.Module) -> WidePart | None:
    """Return the net's wide part, if it has one."""
    part = getattr(model, NAME, None)
    return part if isinstance(part, WidePart) else None
