"""POST /v1/predict: raw instances in, probabilities out."""

from fastapi import APIRouter, Request

from app.serving.http.preconditions import read_demand
from app.serving.http.responses import JsonAnswer
from app.serving.lookup.codecs import STATUS_NAMES
from app.serving.predict.request import Instances, read_predict
from app.serving.service import Service

router = APIRouter(tags=["Predictions"])


@router.post("/v1/predict")
async def predict(request: Request) -> JsonAnswer:
    """Score instances

    {"instances": [{raw features}, ...]}, or {"context": {...}, "candidates": [{...}, ...]} where every candidate is
    completed by the context. Answers {"predictions": [{"label": probability}, ...], "version"}; X-Springtide-Rows says
    how many rows stood behind them (known), and how many ids had none: unknown and forgotten ids take the value they
    would be created with, not_admitted ones the row they share.
    """
    service: Service = request.app.state.service
    body = await request.body()
    demand = read_demand(request.headers)

    def read() -> tuple[Instances, float | None]:
        return read_predict(body, service.config.max_instances)

    # small questions are read here: a hand-over costs more
    instances, max_staleness_ms = read() if len(body) < 65_536 else await service.lookups.run(read)
    view = service.replica.demand(demand.tightened(max_staleness_ms))
    headers = service.replica.header_texts(view)
    labels, rows = view.schema.labels, []
    if len(instances):
        scores = await service.scorer.score(view, instances)
        rows = scores.probabilities_NL.tolist()
        by_status = dict(zip(STATUS_NAMES, scores.rows_by_status.tolist(), strict=True))
        for status, number in by_status.items():
            service.metrics.add("springtide_predict_rows_total", number, status=status)
        headers["X-Springtide-Rows"] = ", ".join(f"{name}={number}" for name, number in by_status.items() if number)
    service.metrics.add("springtide_predictions_total", len(rows))
    predictions = [dict(zip(labels, row, strict=True)) for row in rows]
    return JsonAnswer({"predictions": predictions, "version": view.version}, headers=headers)
