"""The request of POST /v1/predict: decoded from JSON, and encoded as the arrays that models take."""

# N samples
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from springtide.app.serving.http.errors import DECODE_ERRORS, ApiError, bad_request, invalid
from springtide.app.serving.http.preconditions import MaxStalenessMs, check_max_staleness
from springtide_client.array_types import Int64Array
from springtide_client.encode import encode_instances
from springtide_client.errors import EncodeError
from springtide_client.features import Features
from springtide_client.recall import times_of
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms

EXAMPLE = 'send {"instances": [{...}]} or {"context": {...}, "candidates": [{...}]}'


Signals = Annotated[
    bool,
    Meta(description="Add the hash of what each instance reads of memory, for `[memory] check`."),
]
Time = Annotated[int | msgspec.UnsetType, Meta(description="In ms since 1970: of instances that name no time.")]
NO_SIGNALS = "leave signals out, or set [sequences.*], [remember] or [counters.*] for the trainer"


class PredictBody(msgspec.Struct, forbid_unknown_fields=True):
    """Either instances, or candidates that share a context. A misspelt field is an error: it is never ignored."""

    instances: Annotated[list[Any] | None, Meta(description="Raw values by field name, as in the stream.")] = None
    context: Annotated[dict[str, Any] | None, Meta(description="Values that all candidates share.")] = None
    candidates: Annotated[list[Any] | None, Meta(description="Instead of instances.")] = None
    signals: Signals = False
    max_staleness_ms: MaxStalenessMs = None


# what a body has to name, one or the other
PREDICT_BODY = Annotated[
    PredictBody, Meta(extra_json_schema={"anyOf": [{"required": ["instances"]}, {"required": ["candidates"]}]})
]


class PredictResponse(msgspec.Struct, forbid_unknown_fields=True):
    """Of each instance the probability of each label; of a label with a loss of values, the value."""

    predictions: list[dict[str, float | None]]
    version: int
    time: Time = msgspec.UNSET
    signals: Annotated[
        list[str] | msgspec.UnsetType, Meta(description="Of each instance, where the request asks for them.")
    ] = msgspec.UNSET


class Instances(NamedTuple):
    """Raw features of N samples: each sample's own, and those of the context that all share."""

    own_N: list[dict[str, Any]]
    context: Mapping[str, Any]
    now_ms: int  # the time of those that name none
    wants_signals: bool = False

    def __len__(self) -> int:
        return len(self.own_N)


def decode_predict_request(body: bytes, max_instances: int) -> tuple[Instances, float | None]:
    """Decode the instances to score, and the staleness limit in ms.

    Raises ApiError 400 if the body is not JSON of this shape, 413 for too many instances, 422 with the index of an
    instance that is not an object.
    """
    try:
        request = msgspec.json.decode(body, type=PredictBody)
    except DECODE_ERRORS as error:
        raise bad_request(f"the body cannot be decoded: {error}", EXAMPLE) from None
    given = request.instances if request.instances is not None else request.candidates
    if given is None or (request.instances is not None and request.candidates is not None):
        raise invalid("send either instances or candidates", EXAMPLE)
    if request.instances is not None and request.context is not None:
        raise invalid("a context needs candidates, not instances", EXAMPLE)
    check_instances(given, max_instances, "instance", EXAMPLE)
    instances = Instances(given, request.context or {}, wall_ms(), request.signals)
    return instances, check_max_staleness(request.max_staleness_ms)


def check_signals(schema: Schema, instances: Instances) -> None:
    """Raise ApiError 422 if signals are asked for where nothing is remembered."""
    if instances.wants_signals and not schema.remembered:
        raise invalid("there are no signals: nothing is remembered", NO_SIGNALS)


def check_instances(given: list[Any], max_instances: int, what: str, example: str) -> None:
    """Raise ApiError 413 for too many instances, 422 with the index of one that is not an object."""
    if len(given) > max_instances:
        hint = "send several requests" if what == "instance" else f"send the best {max_instances} of them at most"
        message = f"{len(given)} {what}s in one request, the limit is {max_instances}"
        raise ApiError(413, "too_many_instances", message, hint)
    for index, instance in enumerate(given):
        if not isinstance(instance, dict):
            details = {"index": index, "field": None}
            raise ApiError(422, "wrong_type", f"{what} {index} is not a JSON object", example, details=details)


def encode_features(schema: Schema, instances: Instances) -> Features:
    """Encode the features of every sample; those that only the context has are encoded once.

    Raises ApiError 422 with the index and field of what cannot be encoded; without an index if it is in the context.
    """
    own_N, context = instances.own_N, instances.context
    schema = schema.recorded
    if not context:
        return _encoded(schema, own_N, "instance")
    names = frozenset().union(*own_N)
    shared = {name: value for name, value in context.items() if name not in names}
    overridden = {name: value for name, value in context.items() if name in names}
    if overridden:
        own_N = [{**overridden, **own} for own in own_N]
    context_features = _encoded(schema, [shared], "context")
    return _with_shared(schema, _encoded(schema, own_N, "candidate"), context_features, frozenset(shared))


def request_times(schema: Schema, instances: Instances) -> Int64Array:
    """Return the time of every sample in ms: that of the schema's timestamp field, else now. ApiError 422."""
    own_N, context = instances.own_N, instances.context
    named = [{**context, **own} for own in own_N] if context else own_N
    try:
        return times_of(schema, named, instances.now_ms)
    except EncodeError as error:
        hint = f"send {error.field} as whole milliseconds since 1970, or leave it out: then it is now"
        details = {"index": error.index, "field": error.field}
        raise ApiError(422, error.reason, f"instance {error.index}: {error}", hint, details=details) from None


def _with_shared(schema: Schema, own: Features, shared: Features, names: frozenset[str]) -> Features:
    """Fill in the features of these names, from the one sample that has the context's values."""
    num_samples = len(own)
    for column, name in enumerate(schema.categorical):
        if name in names:
            own.categorical_NC[:, column] = shared.categorical_NC[0, column]
    for column, name in enumerate(schema.dense):
        if name in names:
            own.dense_NF[:, column] = shared.dense_NF[0, column]
    if own.bias_NB is not None and shared.bias_NB is not None:
        for column, name in enumerate(schema.bias):
            if name in names:
                own.bias_NB[:, column] = shared.bias_NB[0, column]
    lists = list(own.lists)
    for column, name in enumerate(schema.lists):
        if name in names:
            lists[column] = shared.lists[column].repeat(num_samples)
    return replace(own, lists=tuple(lists))


def _encoded(schema: Schema, instances: Sequence[Mapping[str, Any]], what: str) -> Features:
    try:
        return encode_instances(schema, instances, share_values=what == "candidate")
    except EncodeError as error:
        where, details = f"{what} {error.index}", {"index": error.index, "field": error.field}
        if what == "context":
            where = what
            del details["index"]
        hint = f"correct or remove this {what}: nothing was scored"
        raise ApiError(422, error.reason, f"{where}: {error}", hint, details=details) from None
