"""The best items for a user over this server's rows, and over those of all servers of parts."""

# X excluded items
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from springtide.app.models.retrieval.schema_part import SchemaPart
from springtide.app.serving.http.errors import DECODE_ERRORS, ApiError, bad_request, invalid
from springtide.app.serving.http.preconditions import MaxStalenessMs, check_max_staleness
from springtide.app.serving.http.route import RequestId
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.retrieve.retriever import Retriever
from springtide.app.serving.retrieve.served_items import ItemFilter, NumberRange, ServedItems
from springtide.app.serving.retrieve.towers import TowerTemplate, UserInputs, user_rows
from springtide_client.encode import encode_instances, parse_number
from springtide_client.errors import EncodeError
from springtide_client.keys import encode_id
from springtide_client.parts.rankings import ItemsRequest, RankedIds, ask_rankings

EXAMPLE = 'send {"user": {...}, "k": 10, "filter": {"genre": ["jazz"], "price": {"max": 20}}, "exclude": [17]}'


class RetrieveBody(msgspec.Struct, forbid_unknown_fields=True):
    """A misspelt field is an error: it is never ignored."""

    user: Annotated[dict[str, Any], Meta(description="Raw values by field name, as in the stream.")]
    k: Annotated[int, Meta(extra_json_schema={"minimum": 1})] = 10
    filter: Annotated[
        dict[str, Any],
        Meta(description="By feature of the items: ids of which an item must have one, or a range of numbers."),
    ] = {}
    exclude: list[RequestId] = []
    exact: Annotated[bool, Meta(description="Compare all vectors instead of asking the index.")] = False
    max_staleness_ms: MaxStalenessMs = None


class RetrieveResponse(msgspec.Struct, forbid_unknown_fields=True):
    """The best items, the best first."""

    items: list["RetrievedItem"]
    version: int


class RetrievedItem(msgspec.Struct, forbid_unknown_fields=True):
    """An item with its score."""

    id: Any
    score: float


def decode_retrieve_request(body: bytes, *, max_k: int, max_excluded: int) -> RetrieveBody:
    """Decode a request; ApiError 400 if it is not JSON of this shape, 413 or 422 if it asks for too much."""
    try:
        request = msgspec.json.decode(body, type=RetrieveBody)
    except DECODE_ERRORS as error:
        raise bad_request(f"the body cannot be decoded: {error}", EXAMPLE) from None
    if not 1 <= request.k <= max_k:
        raise invalid(f"k is {request.k}, it must be from 1 to {max_k}", "ask for fewer items")
    if len(request.exclude) > max_excluded:
        message = f"{len(request.exclude)} items to exclude, the limit is {max_excluded}"
        raise ApiError(413, "too_many_ids", message, "exclude fewer")
    check_max_staleness(request.max_staleness_ms)
    return request


def encode_request(body: RetrieveBody, template: TowerTemplate, view: ServedView) -> ItemsRequest:
    """Return a request as parts are asked it, with the user's rows of a view, which are looked up once for all parts.

    ApiError 422 names what cannot be encoded. PartError.
    """
    try:
        user = encode_instances(template.user_part, [body.user])
    except EncodeError as error:
        details = {"field": error.field}
        raise ApiError(422, error.reason, f"user: {error}", "correct or remove this field", details=details) from None
    wanted = {name: _condition(name, value, template.layout.part) for name, value in body.filter.items()}
    excluded = np.array(_ids("exclude", body.exclude), "<i8")
    rows_KD = user_rows(view, template.user_part, user)
    return ItemsRequest(
        k=body.k,
        exact=body.exact,
        dim=rows_KD.shape[1],
        rows=rows_KD.astype("<f4", copy=False).tobytes(),
        offsets=np.array([ragged.offsets for ragged in user.lists], "<i8").tobytes(),
        dense=user.dense_NF.astype("<f4", copy=False).tobytes(),
        one_of={name: value for name, value in wanted.items() if not isinstance(value, NumberRange)},
        within={name: value for name, value in wanted.items() if isinstance(value, NumberRange)},
        excluded=excluded.tobytes(),
    )


def _condition(name: str, value: Any, part: SchemaPart) -> tuple[int, ...] | NumberRange:
    if name in part.features:
        if not isinstance(value, list) or not value:
            raise invalid(f"filter: {name} needs a list of ids, of which an item must have one", EXAMPLE)
        return _ids(name, value)
    if name not in part.dense:
        known = ", ".join((*part.features, *part.dense))
        raise invalid(f"filter: {name!r} is no feature of an item", f"the features of an item are {known}")
    if not isinstance(value, dict) or not value or not value.keys() <= {"min", "max"}:
        raise invalid(f'filter: {name} is a number and needs {{"min": ..., "max": ...}} or one of the two', EXAMPLE)
    try:
        limits = {bound: parse_number(limit) for bound, limit in value.items()}
    except EncodeError as error:
        raise invalid(f"filter: {name}: {error}", EXAMPLE) from None
    return NumberRange(limits.get("min", -np.inf), limits.get("max", np.inf))


def _ids(name: str, values: list[Any]) -> tuple[int, ...]:
    try:
        return tuple(encode_id(value)[0] for value in values)
    except EncodeError as error:
        raise invalid(f"{name}: {error}", "send ids as in the stream: integers or strings") from None


def find_items(retriever: Retriever, served: ServedItems, body: RetrieveBody) -> RankedIds:
    """Return the best of this server's items; ApiError 422 for what cannot be encoded."""
    return _rank(retriever, served, encode_request(body, served.towers.template, served.towers.view))


def find_items_everywhere(retriever: Retriever, view: ServedView, body: RetrieveBody) -> RankedIds:
    """Return the best items of all parts at a view; ApiError 422 for what cannot be encoded, PartError."""
    part = view.part
    assert part.servers is not None
    request = encode_request(body, retriever.template_of(view), view)
    return ask_rankings(
        part.servers, view.own_view.head, request, part.hash_range, lambda: rank_items(retriever, view, request)
    )


def rank_items(retriever: Retriever, view: ServedView, request: ItemsRequest) -> RankedIds:
    """Return the best of this server's items for a user, at exactly this view; ApiError, PartError."""
    return _rank(retriever, retriever.at(view), request)


def _rank(retriever: Retriever, served: ServedItems, request: ItemsRequest) -> RankedIds:
    template, view = served.towers.template, served.towers.view
    inputs = UserInputs(request.rows_KD, request.offsets_L2, request.dense_1F)
    check_inputs(template, view, inputs)
    retriever.note(inputs)
    wanted: ItemFilter = {**request.one_of, **{name: NumberRange(*limits) for name, limits in request.within.items()}}
    ids_K, scores_K = served.retrieve(
        inputs, request.k, wanted=wanted, excluded=request.excluded_X, exact=request.exact
    )
    return RankedIds(ids_K, scores_K, view.id_texts(template.layout.number, ids_K))


def check_inputs(template: TowerTemplate, view: ServedView, inputs: UserInputs) -> None:
    """Raise ApiError 400 for inputs that are not those of a user of this model: compiled code reads them unchecked."""
    part, offsets_L2 = template.user_part, inputs.offsets_LN1
    num_keys = len(part.categorical) + int(offsets_L2[:, 1].sum())
    is_fit = (
        inputs.rows_KD.shape == (num_keys, view.client_view.dim)
        and len(offsets_L2) == len(part.lists)
        and not offsets_L2[:, 0].any()
        and bool((offsets_L2 >= 0).all())
        and inputs.dense_NF.shape == (1, len(part.dense))
    )
    if not is_fit:
        raise bad_request("not a request for items: its rows are not those of a user of this model")
