"""Avro: records without a container, by a schema of the settings or of a schema registry."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from springtide.stream.columns import RawRecords
from springtide.stream.decode.formats import DecodeConfig, MessageCodec
from springtide.stream.decode.plain_values import to_plain
from springtide.stream.decode.registry import (
    HEADER_BYTES,
    RegisteredSchema,
    SchemaCache,
    SchemaRegistry,
    UnknownSchemaError,
    header_id,
    header_ids,
)
from springtide.stream.errors import FormatError
from springtide_client.errors import EncodeError
from springtide_client.schema import Schema
from springtide_client.system.json_text import decode_json

if TYPE_CHECKING:
    from springtide.stream.decode.parsers.seen_set import SeenSet
    from springtide.stream.decode.rows import RecordParser


class AvroSchema(NamedTuple):
    """A schema as fastavro has parsed it, and the named types in it."""

    schema: Any
    named: dict[str, Any]


class AvroCodec(MessageCodec):
    """Records of one writer's schema, or each with the header of a schema registry that has its writer's schema.

    With a reader's schema records are resolved to it: aliases, defaults, promotions.
    """

    def __init__(self, config: DecodeConfig) -> None:
        """FormatError where fastavro is missing, or a schema's file is not one."""
        self._fastavro = _fastavro()
        self.writer = None if config.schema_file is None else self._read(config.schema_file)
        self.reader = None if config.reader_schema_file is None else self._read(config.reader_schema_file)
        self.schemas: SchemaCache[AvroSchema] = SchemaCache(self._fetch)
        self._registry = None
        if config.registry_url is not None:
            self._registry = SchemaRegistry(config.registry_url, config.registry_auth_file)

    @property
    def has_header(self) -> bool:
        """True if each message begins with the id of its schema."""
        return self._registry is not None

    def prepare(self, raw: RawRecords) -> None:
        if self.has_header:
            schema_id_N = header_ids(raw)
            self.schemas.prepare(schema_id_N[schema_id_N >= 0])

    def load(self, value: bytes) -> Any:
        """Return the record; ValueError where its bytes are not exactly one of its schema."""
        schema = self.schemas.get(header_id(value)) if self.has_header else self.writer
        assert schema is not None
        stream = io.BytesIO(value)
        stream.seek(HEADER_BYTES if self.has_header else 0)
        try:
            record = self._fastavro.schemaless_reader(stream, schema.schema, self.reader and self.reader.schema)
        except Exception as error:  # damaged bytes end in almost any of Python's errors
            raise ValueError(f"{type(error).__name__}: {error}") from None
        if num_left := len(value) - stream.tell():
            raise ValueError(f"{num_left} bytes follow the record")
        return to_plain(record)

    def from_json(self, message: bytes) -> bytes:
        """Return the record in the writer's schema. FormatError with a registry: its ids are for producers."""
        if self.writer is None:
            raise FormatError("Avro is written by [source] schema_file, and not with a registry's header: give one")
        stream = io.BytesIO()
        try:
            self._fastavro.schemaless_writer(stream, self.writer.schema, decode_json(message))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return stream.getvalue()

    def fast_path(
        self,
        schema: Schema,
        config: DecodeConfig,
        seen: "SeenSet",
        *,
        keys: Sequence[str] = (),
        has_labels: bool = True,
    ) -> "RecordParser | None":
        from springtide.stream.decode.parsers.avro_parser import avro_kernel, build_program
        from springtide.stream.decode.parsers.binary_parser import BinaryParser, ProgramRecords

        programs: dict[int, Any] = {}

        def choose(raw: RawRecords, parser: BinaryParser) -> Iterator[ProgramRecords]:
            schema_id_N = header_ids(raw) if self.has_header else np.zeros(len(raw), np.int64)
            for schema_id in np.unique(schema_id_N[schema_id_N >= 0]).tolist():
                if schema_id not in programs:
                    try:
                        parsed = self.schemas.get(schema_id) if self.has_header else self.writer
                    except EncodeError:
                        continue
                    assert parsed is not None
                    programs[schema_id] = build_program(parsed, self.reader, parser)
                if (program := programs[schema_id]) is not None:
                    header_bytes = HEADER_BYTES if self.has_header else 0
                    yield ProgramRecords(program, schema_id_N == schema_id, header_bytes)

        return BinaryParser(schema, config, seen, kernel=avro_kernel, choose=choose, keys=keys, has_labels=has_labels)

    def _read(self, path: Path) -> AvroSchema:
        try:
            return self._parse(path.read_bytes())
        except OSError as error:
            raise FormatError(f"the Avro schema {path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise FormatError(f"{path} is no Avro schema: {error}") from None

    def _parse(self, text: bytes | str, named: dict[str, Any] | None = None) -> AvroSchema:
        """Return a schema as fastavro takes it; ValueError where it is none."""
        try:
            document = decode_json(text.encode() if isinstance(text, str) else text)
            named = {} if named is None else named
            return AvroSchema(self._fastavro.parse_schema(document, named_schemas=named), named)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
        except Exception as error:  # SchemaParseException, UnknownType, and what a document of another shape raises
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def _fetch(self, schema_id: int) -> AvroSchema:
        assert self._registry is not None
        registered, named = self._registry.schema(schema_id), dict[str, Any]()
        try:
            self._name_references(registered, named)
            if registered.schema_type != "AVRO":
                raise ValueError(f"its type is {registered.schema_type}")
            return self._parse(registered.schema, named)
        except ValueError as error:
            raise UnknownSchemaError(f"the registry's schema {schema_id} is no Avro schema: {error}") from None

    def _name_references(self, registered: RegisteredSchema, named: dict[str, Any]) -> None:
        """Add the types that a schema takes from others to `named`."""
        assert self._registry is not None
        for reference in registered.references:
            if reference.name not in named:
                other = self._registry.version(reference)
                self._name_references(other, named)
                self._parse(other.schema, named)


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise FormatError('[source] format = "avro" needs fastavro: pip install springtide[formats]') from None
    return fastavro
