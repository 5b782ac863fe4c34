"""POST /v1/predict: raw instances in, probabilities out."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from fastapi import Request

from springtide.app.serving.bounded_pool import BoundedPool
from springtide.app.serving.http.preconditions import parse_preconditions
from springtide.app.serving.http.responses import JsonResponse
from springtide.app.serving.http.route import PRECONDITIONS, VERSION_HEADER, Routes
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.parts.asking import at_one_version
from springtide.app.serving.predict.micro_batcher import MicroBatcher, Predictions
from springtide.app.serving.predict.request import Instances, PredictBody, PredictResponse, decode_predict_request
from springtide_client.model.view import STATUS_NAMES

routes = Routes("Predictions")

# a longer body is decoded by a thread
INLINE_BYTES = 65_536


class PredictParts(NamedTuple):
    """The objects that the route of this module uses."""

    replica: Replica
    metrics: MetricsRegistry
    batcher: MicroBatcher
    decode_pool: BoundedPool
    max_instances: int


@routes.add(
    "POST",
    "/v1/predict",
    scope="predict",
    request=PredictBody,
    response=PredictResponse,
    errors=(400, 413, 421, 422, 503),
    headers=PRECONDITIONS,
    response_headers=VERSION_HEADER,
)
async def predict(request: Request) -> JsonResponse:
    """Score instances

    {"instances": [{raw features}, ...]}, or {"context": {...}, "candidates": [{...}, ...]} where the context is added
    to every candidate. The response is {"predictions": [{"label": probability}, ...], "version"}. X-Springtide-Rows
    counts the rows that were used by status: unknown and forgotten ids use the value they would be created with,
    not_admitted ids the shared row. X-Springtide-Missing counts the instances that have no value of a feature, by
    feature: a name that is misspelt is found there.
    """
    parts: PredictParts = request.app.state.predict
    body = await request.body()
    preconditions = parse_preconditions(request.headers)

    def decode() -> tuple[Instances, float | None]:
        return decode_predict_request(body, parts.max_instances)

    instances, max_staleness_ms = decode() if len(body) < INLINE_BYTES else await parts.decode_pool.run(decode)

    async def score(view: ServedView) -> tuple[ServedView, Predictions | None]:
        view.part.check_knows_all("predictions")
        return view, await parts.batcher.predict(view, instances) if len(instances) else None

    preconditions = preconditions.with_max_staleness(max_staleness_ms)
    view, predictions = await at_one_version(parts.replica, preconditions, score)
    headers = parts.replica.version_headers(view)
    labels, probabilities = view.schema.labels, []
    if predictions is not None:
        probabilities = predictions.probabilities_NL.tolist()
        rows_by_status = dict(zip(STATUS_NAMES, predictions.rows_by_status.tolist(), strict=True))
        for status, number in rows_by_status.items():
            parts.metrics.increment("springtide_predict_rows_total", number, status=status)
        headers["X-Springtide-Rows"] = _counts(rows_by_status)
        schema = view.schema
        names = (*schema.categorical, *schema.lists, *schema.dense)
        missing = dict(zip(names, predictions.missing_F.tolist(), strict=True))
        for feature, number in missing.items():
            if number:
                parts.metrics.increment("springtide_predict_missing_total", number, feature=feature)
        if any(missing.values()):
            headers["X-Springtide-Missing"] = _counts(missing)
    parts.metrics.increment("springtide_predictions_total", len(probabilities))
    named = [dict(zip(labels, row, strict=True)) for row in probabilities]
    return JsonResponse(PredictResponse(named, view.version), headers=headers)


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{quote(name)}={number}" for name, number in numbers.items() if number)
