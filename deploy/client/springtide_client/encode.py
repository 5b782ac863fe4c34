"""The reference encoder: turn one instance, a mapping of raw values, into ids, lists of ids and numbers.

Servers and HotModel encode instances with it, and the trainer's columnar decoder is tested to equal it. It takes
decoded values, not JSON text, so that every input format gives a value the same meaning.
"""

# N instances, F dense features
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from springtide_client.errors import EncodeError
from springtide_client.features import Features, Ragged
from springtide_client.keys import encode_id
from springtide_client.schema import Schema, field_paths

# the smallest number that rounds to infinity in float32: its largest value and half a step more
FLOAT32_OVERFLOW = 2.0**128 - 2.0**103

MAX_LIST_WEIGHT = 1000.0  # of an id in a list, and its negative the least

DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


class EncodedInstance(NamedTuple):
    """One instance in the schema's order; `id_strings`: (feature number, id, string) of each hashed id.

    `weights`: those of the ids of each weighted list, in the order of these lists.
    """

    categorical: list[int]
    lists: list[list[int]]
    dense: list[float]
    id_strings: list[tuple[int, int, str]]
    weights: list[list[float]]
    bias: Sequence[int] = ()  # of schema.bias, where predictions take them from a request


class EncodedValues:
    """Encodings of values that several instances share, so that each value is encoded once.

    Strings are found by value, lists by identity. It keeps a reference to each list, so no other list gets its
    identity; a list must not change while it is here.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], int] = {}
        self._lists: dict[tuple[str, int], tuple[list[Any], list[int]]] = {}

    def encode_id(self, name: str, value: str, number: int, strings: list[tuple[int, int, str]]) -> int:
        """Return the id of a feature's value; its string is added to `strings` at the first call only."""
        if (row_id := self._ids.get((name, value))) is None:
            row_id = self._ids[name, value] = _encode_id(value, number, strings)
        return row_id

    def encode_ids(
        self, name: str, value: list[Any], number: int, kept: slice, strings: list[tuple[int, int, str]]
    ) -> list[int]:
        """Return the ids of a feature's list; their strings are added to `strings` at the first call only."""
        if (known := self._lists.get((name, id(value)))) is None:
            known = self._lists[name, id(value)] = value, _encode_ids(value, number, kept, strings)
        return known[1]


def parse_number(value: Any) -> float:
    """Return a number, a boolean or a decimal string as a float that float32 can hold.

    Raises EncodeError `not_finite` for NaN, infinities and what overflows float32, `wrong_type` for anything else.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        if _NOT_FINITE.fullmatch(value):
            raise EncodeError("not_finite", f"{value!r} is not finite")
        if not DECIMAL.fullmatch(value):
            raise EncodeError("wrong_type", f"the string {value[:40]!r} is not a number")
        value = float(value)
    if not isinstance(value, (int, float)):  # bool is an int
        raise EncodeError("wrong_type", f"{type(value).__name__} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not abs(number) < FLOAT32_OVERFLOW:
        raise EncodeError("not_finite", f"{number!r} is not a finite 32-bit number")
    return number


def flatten(paths: Mapping[str, tuple[str, ...]], record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record in which fields that lie inside of objects (`field_paths`) are fields by their whole name.

    A field that has the whole name already wins. Raises EncodeError `wrong_type` where what should hold the field is
    neither an object nor null.
    """
    if not paths:
        return record
    flat = dict(record)
    for name, path in paths.items():
        if name in record:
            continue
        value: Any = record
        for part in path:
            if value is None:
                break
            if not isinstance(value, Mapping):
                raise EncodeError("wrong_type", f"{name}: {type(value).__name__} is not an object", field=name)
            value = value.get(part)
        if value is not None:
            flat[name] = value
    return flat


