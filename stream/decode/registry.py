"""A client of a schema registry (Confluent's REST interface, which Karapace, Apicurio and Redpanda have too).

A message begins with a zero byte and four bytes of a schema's id, big-endian. What an id means never changes, so an
answer is kept for ever. A registry that does not answer is waited for; only its own word that it has no such schema
makes a message a dead letter.
"""

# N records
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import urllib3
from urllib3.exceptions import HTTPError

from springtide.stream.columns import RawRecords
from springtide.stream.errors import RetriableError
from springtide_client.errors import EncodeError
from springtide_client.http.http_client import reason_of
from springtide_client.system.json_text import decode_json

Schema = TypeVar("Schema")

HEADER_BYTES = 5
CONNECT_SECONDS, READ_SECONDS = 2.0, 5.0
# a registry that lags behind its leader may learn an id later than the first message that has it
ASK_AGAIN_SECONDS = 5.0
# 404 with one of these in its body: subject, version, schema not found. Any other 404 is not a registry's
NOT_FOUND_CODES = range(40401, 40500)


class RegistryUnavailableError(RetriableError):
    """The schema registry does not answer, or answers with something else than a schema or that there is none."""


class UnknownSchemaError(EncodeError):
    """The registry has no schema of this id, or one that cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__("unknown_schema", message)


class SchemaReference(msgspec.Struct):
    """Another schema that a schema uses, by the name under which it does."""

    name: str
    subject: str
    version: int


class RegisteredSchema(msgspec.Struct, rename={"schema_type": "schemaType"}):
    """A schema as the registry has it."""

    schema: str
    schema_type: str = "AVRO"
    references: list[SchemaReference] = []


class SchemaRegistry:
    """Asks one registry for schemas."""

    def __init__(self, url: str, auth_file: Path | None = None) -> None:
        """`auth_file`: its first line is `user:password`; it is read again at every request."""
        self.url, self._auth_file = url.rstrip("/"), auth_file
        self._pool = urllib3.PoolManager(timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS))

    def schema(self, schema_id: int, form: str = "") -> RegisteredSchema:
        """Return the schema of an id; `form`: what the registry calls format, such as "serialized".

        Raises UnknownSchemaError where the registry has none, else RegistryUnavailableError.
        """
        return self._get(f"/schemas/ids/{schema_id}", form)

    def version(self, reference: SchemaReference, form: str = "") -> RegisteredSchema:
        """Return the schema that another one refers to; raises like `schema`."""
        return self._get(
            f"/subjects/{urllib.parse.quote(reference.subject, safe='')}/versions/{reference.version}", form
        )

    def _get(self, path: str, form: str) -> RegisteredSchema:
        where = f"the schema registry at {self.url}"
        try:
            response = self._pool.request(
                "GET",
                self.url + path,
                fields={"format": form} if form else None,
                headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json", **self._authorization()},
                retries=False,
                redirect=False,
            )
        except (HTTPError, OSError) as error:
            raise RegistryUnavailableError(
                f"{where} cannot be reached ({reason_of(error)}): start it, or correct [source] registry_url"
            ) from None
        if response.status == 404 and _error_code(response.data) in NOT_FOUND_CODES:
            raise UnknownSchemaError(f"{where} has no {path}")
        if response.status in (401, 403):
            raise RegistryUnavailableError(
                f"{where} responded {response.status}: put user:password into [source] registry_auth_file"
            )
        if response.status != 200:
            raise RegistryUnavailableError(f"{where} responded {response.status} to {path}")
        try:
            schema: RegisteredSchema = decode_json(response.data, RegisteredSchema)
        except msgspec.DecodeError as error:
            raise RegistryUnavailableError(
                f"{where} did not return a schema for {path} ({error}): is [source] registry_url right?"
            ) from None
        return schema

    def _authorization(self) -> dict[str, str]:
        if self._auth_file is None:
            return {}
        try:
            user = self._auth_file.read_text(encoding="utf-8").splitlines()[0].strip()
        except (OSError, UnicodeDecodeError, IndexError):
            raise RegistryUnavailableError(
                f"[source] registry_auth_file {self._auth_file} cannot be read: its first line is user:password"
            ) from None
        return dict(urllib3.make_headers(basic_auth=user))


class SchemaCache(Generic[Schema]):
    """What schemas were made into, by their ids. An id that the registry does not know is asked for again later."""

    def __init__(self, make: Callable[[int], Schema], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`make` asks the registry; it raises RegistryUnavailableError or UnknownSchemaError."""
        self._make, self._clock = make, clock
        self._schemas: dict[int, Schema] = {}
        self._unknown: dict[int, tuple[UnknownSchemaError, float]] = {}

    def prepare(self, schema_ids: npt.NDArray[np.int64]) -> None:
        """Ask for those of these ids that are not known yet. Raises RegistryUnavailableError."""
        for schema_id in np.unique(schema_ids).tolist():
            if schema_id in self._schemas:
                continue
            if schema_id in self._unknown and self._clock() < self._unknown[schema_id][1]:
                continue
            try:
                self._schemas[schema_id] = self._make(schema_id)
            except UnknownSchemaError as error:
                self._unknown[schema_id] = error, self._clock() + ASK_AGAIN_SECONDS

    def get(self, schema_id: int) -> Schema:
        """Return what `prepare` has made of an id; UnknownSchemaError where the registry has none."""
        if schema_id not in self._schemas:
            raise EncodeError("unknown_schema", str(self._unknown[schema_id][0]))
        return self._schemas[schema_id]


def header_ids(raw: RawRecords) -> npt.NDArray[np.int64]:
    """The schema id of each record, int64 (N); -1 where its value has no header."""
    schema_id_N = np.full(len(raw), -1, np.int64)
    buffer = np.frombuffer(raw.buffer, np.uint8)
    has_header_N = raw.value_length_N >= HEADER_BYTES
    start_M = raw.value_start_N[has_header_N]
    if len(start_M):
        bytes_MB = buffer[start_M[:, None] + np.arange(HEADER_BYTES)].astype(np.int64)
        ids_M = bytes_MB[:, 1] << 24 | bytes_MB[:, 2] << 16 | bytes_MB[:, 3] << 8 | bytes_MB[:, 4]
        schema_id_N[has_header_N] = np.where(bytes_MB[:, 0] == 0, ids_M, -1)
    return schema_id_N


def header_id(value: bytes) -> int:
    """Return the schema id of a message; ValueError where it has no header."""
    if len(value) < HEADER_BYTES or value[0] != 0:
        raise ValueError("the message has no header of a schema registry: a zero byte and an id of four bytes")
    return int.from_bytes(value[1:HEADER_BYTES], "big")


def _error_code(body: bytes) -> Any:
    try:
        return decode_json(body)["error_code"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
