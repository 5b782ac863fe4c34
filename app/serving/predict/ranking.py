"""The request and the response of POST /v1/rank: candidates in, the order in which to show them out."""

# N candidates, K items of the response
import math
import secrets
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from springtide.app.serving.config import ExploreConfig
from springtide.app.serving.http.errors import DECODE_ERRORS, ApiError, bad_request, invalid
from springtide.app.serving.http.preconditions import MaxStalenessMs, check_max_staleness
from springtide.app.serving.predict.request import Instances, Signals, Time, check_instances
from springtide_client.explore import Policy, expected_reward, first_probabilities, rank, scores_of
from springtide_client.system.clock import wall_ms

EXAMPLE = 'send {"request_id": "r-17", "context": {...}, "candidates": [{...}, {...}], "k": 1}'


class RankBody(msgspec.Struct, forbid_unknown_fields=True):
    """A misspelt field is an error: it is never ignored."""

    candidates: Annotated[
        list[Any],
        Meta(description="Raw values by field name, as in the stream.", extra_json_schema={"minItems": 1}),
    ]
    context: Annotated[dict[str, Any], Meta(description="Values that all candidates share.")] = {}
    request_id: Annotated[
        str | None,
        Meta(
            description="Decides, with the version, what is drawn: a repeated request has the same answer. Default: "
            "the server makes one.",
            extra_json_schema={"minLength": 1, "maxLength": 256},
        ),
    ] = None
    k: Annotated[
        int | None,
        Meta(description="Items in the response. Default: all candidates.", extra_json_schema={"minimum": 1}),
    ] = None
    signals: Signals = False
    max_staleness_ms: MaxStalenessMs = None


class RankedItem(msgspec.Struct, forbid_unknown_fields=True):
    """A candidate at its place."""

    index: Annotated[int, Meta(description="Of the candidate in the request.")]
    score: Annotated[float, Meta(description="Log-odds of the probability.")]
    probability: float
    propensity: Annotated[
        float | msgspec.UnsetType,
        Meta(description="Of the drawn places: the chance of this candidate here, given those above it."),
    ] = msgspec.UNSET
    signals: Annotated[
        str | msgspec.UnsetType, Meta(description="What the candidate read of memory, where the request asks for it.")
    ] = msgspec.UNSET


class TargetPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """What another policy would have done with the first place."""

    probability: Annotated[float, Meta(description="With which it shows the item that was shown.")]
    value: Annotated[float, Meta(description="Its expected reward, by the predicted probabilities.")]


class RankResponse(msgspec.Struct, forbid_unknown_fields=True):
    """The order of the candidates, and what a record must bring to estimate what other policies are worth."""

    request_id: str
    version: int
    label: str
    policy: Policy
    order: Annotated[list[int], Meta(description="Indices of the candidates, the first place first.")]
    items: list[RankedItem]
    targets: dict[str, TargetPolicy]
    time: Time = msgspec.UNSET


def decode_rank_request(body: bytes, max_instances: int) -> RankBody:
    """Decode a request; ApiError 400 if it is not JSON of this shape, 413 or 422 if it asks for too much or too little.

    A request without an id gets one.
    """
    try:
        request = msgspec.json.decode(body, type=RankBody)
    except DECODE_ERRORS as error:
        raise bad_request(f"the body cannot be decoded: {error}", EXAMPLE) from None
    check_instances(request.candidates, max_instances, "candidate", EXAMPLE)
    if not request.candidates:
        raise invalid("there are no candidates to rank", f"{EXAMPLE}, with at least one candidate")
    num_candidates = len(request.candidates)
    if request.k is not None and not 1 <= request.k <= num_candidates:
        hint = f"send a k from 1 to the number of candidates, {num_candidates}, or leave it out to get all"
        raise invalid(f"k is {request.k}, there are {num_candidates} candidates", hint)
    if request.request_id is None:
        request.request_id = secrets.token_hex(16)
    if not 1 <= len(request.request_id) <= 256:
        hint = "send a string of 1 to 256 characters, or leave it out"
        raise invalid(f"request_id has {len(request.request_id)} characters", hint)
    check_max_staleness(request.max_staleness_ms)
    return request


def instances_of(request: RankBody) -> Instances:
    """Return the candidates as they are scored."""
    return Instances(request.candidates, request.context, wall_ms(), request.signals)


def rank_candidates(
    request: RankBody, version: int, label: str, probabilities_N: npt.NDArray[np.float32], explore: ExploreConfig
) -> RankResponse:
    """Rank scored candidates by the policy of the settings. ApiError 422 if a prediction is not a number."""
    if math.isnan(probabilities_N.sum()):
        index = int(np.flatnonzero(np.isnan(probabilities_N))[0])
        hint = "without a number nothing can be ranked: see whether /v1/status shows a broken model, and roll back"
        raise ApiError(422, "not_finite", f"candidate {index} is predicted as NaN", hint, details={"index": index})
    assert request.request_id is not None
    policy = explore.named(explore.policy)
    scores_N = scores_of(probabilities_N)
    ranking = rank(scores_N, request.request_id, version, policy)
    order_K = ranking.order_N[: request.k]
    shown = order_K[0]
    targets: dict[str, TargetPolicy] = {}
    for name in explore.policies:
        chances_N = first_probabilities(scores_N, explore.named(name))
        targets[name] = TargetPolicy(float(chances_N[shown]), expected_reward(chances_N, probabilities_N))
    order = order_K.tolist()
    items = list(map(RankedItem, order, scores_N[order_K].tolist(), probabilities_N[order_K].tolist()))
    for item, propensity in zip(items, ranking.propensities_P.tolist(), strict=False):
        item.propensity = propensity
    return RankResponse(request.request_id, version, label, policy, order, items, targets)
