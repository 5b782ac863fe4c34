"""The base of the sequence models: what a sample's history says to its target is one more vector beside its fields.

The sequence that a target attends to is found by name. Knows no attention.
"""

# N samples, C categorical features, E fields, S sequences, X any axes (N or N and S), T longest sequence, D dimension
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from springtide.app.models.interactions.dlrm import DLRM
from springtide.app.models.interface import FieldSpec, ModelSpec
from springtide.app.models.layers import check_size


class Positions(nn.Module):
    """A learned vector for each place: 0 for the newest element, so that an element's place does not depend on padding.

    Starts at zero: what the rows say comes first.
    """

    def __init__(self, num_places: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_places, dim))

    def forward(self, length_N: Tensor, num_elements: int) -> Tensor:
        """Return (N, T, D) for T elements in a row, of which each sample's first `length` exist."""
        ages_NT = length_N[:, None] - 1 - torch.arange(num_elements, device=length_N.device)
        return nn.functional.embedding(ages_NT.clamp(0, self.weight.shape[0] - 1), self.weight)


def append(rows_NTD: Tensor, length_N: Tensor, last_ND: Tensor) -> Tensor:
    """Return (N, T + 1, D): after each sample's elements one more."""
    longer_NTD = torch.cat([rows_NTD, torch.zeros_like(last_ND).unsqueeze(1)], dim=1)
    is_last_NT = torch.arange(longer_NTD.shape[1], device=length_N.device) == length_N[:, None]
    return torch.where(is_last_NT.unsqueeze(-1), last_ND.unsqueeze(1), longer_NTD)


def element(states_NTD: Tensor, place_N: Tensor) -> Tensor:
    """Return one element of each sample, (N, 1, D)."""
    return states_NTD.gather(1, place_N[:, None, None].expand(-1, 1, states_NTD.shape[2]))


class History(NamedTuple):
    """The rows of one sequence, oldest first, and zeros beyond a sample's length."""

    rows_NTD: Tensor
    length_N: Tensor  # int64, 0 where a sample has no history
    gaps_NTD: Tensor | None = None  # rows of the time gaps

    def mask_NT(self) -> Tensor:
        """Return True where there is an element."""
        mask_NT: Tensor = torch.arange(self.rows_NTD.shape[1], device=self.length_N.device) < self.length_N[:, None]
        return mask_NT

    def keys_NTD(self) -> Tensor:
        """Return the rows with those of their time gaps added."""
        return self.rows_NTD if self.gaps_NTD is None else self.rows_NTD + self.gaps_NTD


class HistoryFields:
    """Where a model's inputs have a target, its sequence and the sequence of time gaps."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        target: str | None = None,
        sequence: str | None = None,
        time_gaps: str | None = None,
        max_length: int | None = None,
    ) -> None:
        """`target`, `sequence`: names where the schema has more than one pair that shares rows. `max_length`: only so
        many of the newest elements count. ValueError if there is no such pair, or more than one to choose from.
        """
        self.target, self.sequence = _find_pair(spec, target, sequence)
        field = spec.sequence[self.sequence]
        most = field.max_length if max_length is None else check_size("max_length", max_length)
        self.max_length = min(field.max_length, most)
        # inputs are padded to the longest of all sequences
        self.cuts = self.max_length < max(other.max_length for other in spec.sequence)
        self.time_gaps: int | None = None
        if time_gaps is not None:
            self.time_gaps = spec.sequence_index(time_gaps)
            gaps = spec.sequence[self.time_gaps]
            if gaps.owner == field.owner:
                raise ValueError(f"time_gaps = {time_gaps!r} shares the rows of {field.owner!r}: gaps need their own")
            if gaps.max_length != field.max_length:
                raise ValueError(
                    f"max_length of {time_gaps!r} is {gaps.max_length} and of {field.name!r} {field.max_length}: "
                    f"set the same in [features.{time_gaps}] and [features.{field.name}], so that they are cut alike"
                )

    def target_ND(self, categorical_NCD: Tensor) -> Tensor:
        """Return the target's rows."""
        return categorical_NCD[:, self.target]

    def history(self, sequence_NSTD: Tensor, length_NS: Tensor) -> History:
        """Return the sequence and its time gaps: of at most `max_length` elements, the newest."""
        rows_NTD, length_N = self._newest(sequence_NSTD, length_NS, self.sequence)
        gaps_NTD = None if self.time_gaps is None else self._newest(sequence_NSTD, length_NS, self.time_gaps)[0]
        return History(rows_NTD, length_N, gaps_NTD)

    def _newest(self, sequence_NSTD: Tensor, length_NS: Tensor, place: int) -> tuple[Tensor, Tensor]:
        rows_NTD, length_N = sequence_NSTD[:, place], length_NS[:, place]
        longest, most = rows_NTD.shape[1], self.max_length
        # an exported program cannot choose a shape by comparing two, so it cuts or fills up to `most`
        if not self.cuts or (not torch.compiler.is_exporting() and longest <= most):
            return rows_NTD, length_N
        start_N1 = (length_N - most).clamp(min=0).unsqueeze(1)
        places_NT = (start_N1 + torch.arange(most, device=length_N.device)).clamp(max=longest - 1)
        newest_NTD = rows_NTD.gather(1, places_NT.unsqueeze(-1).expand(-1, -1, rows_NTD.shape[2]))
        length_N = length_N.clamp(max=most)
        return without_padding(newest_NTD, length_N), length_N


def without_padding(rows_XTD: Tensor, length_X: Tensor) -> Tensor:
    """Return the rows with zeros beyond each sequence's length, whatever is there; it gets no gradient."""
    mask_XT = torch.arange(rows_XTD.shape[-2], device=length_X.device) < length_X.unsqueeze(-1)
    return torch.where(mask_XT.unsqueeze(-1), rows_XTD, 0.0)


def _find_pair(spec: ModelSpec, target: str | None, sequence: str | None) -> tuple[int, int]:
    """Return the places of a categorical feature and of the sequence that shares its rows."""
    targets = range(spec.num_categorical) if target is None else [spec.categorical_index(target)]
    sequences = range(spec.num_sequence) if sequence is None else [spec.sequence_index(sequence)]
    pairs = [(c, s) for c in targets for s in sequences if spec.categorical[c].owner == spec.sequence[s].owner]
    if len(pairs) == 1:
        return pairs[0]
    if not pairs:
        wanted, found = _names(spec.categorical, targets), _names(spec.sequence, sequences)
        hint = "and [schema] lacks one of the two"
        if wanted and found:
            first, one = spec.sequence[sequences[0]].name, spec.categorical[targets[0]].name
            hint = f'such as [schema] share = {{ {first} = "{one}" }}'
        raise ValueError(
            f"a target attends to a sequence that shares its rows: none of the sequences ({found or 'none'}) shares "
            f"those of a categorical feature ({wanted or 'none'}), {hint}"
        )
    names = ", ".join(f"{spec.categorical[c].name} and {spec.sequence[s].name}" for c, s in pairs)
    raise ValueError(f"more than one sequence shares a target's rows ({names}): name options target and sequence")


def _names(fields: Sequence[FieldSpec], places: Sequence[int]) -> str:
    return ", ".join(fields[place].name for place in places)


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
