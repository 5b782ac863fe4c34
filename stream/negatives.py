"""Down-sampled negatives: the `[negatives]` section, and which samples are kept.

A negative is kept by a hash of some of its fields: it is the same one on every replay. Imports no compiled code.
"""

# N samples
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Meta

from springtide_client.array_types import BoolArray, Float32Array, Int64Array, UInt64Array
from springtide_client.keys import mix64_array
from springtide_client.schema import Schema
from springtide_client.system.settings import Settings

if TYPE_CHECKING:
    from springtide.stream.columns import Columns

BAD_RATE_REASON = "bad_rate"


class NegativesConfig(Settings, frozen=True, kw_only=True):
    """Which part of the negatives is learned. What is predicted stays true: for all samples, not for those kept."""

    rate: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="The share of samples with a label of 0 that is learned. The others are dropped, with all "
            "their other labels; the status counts them. May change at any time.",
        ),
    ] = 1.0
    label: Annotated[str | None, Meta(description="The label whose negatives are meant. Default: the only one.")] = None
    by: Annotated[
        tuple[str, ...],
        Meta(
            description="Fields whose hash says which negatives are kept: the same ones on every replay; such as a "
            "request and an item. Default: `[join] key`; required without a join."
        ),
    ] = ()
    method: Annotated[
        Literal["offset", "weights"],
        Meta(
            description='`"offset"`: the loss is that of the log odds among the samples kept, log(rate) less. '
            '`"weights"`: a negative counts 1 / rate; noisier.'
        ),
    ] = "offset"
    rate_field: Annotated[
        str | None,
        Meta(
            description="Field with the rate at which the sender has kept negatives like this sample, on positives "
            "too; above 0, at most 1. Default: it has kept all."
        ),
    ] = None


@dataclass(frozen=True)
class NegativeSampling:
    """The settings, checked against the schema."""

    label: int  # its place in the schema
    rate: float = 1.0
    by: tuple[str, ...] = ()
    has_offset: bool = True  # False: a negative counts 1 / rate
    rate_field: str | None = None

    @staticmethod
    def of(config: NegativesConfig, schema: Schema, join_key: Sequence[str] = ()) -> "NegativeSampling | None":
        """Check the settings; None if all negatives are learned. ValueError names what is wrong.

        `join_key`: of labels that are joined.
        """
        if config.rate == 1 and config.rate_field is None:
            return None
        label = config.label
        if label is None:
            if len(schema.labels) > 1:
                raise ValueError(f"[negatives] needs label: one of {', '.join(schema.labels)}")
            label = schema.labels[0]
        if label not in schema.labels:
            raise ValueError(f'[negatives] label must be one of {", ".join(schema.labels)}, not "{label}"')
        if label in schema.links:
            raise ValueError(f"[negatives] label {label!r} is a value: only one from 0 to 1 has negatives")
        by = (config.by or tuple(join_key)) if config.rate < 1 else ()
        if config.rate < 1 and not by:
            raise ValueError(
                '[negatives] needs by = ["..."]: the fields that tell samples apart, such as a request and an item'
            )
        if len(set(by)) < len(by):
            raise ValueError("[negatives] by names a field twice")
        others = (*schema.labels, *schema.lists, *schema.dense, schema.timestamp, schema.weight)
        for name in by:
            if name in others or name == config.rate_field:
                raise ValueError(f"[negatives] by {name!r} must be an id, and has another role")
        if config.rate_field in (*schema.names, *join_key):
            raise ValueError(f"[negatives] rate_field {config.rate_field!r} has another role in [schema] or [join]")
        return NegativeSampling(
            schema.labels.index(label), config.rate, by, config.method == "offset", config.rate_field
        )

    def drop(self, columns: "Columns") -> "Columns":
        """Return the columns without the negatives that are dropped, which are counted; dead letters and ends stay."""
        sampled = columns.sampled
        assert sampled is not None
        if self.rate == 1:
            return columns
        assert sampled.hash_N is not None
        # a label that is masked or lies between 0 and 1 is no negative
        kept_N = (columns.labels_NL[:, self.label] != 0) | are_kept(sampled.hash_N, self.rate)
        kept = np.flatnonzero(kept_N)
        sampled = sampled.take(kept)
        sampled = replace(
            sampled,
            rates_N=sampled.rates_N * np.float32(self.rate),
            num_dropped_N1=np.diff(kept, prepend=-1, append=len(kept_N)) - 1,
        )
        if len(kept) == len(columns):
            return replace(columns, sampled=sampled)
        return replace(
            columns.take(kept),
            dead_letters=columns.dead_letters,
            end_offsets=columns.end_offsets,
            id_strings=columns.id_strings,
            raw=columns.raw,
            joined=None if columns.joined is None else columns.joined.take(kept),
            sampled=sampled,
        )


def are_kept(hash_N: UInt64Array, rate: float) -> BoolArray:
    """Return which negatives are kept, by the hashes of their keys."""
    if rate == 1:
        return np.ones(len(hash_N), np.bool_)
    kept_N: BoolArray = mix64_array(hash_N.copy()) < np.uint64(rate * 2.0**64)
    return kept_N


@dataclass(frozen=True)
class RowSampling:
    """How samples were sampled before they came here, and by what they are."""

    rates_N: Float32Array  # at which negatives like each sample were kept
    hash_N: UInt64Array | None = None  # of the fields that say which negatives are kept
    num_dropped_N1: Int64Array | None = None  # samples dropped before each one, and after the last; None: none yet

    def take(self, rows: Int64Array) -> "RowSampling":
        """Those of some samples; none dropped."""
        return RowSampling(self.rates_N[rows], None if self.hash_N is None else self.hash_N[rows])

    def slice(self, start: int, stop: int) -> "RowSampling":
        """Those of samples start to stop. The samples that were dropped go with the next one that was kept."""
        dropped_N1 = self.num_dropped_N1
        if dropped_N1 is not None:
            rest = dropped_N1[-1] if stop == len(self.rates_N) else 0
            dropped_N1 = np.append(dropped_N1[start:stop], rest)
        hash_N = None if self.hash_N is None else self.hash_N[start:stop]
        return RowSampling(self.rates_N[start:stop], hash_N, dropped_N1)

    @property
    def num_dropped(self) -> int:
        """Samples that were dropped here."""
        return 0 if self.num_dropped_N1 is None else int(self.num_dropped_N1.sum())

    @staticmethod
    def concatenate(parts: "Sequence[RowSampling | None]") -> "RowSampling | None":
        """Those of all parts, before any is dropped; None: a part without samples."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        hashes = [part.hash_N for part in known if part.hash_N is not None]
        return RowSampling(np.concatenate([part.rates_N for part in known]), np.concatenate(hashes) if hashes else None)