class InstanceEncoder:
    """Encodes instances of one schema, one at a time."""

    def __init__(self, schema: Schema, *, sent_bias: bool = False) -> None:
        """`sent_bias`: the fields of schema.bias are encoded too."""
        schema = schema.recorded
        self._paths = field_paths(schema.names)
        self._categorical = [(name, schema.number(name)) for name in schema.categorical]
        first = [(name, schema.number(name), slice(schema.length_limit(name))) for name in schema.multi_value]
        last = [(name, schema.number(name), slice(-schema.length_limit(name), None)) for name in schema.sequence]
        self._lists = [*first, *last]
        self._weighted = frozenset(schema.weighted)
        self._dense = schema.dense
        self._bias = schema.bias if sent_bias else ()

    def encode(self, instance: Mapping[str, Any], shared: EncodedValues | None = None) -> EncodedInstance:
        """Encode one instance; EncodeError names the field that cannot be encoded.

        With `shared`, values that earlier instances had are not encoded again, nor are their strings returned again.
        """
        if not isinstance(instance, Mapping):
            raise EncodeError("wrong_type", f"an instance is an object of fields, not {type(instance).__name__}")
        instance = flatten(self._paths, instance)
        bias: list[int] = []
        encoded = EncodedInstance([], [], [], [], [], bias)
        name, strings = "", encoded.id_strings
        try:
            for name, number in self._categorical:
                value = instance.get(name)
                if shared is None or not isinstance(value, str):
                    encoded.categorical.append(_encode_id(value, number, strings))
                else:
                    encoded.categorical.append(shared.encode_id(name, value, number, strings))
            for name, number, kept in self._lists:
                value = instance.get(name)
                if name in self._weighted:
                    ids, weights = _encode_weighted_ids(value, number, kept, strings)
                    encoded.lists.append(ids)
                    encoded.weights.append(weights)
                elif shared is None or not isinstance(value, list):
                    encoded.lists.append(_encode_ids(value, number, kept, strings))
                else:
                    encoded.lists.append(shared.encode_ids(name, value, number, kept, strings))
            for name in self._dense:
                value = instance.get(name)
                encoded.dense.append(math.nan if value is None else parse_number(value))
            for name in self._bias:
                bias.append(_encode_id(instance.get(name), 0, []))  # nothing is noted of its string
        except EncodeError as error:
            raise error.in_field(name) from None
        return encoded

    def pack(self, encoded_N: Sequence[EncodedInstance]) -> Features:
        """Return encoded instances as the arrays that models take."""
        num_instances = len(encoded_N)
        lists, num_weighted = [], 0
        for column, (name, _, _) in enumerate(self._lists):
            offsets, weights_M = np.zeros(num_instances + 1, np.int64), None
            np.cumsum([len(encoded.lists[column]) for encoded in encoded_N], out=offsets[1:])
            if name in self._weighted:
                weights_M = np.array([w for e in encoded_N for w in e.weights[num_weighted]], np.float32)
                num_weighted += 1
            ids_M = np.array([i for e in encoded_N for i in e.lists[column]], np.int64)
            lists.append(Ragged(ids_M, offsets, weights_M))
        categorical = np.array([encoded.categorical for encoded in encoded_N], np.int64)
        dense = np.array([encoded.dense for encoded in encoded_N], np.float32)
        return Features(
            categorical_NC=categorical.reshape(num_instances, len(self._categorical)),
            lists=tuple(lists),
            dense_NF=dense.reshape(num_instances, len(self._dense)),
            bias_NB=np.array([encoded.bias for encoded in encoded_N], np.int64).reshape(num_instances, -1)
            if self._bias
            else None,
        )


def encode_instances(schema: Schema, instances: Sequence[Mapping[str, Any]], *, share_values: bool = False) -> Features:
    """Encode instances; labels and unknown fields are ignored.

    A categorical that is missing or null is `MISSING_ID`; a list that is missing or null is empty, its null elements
    are skipped, and it is cut to its limit (multi_value keeps the first, sequence the last elements); a number that is
    missing or null is NaN. A weighted list is an object of weights by id, or a list of [id, weight]; weights of one id
    add up, and sums beyond MAX_LIST_WEIGHT are cut to it. Set `share_values` when many instances hold the same strings
    and the same list objects. Fields of schema.bias are ignored unless schema.serves_sent_bias. Raises EncodeError with
    reason, field and index.
    """
    encoder = InstanceEncoder(schema, sent_bias=schema.serves_sent_bias)
    shared = EncodedValues() if share_values else None
    encoded = []
    for index, instance in enumerate(instances):
        try:
            encoded.append(encoder.encode(instance, shared))
        except EncodeError as error:
            error.index = index
            raise
    return encoder.pack(encoded)


def _encode_id(value: Any, number: int, strings: list[tuple[int, int, str]]) -> int:
    row_id, string = encode_id(value.item() if isinstance(value, np.generic) else value)
    if string is not None:
        strings.append((number, row_id, string))
    return row_id


def _encode_ids(value: Any, number: int, kept: slice, strings: list[tuple[int, int, str]]) -> list[int]:
    if value is None:
        return []
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise EncodeError("wrong_type", f"expected a list, got {type(value).__name__}")
    # elements beyond the limit are encoded too: whether a record is valid must not depend on the limit
    return [_encode_id(element, number, strings) for element in value if element is not None][kept]


def _encode_weighted_ids(
    value: Any, number: int, kept: slice, strings: list[tuple[int, int, str]]
) -> tuple[list[int], list[float]]:
    """Return the ids of a list, each once, and their weights."""
    if value is None:
        return [], []
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        pairs: Sequence[Any] = [*value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [pair for pair in value if pair is not None]
    else:
        raise EncodeError(
            "wrong_type", f"expected an object of weights by id, or a list of [id, weight], got {type(value).__name__}"
        )
    weights: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise EncodeError("wrong_type", f"an element of a weighted list is [id, weight], not {str(pair)[:40]}")
        try:
            weight = parse_number(pair[1])
        except EncodeError as error:
            raise EncodeError(error.reason, f"the weight of {str(pair[0])[:40]!r}: {error}") from None
        if pair[0] is not None:
            row_id = _encode_id(pair[0], number, strings)
            weights[row_id] = weights.get(row_id, 0.0) + weight
    clipped = [max(-MAX_LIST_WEIGHT, min(MAX_LIST_WEIGHT, weight)) for weight in weights.values()]
    return [*weights][kept], clipped[kept]
