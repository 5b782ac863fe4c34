"""POST /v1/predict: raw instances in, probabilities out."""

from fastapi import APIRouter, Request

from app.serving.http.preconditions import parse_preconditions
from app.serving.http.responses import JsonResponse
from app.serving.lookup.codecs import STATUS_NAMES
from app.serving.predict.request import Instances, decode_predict_request
from app.serving.service import Service

router = APIRouter(tags=["Predictions"])


@router.post("/v1/predict")
async def predict(request: Request) -> JsonResponse:
    """Score instances

    {"instances": [{raw features}, ...]}, or {"context": {...}, "candidates": [{...}, ...]} where every candidate is
    completed by the context. Answers {"predictions": [{"label": probability}, ...], "version"}; X-Springtide-Rows says
    how many rows stood behind them (known), and how many ids had none: unknown and forgotten ids take the value they
    would be created with, not_admitted ones the row they share.
    """
    service: Service = request.app.state.service
    body = await request.body()
    demand = parse_preconditions(request.headers)

    def read() -> tuple[Instances, float | None]:
        return decode_predict_request(body, service.config.max_instances)

    # small questions are read here: a hand-over costs more
    instances, max_staleness_ms = read() if len(body) < 65_536 else await service.lookups.run(read)
    view = service.replica.view_satisfying(demand.with_max_staleness(max_staleness_ms))
    headers = service.replica.version_headers(view)
    labels, rows = view.schema.labels, []
    if len(instances):
        scores = await service.micro_batcher.predict(view, instances)
        rows = scores.probabilities_NL.tolist()
        by_status = dict(zip(STATUS_NAMES, scores.rows_by_status.tolist(), strict=True))
        for status, number in by_status.items():
            service.metrics.increment("springtide_predict_rows_total", number, status=status)
        headers["X-Springtide-Rows"] = ", ".join(f"{name}={number}" for name, number in by_status.items() if number)
    service.metrics.increment("springtide_predictions_total", len(rows))
    predictions = [dict(zip(labels, row, strict=True)) for row in rows]
    return JsonResponse({"predictions": predictions, "version": view.version}, headers=headers)
