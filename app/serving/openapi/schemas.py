"""JSON Schemas of request and response bodies: the components of the OpenAPI document."""

from typing import Any

from springtide_client.model.view import STATUS_NAMES

JsonSchema = dict[str, Any]

STRING: JsonSchema = {"type": "string"}
NUMBER: JsonSchema = {"type": "number"}
INTEGER: JsonSchema = {"type": "integer"}
COUNT: JsonSchema = {"type": "integer", "minimum": 0}
ANY_OBJECT: JsonSchema = {"type": "object"}


def object_of(
    *, optional: dict[str, JsonSchema] | None = None, has_more: bool = False, **fields: JsonSchema
) -> JsonSchema:
    """An object with these fields, and with others if `has_more`."""
    schema: JsonSchema = {"type": "object", "required": list(fields), "properties": {**fields, **(optional or {})}}
    return schema if has_more else schema | {"additionalProperties": False}


def list_of(schema: JsonSchema, **limits: int) -> JsonSchema:
    return {"type": "array", "items": schema, **limits}


def or_null(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> JsonSchema:
    return {"$ref": f"#/components/schemas/{name}"}


def _lookup_response(vectors: JsonSchema) -> JsonSchema:
    return object_of(
        feature=FEATURE,
        version=INTEGER,
        dim=COUNT,
        ids=list_of({}),
        status=list_of({"enum": list(STATUS_NAMES)}),
        vectors=vectors,
    )


FEATURE = STRING | {"description": "The name of an id feature."}
ID: JsonSchema = {
    "anyOf": [INTEGER, STRING],
    "description": "An integer or a string; a decimal string is the same id as its number.",
}
# a record may also have booleans and null as ids
ID_IN_BODY: JsonSchema = {"type": ["integer", "string", "boolean", "null"]}
STALENESS: JsonSchema = or_null(
    {"type": "number", "minimum": 0, "description": "Respond with 503 if the served version is staler than this."}
)
INSTANCE: JsonSchema = {
    "type": "object",
    "description": "Raw values by field name, as in the stream.",
}
ERROR = object_of(
    code=STRING | {"description": "Stable, for programs."},
    message=STRING,
    hint=STRING | {"description": "What to do about it."},
    optional={"index": COUNT, "field": or_null(STRING)},
)
VERSION = object_of(
    version=INTEGER,
    name=STRING,
    epoch=INTEGER,
    count=INTEGER,
    parent=STRING,
    checksum=STRING,
    created_ms=INTEGER,
    complete_until_ms=INTEGER,
    positions=ANY_OBJECT,
    scores=ANY_OBJECT,
    has_more=True,
)
KEY = object_of(feature=FEATURE, id={"type": ["integer", "string", "boolean", "number"]})

SCHEMAS: dict[str, JsonSchema] = {
    "Error": object_of(error=ERROR),
    "AbsentRow": object_of(
        error=ERROR,
        optional={"feature": STRING, "id": ID, "status": {"enum": list(STATUS_NAMES[1:])}, "version": INTEGER},
    ),
    "Row": object_of(
        feature=FEATURE,
        id=ID,
        status={"const": "known"},
        vector=list_of(or_null(NUMBER)),
        count=COUNT | {"description": "Occurrences of the id in learned samples since the row was created."},
        last_seen_ms=INTEGER,
        version=INTEGER,
    ),
    "LookupRequest": object_of(ids=list_of(ID_IN_BODY), optional={"max_staleness_ms": STALENESS}),
    "LookupResponse": _lookup_response(list_of(or_null(list_of(or_null(NUMBER))))),
    "PackedLookupResponse": _lookup_response(
        {"type": "string", "format": "binary", "description": "N x dim little-endian float32."}
    ),
    "Neighbors": object_of(
        feature=FEATURE,
        id=ID,
        version=INTEGER,
        metric={"enum": ["cosine", "dot", "euclidean"]},
        neighbors=list_of(object_of(id=ID, score=or_null(NUMBER))),
    ),
    "PredictRequest": {
        "oneOf": [
            object_of(instances=list_of(INSTANCE), optional={"max_staleness_ms": STALENESS}),
            object_of(candidates=list_of(INSTANCE), optional={"context": INSTANCE, "max_staleness_ms": STALENESS}),
        ]
    },
    "Predictions": object_of(
        predictions=list_of(
            {"type": "object", "additionalProperties": or_null({"type": "number", "minimum": 0, "maximum": 1})}
        ),
        version=INTEGER,
    ),
    "RetrieveRequest": object_of(
        user=INSTANCE,
        optional={
            "k": {"type": "integer", "minimum": 1, "default": 10},
            "filter": {
                "type": "object",
                "description": "By feature of the items: ids of which an item must have one, or a range of numbers.",
                "additionalProperties": {
                    "anyOf": [
                        list_of(ID_IN_BODY, minItems=1),
                        object_of(optional={"min": NUMBER, "max": NUMBER}) | {"minProperties": 1},
                    ]
                },
            },
            "exclude": list_of(ID_IN_BODY),
            "exact": {"type": "boolean", "description": "Compare all vectors instead of asking the index."},
            "max_staleness_ms": STALENESS,
        },
    ),
    "RetrievedItems": object_of(items=list_of(object_of(id={}, score=NUMBER)), version=INTEGER),
    "Version": VERSION,
    "Versions": object_of(
        versions=list_of(ref("Version")),
        next_before=or_null(INTEGER),
        pins=list_of(object_of(name=STRING, version=INTEGER, created_ms=INTEGER)),
    ),
    "Base": object_of(number=INTEGER, checksum=INTEGER, files=ANY_OBJECT, has_more=True),
    "Status": object_of(
        trainer={"enum": ["running", "catching_up", "waiting", "stopped", "failed"]},
        reason=STRING,
        freshness_ms=or_null(object_of(p50=NUMBER, p99=NUMBER, has_more=True)),
        catching_up_ms=or_null(
            object_of(p50=NUMBER, p99=NUMBER, seconds=NUMBER, ended_ms=or_null(INTEGER), has_more=True)
        ),
        staleness_ms=or_null(COUNT),
        now_ms=INTEGER,
        server=ANY_OBJECT,
        has_more=True,
    ),
    "Alive": object_of(status={"const": "ok"}, optional={"range": or_null(STRING)}),
    "Ready": object_of(status={"const": "ready"}, version=INTEGER, optional={"range": or_null(STRING)}),
    "Forget": {
        "anyOf": [
            KEY,
            object_of(feature=FEATURE, ids=list_of(KEY["properties"]["id"], minItems=1)),
            object_of(keys=list_of(KEY, minItems=1)),
        ]
    },
    "Limits": {"type": "object", "minProperties": 1},
    "Rollback": object_of(version={"oneOf": [COUNT, STRING]}, optional={"skip": {"type": "boolean"}}),
    "Accepted": object_of(command=STRING, kind=STRING, state={"const": "accepted"}, note=STRING),
    "CommandStatus": object_of(
        command=STRING,
        state={"enum": ["waiting", "claimed", "published", "durable"]},
        kind=or_null(STRING),
        version=or_null(INTEGER),
        name=or_null(STRING),
        result={},
        keys=list_of(ANY_OBJECT),
        note=STRING,
    ),
}
