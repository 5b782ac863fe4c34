"""The wide part's arrays as buffers of a module beside the net, so that versions carry them like the net's own."""

import numpy as np
import torch
from torch import nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.config import ModelConfig
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields
from springtide_client.wide.parameters import WideParameters

NAME = "wide"  # of the module in the net: its buffers are `wide.base_L` and so on
CHOICE_SAMPLES = 500  # samples between two choices of pairs


class WidePart(nn.Module):
    """Holds springtide_client.wide.parameters.WideParameters; a kernel writes them in place."""

    def __init__(self, schema: Schema, *, crosses: int) -> None:
        """`crosses`: the pairs of fields that stay, at most."""
        super().__init__()
        self.schema, self.fields, self.max_pairs = schema, WideFields.of(schema), crosses
        initial = WideParameters.initial(self.fields, len(schema.dense), len(schema.labels), crosses=crosses)
        for name, array in initial.named().items():
            self.register_buffer(name, torch.from_numpy(array.copy()))

    @property
    def arrays(self) -> WideParameters:
        """The buffers as numpy arrays over the same memory."""
        # not named_buffers: a step asks several times, and that walks through all modules
        return WideParameters(**{name: buffer.numpy() for name, buffer in self._buffers.items() if buffer is not None})

    def samples_until_choice(self) -> int:
        """Return after how many samples pairs are chosen again; they are not while few live."""
        if int(self.get_buffer("pair_is_live_P").sum()) <= self.max_pairs:
            return 1 << 62
        return max(1, CHOICE_SAMPLES - int(self.get_buffer("slot_totals_4")[3]))

    def choose_pairs(self) -> None:
        """Where more pairs live than may stay: once in a while drop those that gained least, at most half of them."""
        arrays = self.arrays
        live_P = arrays.live_pairs
        if len(live_P) <= self.max_pairs or arrays.slot_totals_4[3] < CHOICE_SAMPLES:
            return
        arrays.slot_totals_4[3] = 0
        keep = max(self.max_pairs, len(live_P) // 2)
        order = np.argsort(-arrays.pair_gains_P[live_P], kind="stable")
        arrays.pair_is_live_P[live_P[order[keep:]]] = 0


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
