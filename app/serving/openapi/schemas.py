"""The JSON of bodies and answers, as JSON Schema: the components of the OpenAPI page."""

from typing import Any

Shape = dict[str, Any]

ROW_STATUS = ("known", "unknown", "not_admitted", "forgotten")

TEXT: Shape = {"type": "string"}
NUMBER: Shape = {"type": "number"}
WHOLE: Shape = {"type": "integer"}
COUNT: Shape = {"type": "integer", "minimum": 0}
ANY: Shape = {"type": "object"}


def record(*, optional: dict[str, Shape] | None = None, is_open: bool = False, **fields: Shape) -> Shape:
    """An object of these fields; `is_open` where there may be more."""
    shape: Shape = {"type": "object", "required": list(fields), "properties": {**fields, **(optional or {})}}
    return shape if is_open else shape | {"additionalProperties": False}


def list_of(shape: Shape, **limits: int) -> Shape:
    return {"type": "array", "items": shape, **limits}


def or_null(shape: Shape) -> Shape:
    return {"anyOf": [shape, {"type": "null"}]}


def ref(name: str) -> Shape:
    return {"$ref": f"#/components/schemas/{name}"}


def rows(vectors: Shape) -> Shape:
    return record(
        feature=FEATURE,
        version=WHOLE,
        dim=COUNT,
        ids=list_of({}),
        status=list_of({"enum": list(ROW_STATUS)}),
        vectors=vectors,
    )


FEATURE = TEXT | {"description": "The name of an id feature."}
ID: Shape = {
    "anyOf": [WHOLE, TEXT],
    "description": "An integer or a text; a decimal text is its number.",
}
# what else is the same id as an integer, a text or a missing value in a record
LOOSE_ID: Shape = {"type": ["integer", "string", "boolean", "null"]}
STALENESS: Shape = or_null({"type": "number", "minimum": 0, "description": "Refuse with 503 what is older than this."})
INSTANCE: Shape = {
    "type": "object",
    "description": "Raw values by field, as in the stream.",
}
FAULT = record(
    code=TEXT | {"description": "Stable, for programs."},
    message=TEXT,
    hint=TEXT | {"description": "What to do about it."},
    optional={"index": COUNT, "field": or_null(TEXT)},
)
VERSION = record(
    version=WHOLE,
    name=TEXT,
    epoch=WHOLE,
    count=WHOLE,
    parent=TEXT,
    checksum=TEXT,
    created_ms=WHOLE,
    complete_until_ms=WHOLE,
    positions=ANY,
    scores=ANY,
    is_open=True,
)
KEY = record(feature=FEATURE, id={"type": ["integer", "string", "boolean", "number"]})

SHAPES: dict[str, Shape] = {
    "Error": record(error=FAULT),
    "AbsentRow": record(
        error=FAULT, optional={"feature": TEXT, "id": ID, "status": {"enum": list(ROW_STATUS[1:])}, "version": WHOLE}
    ),
    "Row": record(
        feature=FEATURE,
        id=ID,
        status={"const": "known"},
        vector=list_of(or_null(NUMBER)),
        count=COUNT | {"description": "Occurrences in learned samples since its creation."},
        last_seen_ms=WHOLE,
        version=WHOLE,
    ),
    "Ids": record(ids=list_of(LOOSE_ID), optional={"max_staleness_ms": STALENESS}),
    "Rows": rows(list_of(or_null(list_of(or_null(NUMBER))))),
    "PackedRows": rows({"type": "string", "format": "binary", "description": "N x dim little-endian float32."}),
    "Neighbors": record(
        feature=FEATURE,
        id=ID,
        version=WHOLE,
        metric={"enum": ["cosine", "dot", "euclidean"]},
        neighbors=list_of(record(id=ID, score=or_null(NUMBER))),
    ),
    "Question": {
        "oneOf": [
            record(instances=list_of(INSTANCE), optional={"max_staleness_ms": STALENESS}),
            record(candidates=list_of(INSTANCE), optional={"context": INSTANCE, "max_staleness_ms": STALENESS}),
        ]
    },
    "Predictions": record(
        predictions=list_of(
            {"type": "object", "additionalProperties": or_null({"type": "number", "minimum": 0, "maximum": 1})}
        ),
        version=WHOLE,
    ),
    "Version": VERSION,
    "Versions": record(versions=list_of(ref("Version")), next_before=or_null(WHOLE)),
    "Base": record(number=WHOLE, checksum=WHOLE, files=ANY, is_open=True),
    "Status": record(
        trainer={"enum": ["running", "catching_up", "waiting", "stopped", "failed"]},
        reason=TEXT,
        freshness_ms=or_null(record(p50=NUMBER, p99=NUMBER, is_open=True)),
        staleness_ms=or_null(COUNT),
        now_ms=WHOLE,
        server=ANY,
        is_open=True,
    ),
    "Alive": record(status={"const": "ok"}),
    "Ready": record(status={"const": "ready"}, version=WHOLE),
    "Forget": {
        "anyOf": [
            KEY,
            record(feature=FEATURE, ids=list_of(KEY["properties"]["id"], minItems=1)),
            record(keys=list_of(KEY, minItems=1)),
        ]
    },
    "Limits": {"type": "object", "minProperties": 1},
    "Rollback": record(version=COUNT, optional={"skip": {"type": "boolean"}}),
    "Accepted": record(order=TEXT, kind=TEXT, state={"const": "accepted"}, note=TEXT),
    "Receipt": record(
        order=TEXT,
        state={"enum": ["waiting", "taken", "published", "durable"]},
        kind=or_null(TEXT),
        version=or_null(WHOLE),
        name=or_null(TEXT),
        result={},
        keys=list_of(ANY),
        note=TEXT,
    ),
}
