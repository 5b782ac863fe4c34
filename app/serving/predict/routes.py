"""POST /v1/predict: raw instances in, probabilities out. POST /v1/rank: the order in which to show candidates."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar
from urllib.parse import quote

from fastapi import Request
from starlette.datastructures import State

from springtide.app.serving.http.errors import invalid
from springtide.app.serving.http.preconditions import parse_preconditions
from springtide.app.serving.http.responses import JsonResponse
from springtide.app.serving.http.route import PRECONDITIONS, VERSION_HEADER, Routes
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.predict.micro_batcher import MicroBatcher, Predictions
from springtide.app.serving.predict.ranking import (
    RankBody,
    RankResponse,
    decode_rank_request,
    instances_of,
    rank_candidates,
)
from springtide.app.serving.predict.request import (
    PREDICT_BODY,
    PredictResponse,
    check_signals,
    decode_predict_request,
)
from springtide_client.model.view import STATUS_NAMES

routes = Routes("Predictions")

# a longer body is decoded by a thread, more candidates are ranked by one
INLINE_BYTES = 65_536
INLINE_CANDIDATES = 1_024
Result = TypeVar("Result")


@routes.add(
    "POST",
    "/v1/predict",
    scope="predict",
    request=PREDICT_BODY,
    response=PredictResponse,
    errors=(400, 413, 421, 422, 503),
    headers=PRECONDITIONS,
    response_headers=VERSION_HEADER,
    direct=True,
)
async def predict(request: Request) -> JsonResponse:
    """Score instances

    {"instances": [{raw features}, ...]}, or {"context": {...}, "candidates": [{...}, ...]} where the context is added
    to every candidate. The response is {"predictions": [{"label": probability}, ...], "version"}. X-Springtide-Rows
    counts the rows that were used by status: unknown and forgotten ids use the value they would be created with,
    not_admitted ids the shared row. X-Springtide-Missing counts the instances that have no value of a feature, by
    feature: a name that is misspelt is found there. X-Springtide-Memory says whether this version has all that
    the instances may read of [sequences], [remember] and [counters] at their times, `time` where they name none:
    complete, or behind.
    """
    state = request.app.state
    replica: Replica = state.replica
    batcher: MicroBatcher = state.micro_batcher
    body = await request.body()
    preconditions = parse_preconditions(request.headers)
    instances, max_staleness_ms = await _inline_or_in_thread(
        state, len(body) < INLINE_BYTES, partial(decode_predict_request, body, state.config.max_instances)
    )

    async def score(view: ServedView) -> tuple[ServedView, Predictions | None]:
        view.part.check_knows_all("predictions")
        check_signals(view.schema, instances)
        return view, await batcher.predict(view.client_view, instances) if len(instances) else None

    preconditions = preconditions.with_max_staleness(max_staleness_ms)
    view, predictions = await replica.at_one_version(preconditions, score)
    labels, response, headers = view.schema.labels, PredictResponse([], view.version), replica.version_headers(view)
    if view.schema.remembered:
        response.time = instances.now_ms
    if predictions is not None:
        headers |= _memory_headers(predictions) | _count_rows(state.metrics, view, predictions)
        response.predictions = [dict(zip(labels, row, strict=True)) for row in predictions.probabilities_NL.tolist()]
        response.signals = predictions.signals
    return JsonResponse(response, headers=headers)


@routes.add(
    "POST",
    "/v1/rank",
    scope="predict",
    request=RankBody,
    response=RankResponse,
    errors=(400, 413, 421, 422, 503),
    headers=PRECONDITIONS,
    response_headers=VERSION_HEADER,
    direct=True,
)
async def rank(request: Request) -> JsonResponse:
    """Rank candidates, some places drawn

    {"request_id": "r-17", "context": {raw features}, "candidates": [{raw features}, ...], "k": 10}, where the context
    is added to every candidate. The response has the first k candidates in the order in which to show them. By
    [serve.explore] some of the first places are drawn, and `propensity` is the probability of what was drawn: with rank
    of springtide_client.explore anybody computes both again, from predictions, `request_id`, `version` and `policy`.
    `targets`: the probability with which other policies show the item at the first place, and their expected reward.
    """
    state = request.app.state
    replica: Replica = state.replica
    batcher: MicroBatcher = state.micro_batcher
    explore = state.exploration
    body = await request.body()
    preconditions = parse_preconditions(request.headers)
    asked = await _inline_or_in_thread(
        state, len(body) < INLINE_BYTES, partial(decode_rank_request, body, state.config.max_instances)
    )
    instances = instances_of(asked)

    async def score(view: ServedView) -> tuple[ServedView, int, Predictions]:
        view.part.check_knows_all("predictions")
        try:
            label = explore.place_of_label(view.schema)
        except ValueError as error:
            raise invalid(f"[serve.explore] {error}", "change [serve.explore] label and restart the server") from None
        check_signals(view.schema, instances)
        # alone: then HotModel computes exactly the same predictions for these candidates
        return view, label, await batcher.predict(view.client_view, instances, alone=True)

    preconditions = preconditions.with_max_staleness(asked.max_staleness_ms)
    view, label, predictions = await replica.at_one_version(preconditions, score)
    probabilities_N = predictions.probabilities_NL[:, label]
    response = await _inline_or_in_thread(
        state,
        len(probabilities_N) <= INLINE_CANDIDATES,
        partial(rank_candidates, asked, view.version, view.schema.labels[label], probabilities_N, explore),
    )
    state.metrics.increment("springtide_rankings_total", policy=response.policy.name)
    if view.schema.remembered:
        response.time = instances.now_ms
    if instances.wants_signals:
        signals = predictions.signals
        assert isinstance(signals, list)
        for item in response.items:
            item.signals = signals[item.index]
    headers = replica.version_headers(view) | _memory_headers(predictions)
    return JsonResponse(response, headers=headers | _count_rows(state.metrics, view, predictions))


def _memory_headers(predictions: Predictions) -> dict[str, str]:
    """Whether this version has all that the instances may read; {} where nothing is remembered."""
    if predictions.recalled is None:
        return {}
    return {"X-Springtide-Memory": "complete" if predictions.recalled.is_complete else "behind"}


async def _inline_or_in_thread(state: State, is_inline: bool, call: Callable[[], Result]) -> Result:
    return call() if is_inline else await state.pools.lookups.run(call)


def _count_rows(metrics: MetricsRegistry, view: ServedView, predictions: Predictions) -> dict[str, str]:
    """Count what was scored; returns the headers that tell of rows and missing values."""
    headers = {}
    rows_by_status = dict(zip(STATUS_NAMES, predictions.rows_by_status.tolist(), strict=True))
    for status, number in rows_by_status.items():
        metrics.increment("springtide_predict_rows_total", number, status=status)
    headers["X-Springtide-Rows"] = _counts(rows_by_status)
    schema = view.schema
    names = (*schema.categorical, *schema.lists, *schema.dense)
    missing = dict(zip(names, predictions.missing_F.tolist(), strict=True))
    for feature, number in missing.items():
        if number:
            metrics.increment("springtide_predict_missing_total", number, feature=feature)
    if any(missing.values()):
        headers["X-Springtide-Missing"] = _counts(missing)
    metrics.increment("springtide_predictions_total", len(predictions.probabilities_NL))
    return headers


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{quote(name)}={number}" for name, number in numbers.items() if number)
