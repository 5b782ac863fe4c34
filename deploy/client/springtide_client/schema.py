"""Which fields of a record are labels, ids, lists or numbers. Knows no values and no tensors."""

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
    multi_value, sequence; one that shares rows has the number of the feature that owns them.
    """

    labels: tuple[str, ...]
    timestamp: str | None = None
    weight: str | None = None
    categorical: tuple[str, ...] = ()
    multi_value: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    share: Mapping[str, str] = field(default_factory=dict)
    # longer lists are cut: multi_value keeps the first, sequence the last elements
    max_length: Mapping[str, int] = field(default_factory=dict)
    # how a multi_value list becomes one vector, if not by the mean
    pooling: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.labels:
            raise ValueError('[schema] needs label = "..." or labels = [...]')
        if not (self.features or self.dense):
            raise ValueError("[schema] needs at least one feature in categorical, multi_value, sequence or dense")
        if len(self.features) > SHARED_ROW_OFFSET:
            raise ValueError(f"[schema] has {len(self.features)} id features: at most {SHARED_ROW_OFFSET} are possible")
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
        """Return the feature's number in a row's key; KeyError if there is no id feature of this name."""
        owner = self.share.get(feature, feature)
        if owner not in self.features:
            raise KeyError(feature)
        return self.features.index(owner)

    def length_limit(self, feature: str) -> int:
        """Return how many elements of a list are kept at most."""
        return self.max_length.get(feature, DEFAULT_MAX_LENGTH)

    def pooling_of(self, feature: str) -> str:
        """Return how a multi_value feature's rows become one vector: mean, sum or max."""
        return self.pooling.get(feature, "mean")

    def to_json(self) -> bytes:
        """Return canonical JSON: equal schemas give equal bytes."""
        document = msgspec.to_builtins(self)
        if not self.pooling:
            del document["pooling"]  # the default is left out, so that logs written before it was an option match
        return msgspec.json.encode(document, order="sorted")

    @staticmethod
    def from_json(content: bytes) -> "Schema":
        """Decode a log's schema; SpringtideError if it is not valid."""
        try:
            return msgspec.json.decode(content, type=Schema)
        except msgspec.DecodeError as error:
            raise SpringtideError(f"the log's schema cannot be read: {error}") from None

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when the schema does."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]
