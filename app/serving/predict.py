"""POST /v1/predict: raw instances in, probabilities out."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from springtide_client.encode import encode_instances
from springtide_client.errors import EncodeError

from app.serving.answers import JsonAnswer
from app.serving.demand import read_demand
from app.serving.problems import ApiError, bad_request, invalid
from app.serving.service import Service

router = APIRouter(tags=["Predictions"])

EXAMPLE = 'send {"instances": [{...}]} or {"context": {...}, "candidates": [{...}]}'


class PredictBody(msgspec.Struct, forbid_unknown_fields=True):
    """Either instances, or candidates that share a context. A misspelt context is refused, not passed over."""

    instances: list[Any] | None = None
    context: dict[str, Any] | None = None
    candidates: list[Any] | None = None
    max_staleness_ms: float | None = None


@router.post("/v1/predict")
async def predict(request: Request) -> JsonAnswer:
    """Score instances

    {"instances": [{raw features}, ...]}, or {"context": {...}, "candidates": [{...}, ...]} where every candidate is
    completed by the context. Answers {"predictions": [{"label": probability}, ...], "version"}.
    """
    service: Service = request.app.state.service
    body = await request.body()
    demand = read_demand(request.headers)
    # small questions are read here: a hand-over costs more
    question = read_predict(body) if len(body) < 65_536 else await service.lookups.run(lambda: read_predict(body))
    view = service.replica.demand(demand.tightened(question.max_staleness_ms))

    def work() -> tuple[bytes, int]:
        instances = read_instances(question, service.config.max_instances)
        try:
            features = encode_instances(view.schema, instances)
        except EncodeError as error:
            raise ApiError(
                422,
                error.reason,
                f"instance {error.index}: {error}",
                "mend or leave out this instance: nothing was scored",
                details={"index": error.index, "field": error.field},
            ) from None
        labels = view.schema.labels
        rows = view.predict(features).tolist() if instances else []
        predictions = [dict(zip(labels, row, strict=True)) for row in rows]
        return msgspec.json.encode({"predictions": predictions, "version": view.version}), len(predictions)

    content, num_predictions = await service.predictions.run(work)
    service.metrics.add("springtide_predictions_total", num_predictions)
    return JsonAnswer(msgspec.Raw(content), headers=service.replica.header_texts(view))


def read_predict(body: bytes) -> PredictBody:
    """The body; ApiError 400 where it is no JSON of this shape."""
    try:
        return msgspec.json.decode(body, type=PredictBody)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body cannot be read: {error}", EXAMPLE) from None


def read_instances(question: PredictBody, max_instances: int) -> list[dict[str, Any]]:
    """The instances, each completed by the context; ApiError 422 with the index of one that is no object."""
    given = question.instances if question.instances is not None else question.candidates
    if given is None or (question.instances is not None and question.candidates is not None):
        raise invalid("instances or candidates, one of the two", EXAMPLE)
    if question.instances is not None and question.context is not None:
        raise invalid("a context goes with candidates, not with instances", EXAMPLE)
    if len(given) > max_instances:
        hint = "send several requests"
        raise ApiError(413, "too_many_instances", f"{len(given)} in one request, the limit is {max_instances}", hint)
    for index, instance in enumerate(given):
        if not isinstance(instance, dict):
            raise ApiError(
                422,
                "wrong_type",
                f"instance {index} is no JSON object",
                EXAMPLE,
                details={"index": index, "field": None},
            )
    context = question.context
    return [{**context, **instance} for instance in given] if context else given
