"""Which fields of a record are labels, ids, lists or numbers. Knows no values and no tensors."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from springtide_client.counters import Counter
from springtide_client.errors import SpringtideError
from springtide_client.keys import CROSSES, encode_id
from springtide_client.memory import Memory, Remembered
from springtide_client.system.json_text import decode_json

DEFAULT_MAX_LENGTH = 50
POOLINGS = ("mean", "sum", "max")
# how the prediction of a label that is a value, such as a dwell time, is computed from the net's output: the output
# itself, or exp(output) - 1
LINKS = ("identity", "log1p")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The fields of a record, in the order in which models see them.

    A feature's number (uint16) is the first half of a row's key; one that shares rows has the number of the feature
    that owns them. The rows of a dense feature are those of its bins (springtide_client.wide.bins). In a new log
    features are numbered in the order categorical, multi_value, sequence, dense. From then on a number belongs to its
    rows for ever: `continuing` gives a feature that is added later one that was never used.
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
    # ids of how a sample was presented, such as its place: only the wide part has weights for them, apart from all
    # features. Predictions are for the values in `served_values`, missing ones where a field has none there, and only
    # with `serves_sent_bias` for what a request says
    bias: tuple[str, ...] = ()
    served_values: Mapping[str, int | str] = field(default_factory=dict)
    serves_sent_bias: bool = False
    # multi_value features whose ids come with weights
    weighted: tuple[str, ...] = ()
    # of labels that are values and not probabilities: LINKS
    links: Mapping[str, str] = field(default_factory=dict)
    # what is remembered of ids: sequences, the last ones of `sequence`, and fields that requests need not bring
    memories: tuple[Memory, ...] = ()
    # decayed counts and rates of ids, the last ones of `dense`
    counters: tuple[Counter, ...] = ()
    # of the features that own rows, of the dense ones and of memories, where they are not as in a new log; and the
    # lowest number that was never used
    numbers: Mapping[str, int] = field(default_factory=dict)
    next_number: int = 0

    def __post_init__(self) -> None:
        if not self.labels:
            raise ValueError('[schema] needs label = "..." or labels = [...]')
        if not (self.features or self.dense):
            raise ValueError("[schema] needs at least one feature in categorical, multi_value, sequence or dense")
        if self._num_numbered > CROSSES:
            num_features = self._num_numbered
            raise ValueError(f"[schema] has {num_features} features: at most {CROSSES} are possible")
        roles = [*self.labels, *self.features, *self.dense, *self.bias]
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
        for name in self.served_values:
            if name not in self.bias:
                raise ValueError(f"[bias] serve has {name!r}, which is not in [schema] bias")
        for name in self.weighted:
            if name not in self.multi_value:
                raise ValueError(f"weighted of {name!r}: only ids of multi_value features have weights")
            if self.pooling_of(name) == "max":
                raise ValueError(
                    f'weighted of {name!r}: pooling = "max" takes the greatest number and no weights: use "sum" or '
                    '"mean", or leave weighted out'
                )
        for name, link in self.links.items():
            if name not in self.labels or link not in LINKS:
                raise ValueError(f"link {link!r} of {name!r} must be of a label, and one of {', '.join(LINKS)}")
        made = tuple(name for memory in self.memories for name in memory.features)
        if made and self.sequence[-len(made) :] != made:
            raise ValueError(f"the last sequence features must be {', '.join(made)}, which memories make")
        made = tuple(name for counter in self.counters for name in counter.features)
        if made and self.dense[-len(made) :] != made:
            raise ValueError(f"the last dense features must be {', '.join(made)}, which counters make")
        if (self.numbers or self.next_number) and self.numbers.keys() != {*self._numbered}:
            raise ValueError(f"[schema] numbers must be those of {', '.join(self._numbered)}")
        used = set(self.numbers.values())
        if len(used) < len(self.numbers) or not all(0 <= number < self.next_number for number in used):
            raise ValueError("[schema] numbers must differ from each other and be below next_number")
        if self.next_number > CROSSES:
            raise ValueError(
                f"the log has had {CROSSES} features, more than it can number: start a new log with another [log] path"
            )

    @cached_property
    def remembered(self) -> tuple[Remembered, ...]:
        """All that the stream is remembered for, in rows of its own."""
        return (*self.memories, *self.counters)

    @cached_property
    def _numbered(self) -> tuple[str, ...]:
        """What has a number."""
        return (*self.owners, *self.dense, *self.bias, *(one.row_name for one in self.remembered))

    @property
    def _num_numbered(self) -> int:
        return len(self.features) + len(self.dense) + len(self.bias) + len(self.remembered)

    @cached_property
    def recorded(self) -> "Schema":
        """The schema of records, with the same numbers: without what memories and counters make."""
        num_made = sum(len(memory.features) for memory in self.memories)
        num_counted = sum(len(counter.features) for counter in self.counters)
        if not self.remembered:
            return self
        sequence = self.sequence[: len(self.sequence) - num_made]
        made = self.sequence[len(sequence) :]
        schema = replace(
            self,
            sequence=sequence,
            dense=self.dense[: len(self.dense) - num_counted],
            memories=(),
            counters=(),
            share={name: owner for name, owner in self.share.items() if name not in made},
            max_length={name: length for name, length in self.max_length.items() if name not in made},
            numbers={},
            next_number=0,
        )
        numbers = {name: self.number(name) for name in schema.owners}
        numbers |= {name: self.dense_number(name) for name in schema.dense}
        numbers |= {name: self.bias_number(name) for name in schema.bias}
        return replace(schema, numbers=numbers, next_number=self.unused_number)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The id features, in the order in which models see them."""
        return (*self.categorical, *self.multi_value, *self.sequence)

    @cached_property
    def owners(self) -> tuple[str, ...]:
        """The id features that have rows of their own, which others may share."""
        return tuple(name for name in self.features if name not in self.share)

    @cached_property
    def lists(self) -> tuple[str, ...]:
        """The list features: multi_value, then sequence."""
        return (*self.multi_value, *self.sequence)

    @cached_property
    def feature_numbers(self) -> tuple[int, ...]:
        """The number of each of `features` in a row's key."""
        return tuple(self.number(name) for name in self.features)

    @cached_property
    def dense_numbers(self) -> tuple[int, ...]:
        """The number of each of `dense` in the keys of its bins."""
        return tuple(self.dense_number(name) for name in self.dense)

    @cached_property
    def bias_numbers(self) -> tuple[int, ...]:
        """The number of each of `bias` in the keys of its ids."""
        return tuple(self.bias_number(name) for name in self.bias)

    @cached_property
    def served_bias(self) -> tuple[int, ...]:
        """The id of each of `bias` that samples are scored with."""
        return tuple(encode_id(self.served_values.get(name))[0] for name in self.bias)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all fields."""
        others = tuple(name for name in (self.timestamp, self.weight) if name is not None)
        return (*self.labels, *self.features, *self.dense, *self.bias, *others)

    def number(self, feature: str) -> int:
        """Return the feature's number in a row's key; KeyError if there is no id feature of this name."""
        owner = self.share.get(feature, feature)
        if owner not in self.features:
            raise KeyError(feature)
        return self.numbers[owner] if self.numbers else self.features.index(owner)

    def dense_number(self, name: str) -> int:
        """Return the number in the keys of a dense feature's bins; KeyError if there is no dense feature of this name.

        An id feature and a dense feature never have the same number.
        """
        if name not in self.dense:
            raise KeyError(name)
        return self.numbers[name] if self.numbers else len(self.features) + self.dense.index(name)

    def bias_number(self, name: str) -> int:
        """Return the number in the keys of a bias field's ids; KeyError if there is none of this name."""
        if name not in self.bias:
            raise KeyError(name)
        if self.numbers:
            return self.numbers[name]
        return len(self.features) + len(self.dense) + self.bias.index(name)

    @property
    def unused_number(self) -> int:
        """The lowest number that no feature of the log ever had."""
        return self.next_number or self._num_numbered

    def memory_number(self, one: Remembered) -> int:
        """Return the number in the keys of the rows of what is remembered."""
        if self.numbers:
            return self.numbers[one.row_name]
        return len(self.features) + len(self.dense) + len(self.bias) + self.remembered.index(one)

    def owner_names(self) -> dict[int, str]:
        """Return the id features that own rows by their numbers."""
        return {self.number(name): name for name in self.owners}

    def row_names(self) -> dict[int, str]:
        """Return what rows can belong to by number: id features, bins of dense ones, memories, crosses."""
        bins = {self.dense_number(name): name for name in self.dense}
        biases = {self.bias_number(name): name for name in self.bias}
        memories = {self.memory_number(memory): memory.row_name for memory in self.remembered}
        return self.owner_names() | bins | biases | memories | {CROSSES: "crosses"}

    def continuing(self, before: "Schema") -> "Schema":
        """Return this schema numbered as the next one of a log whose newest is `before`.

        A feature keeps the number of its rows. Where several features shared them and part, the owner keeps it, or if
        that is gone the first of the others. A memory with other settings has other rows. ValueError when
        the numbers of the log are used up.
        """
        heirs: dict[int, str] = {}
        for name in self.owners:
            if name in before.features:
                number = before.number(name)
                if number not in heirs or name in before.owners:
                    heirs[number] = name
        heirs |= {before.dense_number(name): name for name in self.dense if name in before.dense}
        heirs |= {before.bias_number(name): name for name in self.bias if name in before.bias}
        heirs |= {before.memory_number(one): one.row_name for one in self.memories if one in before.memories}
        before_rows = {one.row_settings: before.memory_number(one) for one in before.counters}
        own_rows = {one.row_name: one.row_settings for one in self.counters}
        heirs |= {before_rows[rows]: name for name, rows in own_rows.items() if rows in before_rows}
        numbers, unused = {name: number for number, name in heirs.items()}, before.unused_number
        for name in self._numbered:
            if name not in numbers:
                numbers[name], unused = unused, unused + 1
        ordered = {name: numbers[name] for name in self._numbered}
        in_order = (*self.features, *self.dense, *self.bias, *(one.row_name for one in self.remembered))
        as_new = {name: place for place, name in enumerate(in_order) if name not in self.share}
        is_as_new = unused == self._num_numbered and ordered == as_new
        return replace(self, numbers={} if is_as_new else ordered, next_number=0 if is_as_new else unused)

    @property
    def label_links(self) -> tuple[str, ...]:
        """How each label's prediction is computed from the net's output: "logit" is that of probabilities."""
        return tuple(self.links.get(label, "logit") for label in self.labels)

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
        if not self.bias:
            del document["bias"]  # as before it was an option
        if not self.served_values:
            del document["served_values"]
        if not self.serves_sent_bias:
            del document["serves_sent_bias"]
        if not self.weighted:
            del document["weighted"]  # likewise
        if not self.links:
            del document["links"]  # as before it was an option
        if not self.memories:
            del document["memories"]
        if not self.counters:
            del document["counters"]
        if not self.next_number:
            del document["numbers"], document["next_number"]  # as in a new log
        return msgspec.json.encode(document, order="sorted")

    @staticmethod
    def from_json(content: bytes) -> "Schema":
        """Decode a log's schema; SpringtideError if it is not valid."""
        try:
            schema: Schema = decode_json(content, Schema)
            return schema
        except msgspec.DecodeError as error:
            raise SpringtideError(f"the log's schema cannot be read: {error}") from None

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when the schema does."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]


def field_paths(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return those fields that may lie inside of others: `user.id` is also the field `id` of the object `user`.

    Not where `user` is a field itself: then `user.id` is only the name of a field of the record.
    """
    paths = {name: tuple(name.split(".")) for name in names if "." in name}
    return {
        name: path
        for name, path in paths.items()
        if not any(".".join(path[:depth]) in names for depth in range(1, len(path)))
    }
