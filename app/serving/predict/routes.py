"""POST /v1/predict: raw instances in, probabilities out."""

from collections.abc import Mapping
from functools import partial
from urllib.parse import quote

from fastapi import Request

from springtide.app.serving.http.preconditions import parse_preconditions
from springtide.app.serving.http.responses import JsonResponse
from springtide.app.serving.http.route import PRECONDITIONS, VERSION_HEADER, Routes
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import Replica
from springtide.app.serving.model.served_view import ServedView
from springtide.app.serving.predict.micro_batcher import MicroBatcher, Predictions
from springtide.app.serving.predict.request import PREDICT_BODY, PredictResponse, decode_predict_request
from springtide_client.model.view import STATUS_NAMES

routes = Routes("Predictions")

# a longer body is decoded by a thread
INLINE_BYTES = 65_536


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
    feature: a name that is misspelt is found there.
    """
    state = request.app.state
    replica: Replica = state.replica
    metrics: MetricsRegistry = state.metrics
    batcher: MicroBatcher = state.micro_batcher
    body = await request.body()
    preconditions = parse_preconditions(request.headers)

    decode = partial(decode_predict_request, body, state.config.max_instances)
    is_inline = len(body) < INLINE_BYTES
    instances, max_staleness_ms = decode() if is_inline else await state.pools.lookups.run(decode)

    async def score(view: ServedView) -> tuple[ServedView, Predictions | None]:
        view.part.check_knows_all("predictions")
        return view, await batcher.predict(view.client_view, instances) if len(instances) else None

    preconditions = preconditions.with_max_staleness(max_staleness_ms)
    view, predictions = await replica.at_one_version(preconditions, score)
    headers = replica.version_headers(view)
    labels, probabilities = view.schema.labels, []
    if predictions is not None:
        probabilities = predictions.probabilities_NL.tolist()
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
    metrics.increment("springtide_predictions_total", len(probabilities))
    named = [dict(zip(labels, row, strict=True)) for row in probabilities]
    return JsonResponse(PredictResponse(named, view.version), headers=headers)


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{quote(name)}={number}" for name, number in numbers.items() if number)
