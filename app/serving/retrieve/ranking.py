"""The best items for a user over this server's rows, and over those of all servers of parts."""

import numpy as np

from springtide.app.serving.http.errors import bad_request
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.retrieve.item_set import ItemFilter, NumberRange
from springtide.app.serving.retrieve.request import Query, RetrieveBody, encode_query
from springtide.app.serving.retrieve.retriever import Retriever
from springtide.app.serving.retrieve.search import ServedItems
from springtide.app.serving.retrieve.towers import TowerTemplate, UserInputs
from springtide_client.model.inputs import lookup_keys
from springtide_client.parts.rankings import ItemsRequest, RankedIds, ask_rankings


def find_items(retriever: Retriever, served: ServedItems, body: RetrieveBody) -> RankedIds:
    """Return the best of this server's items; ApiError 422 for what cannot be encoded."""
    template = served.towers.template
    query = encode_query(body, template.user_part, template.layout.part)
    inputs = served.towers.user_inputs(query.user)
    retriever.note(inputs)
    ids_K, scores_K = served.retrieve(
        inputs, query.k, wanted=query.wanted, excluded=query.excluded_X, exact=query.exact
    )
    return RankedIds(ids_K, scores_K, served.towers.view.id_texts(template.layout.number, ids_K))


def find_items_everywhere(
    retriever: Retriever, template: TowerTemplate, view: ServedView, body: RetrieveBody
) -> RankedIds:
    """Return the best items of all parts at a view; ApiError 422 for what cannot be encoded, PartError.

    The user's rows are looked up once, and sent to every part.
    """
    part = view.part
    assert part.servers is not None
    query = encode_query(body, template.user_part, template.layout.part)
    rows_KD, _ = view.client_view.rows_for_model(*lookup_keys(template.user_part, query.user))
    request = encode_request(query, rows_KD)
    return ask_rankings(
        part.servers, view.own_view.tip, request, part.hash_range, lambda: rank_items(retriever, view, request)
    )


def encode_request(query: Query, rows_KD: np.ndarray) -> ItemsRequest:
    """Return a query as parts are asked it."""
    user = query.user
    ranges = {name: value for name, value in query.wanted.items() if isinstance(value, NumberRange)}
    one_of = {name: value for name, value in query.wanted.items() if not isinstance(value, NumberRange)}
    offsets = [ragged.offsets for ragged in user.lists]
    return ItemsRequest(
        k=query.k,
        exact=query.exact,
        dim=rows_KD.shape[1],
        rows=rows_KD.astype("<f4", copy=False).tobytes(),
        offsets=np.array(offsets, "<i8").tobytes(),
        dense=user.dense_NF.astype("<f4", copy=False).tobytes(),
        one_of=one_of,
        within=ranges,
        excluded=query.excluded_X.astype("<i8", copy=False).tobytes(),
    )


def rank_items(retriever: Retriever, view: ServedView, request: ItemsRequest) -> RankedIds:
    """Return the best of this server's items for a user, at exactly this view; ApiError, PartError."""
    served = retriever.at(view)
    template = served.towers.template
    inputs = UserInputs(request.rows_KD, request.offsets_L2, request.dense_1F)
    check_inputs(template, view, inputs)
    retriever.note(inputs)
    ranges = {name: NumberRange(*limits) for name, limits in request.within.items()}
    wanted: ItemFilter = {**request.one_of, **ranges}
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
