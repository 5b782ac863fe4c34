"""The shape of a click: which field is a label, an id, a list or a number. Knows no values and no tensors."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from springtide_client.errors import SpringtideError
from springtide_client.keys import SHARED_ROW_OFFSET

DEFAULT_MAX_LENGTH = 50
POOLINGS = ("mean", "sum", "max")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The fields of a record, in the order in which models see them.

    A feature's number (uint16) is the first half of a row's key. Features are numbered in the order categorical,
    multi_value, sequence; one that shares its rows takes the number of the feature whose rows it shares.
    """

    labels: tuple[str, ...]
    timestamp: str | None = None
    weight: str | None = None
    categorical: tuple[str, ...] = ()
    multi_value: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    share: Mapping[str, str] = field(default_factory=dict)
    # lists longer than this are cut: multi_value keeps the first, sequence the last elements
    max_length: Mapping[str, int] = field(default_factory=dict)
    # how a multi_value list becomes one vector, where that is not the mean
    pooling: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.labels:
            raise ValueError('[schema] needs label = "..." or labels = [...]')
        if not (self.features or self.dense):
            raise ValueError("[schema] needs at least one feature in categorical, multi_value, sequence or dense")
        if len(self.features) > SHARED_ROW_OFFSET:
            raise ValueError(f"[schema] has {len(self.features)} id features: at most {SHARED_ROW_OFFSET} have numbers")
        roles = [*self.labels, *self.features, *self.dense]
        roles += [name for name in (self.timestamp, self.weight) if name is not None]
        for name in roles:
            if roles.count(name) > 1:
                raise ValueError(f"[schema] names the field {name!r} twice: a field has one role")
        for name, owner in self.share.items():
            if name not in self.features or owner not in self.features:
                raise ValueError(f"[schema] share = {{ {name} = {owner!r} }} must name two id features")
            if owner in self.share:
                raise ValueError(f"[schema] {name!r} shares with {owner!r}, which itself shares: name the owner")
        for name, length in self.max_length.items():
            if name not in self.lists or length < 1:
                raise ValueError(f"max_length of {name!r} must be at least 1 and belong to a list feature")
        for name, pooling in self.pooling.items():
            if name not in self.multi_value:
                raise ValueError(f"pooling of {name!r}: only multi_value features are pooled")
            if pooling not in POOLINGS:
                raise ValueError(f"pooling of {name!r} must be one of {', '.join(POOLINGS)}, not {pooling!r}")

    @property
    def features(self) -> tuple[str, ...]:
        """The id features, in the order of their numbers."""
        return (*self.categorical, *self.multi_value, *self.sequence)

    @property
    def lists(self) -> tuple[str, ...]:
        """The list features: multi_value, then sequence."""
        return (*self.multi_value, *self.sequence)

    def number(self, feature: str) -> int:
        """The feature's number in a row's key; KeyError for a name that is no id feature."""
        owner = self.share.get(feature, feature)
        if owner not in self.features:
            raise KeyError(feature)
        return self.features.index(owner)

    def length_limit(self, feature: str) -> int:
        """The most elements of a list that are kept."""
        return self.max_length.get(feature, DEFAULT_MAX_LENGTH)

    def pooling_of(self, feature: str) -> str:
        """How a multi_value feature's rows become one vector: mean, sum or max."""
        return self.pooling.get(feature, "mean")

    def to_json(self) -> bytes:
        """A canonical JSON text: equal schemas give equal bytes."""
        document = msgspec.to_builtins(self)
        if not self.pooling:
            del document["pooling"]  # logs from before it was a choice keep their fingerprint
        return msgspec.json.encode(document, order="sorted")

    @staticmethod
    def from_json(text: bytes) -> "Schema":
        """The schema a log was written with; SpringtideError where the text is none."""
        try:
            return msgspec.json.decode(text, type=Schema)
        except msgspec.DecodeError as error:
            raise SpringtideError(f"the log's schema cannot be read: {error}") from None

    def fingerprint(self) -> str:
        """16 hex digits that change when the schema does."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]
