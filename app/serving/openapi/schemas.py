"""The JSON of bodies and answers, as JSON Schema: the components of the OpenAPI page."""

from typing import Any

JsonSchema = dict[str, Any]

ROW_STATUS = ("known", "unknown", "not_admitted", "forgotten")

TEXT: JsonSchema = {"type": "string"}
NUMBER: JsonSchema = {"type": "number"}
WHOLE: JsonSchema = {"type": "integer"}
COUNT: JsonSchema = {"type": "integer", "minimum": 0}
ANY: JsonSchema = {"type": "object"}


def object_of(
    *, optional: dict[str, JsonSchema] | None = None, is_open: bool = False, **fields: JsonSchema
) -> JsonSchema:
    """An object of these fields; `is_open` where there may be more."""
    shape: JsonSchema = {"type": "object", "required": list(fields), "properties": {**fields, **(optional or {})}}
    return shape if is_open else shape | {"additionalProperties": False}


def list_of(shape: JsonSchema, **limits: int) -> JsonSchema:
    return {"type": "array", "items": shape, **limits}


def or_null(shape: JsonSchema) -> JsonSchema:
    return {"anyOf": [shape, {"type": "null"}]}


def ref(name: str) -> JsonSchema:
    return {"$ref": f"#/components/schemas/{name}"}


def rows(vectors: JsonSchema) -> JsonSchema:
    return object_of(
        feature=FEATURE,
        version=WHOLE,
        dim=COUNT,
        ids=list_of({}),
        status=list_of({"enum": list(ROW_STATUS)}),
        vectors=vectors,
    )


FEATURE = TEXT | {"description": "The name of an id feature."}
ID: JsonSchema = {
    "anyOf": [WHOLE, TEXT],
    "description": "An integer or a text; a decimal text is its number.",
}
# what else is the same id as an integer, a text or a missing value in a record
LOOSE_ID: JsonSchema = {"type": ["integer", "string", "boolean", "null"]}
STALENESS: JsonSchema = or_null(
    {"type": "number", "minimum": 0, "description": "Refuse with 503 what is older than this."}
)
INSTANCE: JsonSchema = {
    "type": "object",
    "description": "Raw values by field, as in the stream.",
}
FAULT = object_of(
    code=TEXT | {"description": "Stable, for programs."},
    message=TEXT,
    hint=TEXT | {"description": "What to do about it."},
    optional={"index": COUNT, "field": or_null(TEXT)},
)
VERSION = object_of(
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
KEY = object_of(feature=FEATURE, id={"type": ["integer", "string", "boolean", "number"]})

SCHEMAS: dict[str, JsonSchema] = {
    "Error": object_of(error=FAULT),
    "AbsentRow": object_of(
        error=FAULT, optional={"feature": TEXT, "id": ID, "status": {"enum": list(ROW_STATUS[1:])}, "version": WHOLE}
    ),
    "Row": object_of(
        feature=FEATURE,
        id=ID,
        status={"const": "known"},
        vector=list_of(or_null(NUMBER)),
        count=COUNT | {"description": "Occurrences in learned samples since its creation."},
        last_seen_ms=WHOLE,
        version=WHOLE,
    ),
    "Ids": object_of(ids=list_of(LOOSE_ID), optional={"max_staleness_ms": STALENESS}),
    "Rows": rows(list_of(or_null(list_of(or_null(NUMBER))))),
    "PackedRows": rows({"type": "string", "format": "binary", "description": "N x dim little-endian float32."}),
    "Neighbors": object_of(
        feature=FEATURE,
        id=ID,
        version=WHOLE,
        metric={"enum": ["cosine", "dot", "euclidean"]},
        neighbors=list_of(object_of(id=ID, score=or_null(NUMBER))),
    ),
    "Question": {
        "oneOf": [
            object_of(instances=list_of(INSTANCE), optional={"max_staleness_ms": STALENESS}),
            object_of(candidates=list_of(INSTANCE), optional={"context": INSTANCE, "max_staleness_ms": STALENESS}),
        ]
    },
    "Predictions": object_of(
        predictions=list_of(
            {"type": "object", "additionalProperties": or_null({"type": "number", "minimum": 0, "maximum": 1})}
        ),
        version=WHOLE,
    ),
    "Version": VERSION,
    "Versions": object_of(versions=list_of(ref("Version")), next_before=or_null(WHOLE)),
    "Base": object_of(number=WHOLE, checksum=WHOLE, files=ANY, is_open=True),
    "Status": object_of(
        trainer={"enum": ["running", "catching_up", "waiting", "stopped", "failed"]},
        reason=TEXT,
        freshness_ms=or_null(object_of(p50=NUMBER, p99=NUMBER, is_open=True)),
        staleness_ms=or_null(COUNT),
        now_ms=WHOLE,
        server=ANY,
        is_open=True,
    ),
    "Alive": object_of(status={"const": "ok"}),
    "Ready": object_of(status={"const": "ready"}, version=WHOLE),
    "Forget": {
        "anyOf": [
            KEY,
            object_of(feature=FEATURE, ids=list_of(KEY["properties"]["id"], minItems=1)),
            object_of(keys=list_of(KEY, minItems=1)),
        ]
    },
    "Limits": {"type": "object", "minProperties": 1},
    "Rollback": object_of(version=COUNT, optional={"skip": {"type": "boolean"}}),
    "Accepted": object_of(order=TEXT, kind=TEXT, state={"const": "accepted"}, note=TEXT),
    "Receipt": object_of(
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
