"""The base of the sequence models: what a sample's history says to its target is one more vector beside its fields."""

# N samples, E fields, S sequences, T longest sequence, D dimension
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from springtide.app.models.interactions.dlrm import DLRM
from springtide.app.models.interface import FieldSpec, ModelSpec
from springtide.app.models.sequence.history import HistoryFields, without_padding

INTEREST = "interest"


class SequenceModel(DLRM):
    """DLRM with the interest as a field of its own. The sequences' means stay fields too.

    A subclass takes options of its own, hands on the others, and sets `encoder`, which maps the target's rows and a
    `History` to the interest, (N, D).
    """

    encoder: nn.Module

    def __init__(
        self,
        spec: ModelSpec,
        *,
        target: str | None = None,
        sequence: str | None = None,
        time_gaps: str | None = None,
        max_length: int | None = None,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (128,),
    ) -> None:
        """The options that all of them share. TypeError for others."""
        inputs = HistoryFields(spec, target=target, sequence=sequence, time_gaps=time_gaps, max_length=max_length)
        interest = FieldSpec(name=INTEREST, dim=spec.dim, owner=INTEREST)
        super().__init__(replace(spec, multi_value=(*spec.multi_value, interest)), bottom=bottom, top=top)
        self.inputs = inputs

    def fields(self, categorical_NCD: Tensor, pooled_NPD: Tensor, sequence_NSTD: Tensor, length_NS: Tensor) -> Tensor:
        sequence_NSTD = without_padding(sequence_NSTD, length_NS)
        history = self.inputs.history(sequence_NSTD, length_NS)
        interest_ND: Tensor = self.encoder(self.inputs.target_ND(categorical_NCD), history)
        pooled_NPD = torch.cat([pooled_NPD, interest_ND.to(categorical_NCD.dtype).unsqueeze(1)], dim=1)
        return super().fields(categorical_NCD, pooled_NPD, sequence_NSTD, length_NS)
