"""Protobuf: messages of one type, by a descriptor set of the settings or by a schema registry.

A field without presence (proto3, not `optional`) that a message leaves out has its default, 0 or "": a label of 0 is
never sent. A field with presence that is left out is missing, unless its declaration names a default (proto2).
"""

import base64
import importlib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from springtide.stream.columns import RawRecords
from springtide.stream.decode.formats import DecodeConfig, MessageCodec
from springtide.stream.decode.plain_values import from_decimal
from springtide.stream.decode.registry import (
    HEADER_BYTES,
    RegisteredSchema,
    RegistryUnavailableError,
    SchemaCache,
    SchemaRegistry,
    UnknownSchemaError,
    header_id,
    header_ids,
)
from springtide.stream.errors import FormatError
from springtide_client.errors import EncodeError
from springtide_client.schema import Schema

if TYPE_CHECKING:
    from springtide.stream.decode.parsers.seen_set import SeenSet
    from springtide.stream.decode.rows import RecordParser

MAX_NESTING = 20  # of types in types, in the header of a schema registry
MAX_HEADER_BYTES = HEADER_BYTES + 5 * (MAX_NESTING + 1)
WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
WRAPPERS = {f"google.protobuf.{kind}Value" for kind in WRAPPED}


class RegisteredFile(NamedTuple):
    """A file of the registry: its own types, by the indexes that a message's header gives."""

    pool: Any
    names: dict[tuple[int, ...], str]


class ProtobufCodec(MessageCodec):
    """Messages of one type, or each with the header of a schema registry that has its file."""

    def __init__(self, config: DecodeConfig) -> None:
        """FormatError where protobuf is missing, or the file is no descriptor set with this message."""
        self._library = _library()
        self._name = config.message
        self.own_class = None
        if config.descriptor_file is not None:
            assert config.message is not None
            self.own_class = self._class(self._read(config.descriptor_file), config.message, config.descriptor_file)
        self.schemas: SchemaCache[RegisteredFile] = SchemaCache(self._fetch)
        self._registry = None
        if config.registry_url is not None:
            self._registry = SchemaRegistry(config.registry_url, config.registry_auth_file)
        self._classes: dict[tuple[int, str], Any] = {}

    @property
    def has_header(self) -> bool:
        """True if each message begins with the id of its schema."""
        return self._registry is not None

    def prepare(self, raw: RawRecords) -> None:
        if self.has_header:
            schema_id_N = header_ids(raw)
            self.schemas.prepare(schema_id_N[schema_id_N >= 0])

    def load(self, value: bytes) -> Any:
        """Return the message's fields by their names in its declaration; ValueError where its bytes are none."""
        message_class, at = (self.own_class, 0) if self.own_class is not None else self._class_of(value)
        message = message_class()
        try:
            message.ParseFromString(value[at:])
        except self._library.message.DecodeError as error:
            raise ValueError(str(error)) from None
        return to_object(message)

    def from_json(self, message: bytes) -> bytes:
        """Return the message of the settings' type. FormatError with a registry: its ids are for producers."""
        if self.own_class is None:
            raise FormatError("Protobuf is written by [source] descriptor_file, and not with a registry's header")
        try:
            parsed = self._library.json_format.Parse(message, self.own_class(), ignore_unknown_fields=True)
        except self._library.json_format.Error as error:
            raise ValueError(str(error)) from None
        encoded: bytes = parsed.SerializeToString()
        return encoded

    def fast_path(
        self,
        schema: Schema,
        config: DecodeConfig,
        seen: "SeenSet",
        *,
        keys: Sequence[str] = (),
        has_labels: bool = True,
    ) -> "RecordParser | None":
        from springtide.stream.decode.parsers.binary_parser import BinaryParser, ProgramRecords
        from springtide.stream.decode.parsers.protobuf_parser import build_program, protobuf_kernel

        programs: dict[Any, Any] = {}

        def choose(raw: RawRecords, parser: BinaryParser) -> Iterator[ProgramRecords]:
            if self.own_class is not None:
                if self.own_class not in programs:
                    programs[self.own_class] = build_program(self.own_class.DESCRIPTOR, parser)
                if (program := programs[self.own_class]) is not None:
                    yield ProgramRecords(program, raw.value_length_N >= 0, 0)
                return
            schema_id_N = header_ids(raw)
            for schema_id in np.unique(schema_id_N[schema_id_N >= 0]).tolist():
                # messages of one file may be of several types: each header is one
                is_chosen_N, headers = schema_id_N == schema_id, dict[bytes, list[int]]()
                for n in np.flatnonzero(is_chosen_N).tolist():
                    start = int(raw.value_start_N[n])
                    value = raw.buffer[start : start + min(int(raw.value_length_N[n]), MAX_HEADER_BYTES)]
                    try:
                        _, header_bytes = read_indexes(value, HEADER_BYTES)
                    except ValueError:
                        continue
                    headers.setdefault(value[:header_bytes], []).append(n)
                for header, records in headers.items():
                    if header not in programs:
                        try:
                            message_class, _ = self._class_of(header)
                        except (ValueError, EncodeError):
                            continue
                        programs[header] = build_program(message_class.DESCRIPTOR, parser)
                    if (program := programs[header]) is not None:
                        is_of_header_N = np.zeros(len(raw), np.bool_)
                        is_of_header_N[records] = True
                        yield ProgramRecords(program, is_of_header_N, len(header))

        return BinaryParser(
            schema, config, seen, kernel=protobuf_kernel, choose=choose, keys=keys, has_labels=has_labels
        )

    def _class_of(self, value: bytes) -> tuple[Any, int]:
        """The class of a message with a header, and where its body begins."""
        schema_id = header_id(value)
        file = self.schemas.get(schema_id)
        indexes, at = read_indexes(value, HEADER_BYTES)
        if indexes not in file.names:
            raise ValueError(f"the header names type {list(indexes)}, which the registry's schema {schema_id} has not")
        name = file.names[indexes]
        if self._name is not None and name != self._name:
            raise ValueError(f"the message is a {name}, not a {self._name}")
        if (schema_id, name) not in self._classes:
            self._classes[schema_id, name] = self._class(file.pool, name, None)
        return self._classes[schema_id, name], at

    def _class(self, pool: Any, name: str, path: Path | None) -> Any:
        try:
            return self._library.message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        except KeyError:
            raise FormatError(f"{path} has no message {name}: correct [source] message, as package.Name") from None

    def _read(self, path: Path) -> Any:
        """Return the pool of types of a descriptor set."""
        files = self._library.descriptor_pb2.FileDescriptorSet()
        try:
            files.ParseFromString(path.read_bytes())
            return self._pool({file.name: file for file in files.file})
        except OSError as error:
            raise FormatError(f"the descriptor set {path} cannot be read: {error.strerror}") from None
        except (self._library.message.DecodeError, ValueError) as error:
            raise FormatError(
                f"{path} is no descriptor set: make one with protoc --include_imports --descriptor_set_out ({error})"
            ) from None

    def _pool(self, files: Mapping[str, Any]) -> Any:
        """Return a pool with these files, each after what it imports. ValueError where that cannot be."""
        pool, added = self._library.descriptor_pool.DescriptorPool(), set[str]()

        def add(name: str, importer: str) -> None:
            if name in added:
                return
            added.add(name)
            file = files[name] if name in files else self._well_known(name, importer)
            for imported in file.dependency:
                add(imported, name)
            try:
                pool.Add(file)
            except Exception as error:  # TypeError here, another one in other implementations of the library
                raise ValueError(f"{name}: {error}") from None

        for name in files:
            add(name, "")
        return pool

    def _well_known(self, name: str, importer: str) -> Any:
        try:
            if not name.startswith("google/protobuf/"):
                raise ImportError
            module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        except ImportError:
            raise ValueError(f"{importer} imports {name}, which is not there") from None
        file = self._library.descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        return file

    def _fetch(self, schema_id: int) -> RegisteredFile:
        assert self._registry is not None
        registered, files = self._registry.schema(schema_id, "serialized"), dict[str, Any]()
        try:
            own = self._add_file("", registered, files)
            return RegisteredFile(self._pool(files), _names(own.message_type, own.package))
        except (self._library.message.DecodeError, ValueError) as error:
            raise UnknownSchemaError(f"the registry's schema {schema_id} is no Protobuf schema: {error}") from None

    def _add_file(self, name: str, registered: RegisteredSchema, files: dict[str, Any]) -> Any:
        """Add a registered file, and those that it imports, by the names under which they are imported."""
        assert self._registry is not None
        if registered.schema_type != "PROTOBUF":
            raise ValueError(f"its type is {registered.schema_type}")
        try:
            serialized = base64.b64decode(registered.schema, validate=True)
        except ValueError:
            raise RegistryUnavailableError(
                f"the schema registry at {self._registry.url} returns Protobuf schemas as source only, and not with "
                "format=serialized: use one that does"
            ) from None
        file = self._library.descriptor_pb2.FileDescriptorProto()
        file.ParseFromString(serialized)
        file.name = name or "message.proto"
        files[file.name] = file
        for reference in registered.references:
            if reference.name not in files:
                self._add_file(reference.name, self._registry.version(reference, "serialized"), files)
        return file


def to_object(message: Any) -> dict[str, Any]:
    """Return the fields of a message: what is missing is left out; enums are their symbols."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            value = getattr(message, field.name)
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                inner = field.message_type.fields_by_name["value"]
                found[field.name] = {str(key): _value(inner, value[key]) for key in value}
            else:
                found[field.name] = [_value(field, element) for element in value]
        elif not field.has_presence or field.has_default_value or message.HasField(field.name):
            found[field.name] = _value(field, getattr(message, field.name))
    return found


def _value(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return value if symbol is None else symbol.name
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return 1000 * value.seconds + value.nanos // 1_000_000
    if name in WRAPPERS:
        return value.value
    if name == "confluent.type.Decimal":  # that of schema registries
        unscaled = int.from_bytes(value.value, "big", signed=True)
        digits = tuple(map(int, str(abs(unscaled))))
        return from_decimal(Decimal((int(unscaled < 0), digits, -value.scale)))
    inner = value.DESCRIPTOR.fields_by_name
    if name == "google.protobuf.Struct":
        kind_of_values = inner["fields"].message_type.fields_by_name["value"]
        return {key: _value(kind_of_values, each) for key, each in value.fields.items()}
    if name == "google.protobuf.ListValue":
        return [_value(inner["values"], each) for each in value.values]
    if name == "google.protobuf.Value":
        kind = value.WhichOneof("kind")
        return None if kind in (None, "null_value") else _value(inner[kind], getattr(value, kind))
    return to_object(value)


def read_indexes(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a message's type in its file, and the position after them; ValueError without them."""
    count, at = _read_varint(value, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_NESTING:
        raise ValueError(f"the header names a type with {count} indexes")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(value, at)
        indexes.append(index)
    return tuple(indexes), at


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(value) or shift > 28:
            raise ValueError("the header of the schema registry ends too early")
        byte = value[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (number >> 1) ^ -(number & 1), at


def _names(types: Any, prefix: str, indexes: tuple[int, ...] = ()) -> dict[tuple[int, ...], str]:
    """The full names of the types of a file, and of the types inside of them, by their indexes."""
    names: dict[tuple[int, ...], str] = {}
    for index, declared in enumerate(types):
        name = f"{prefix}.{declared.name}" if prefix else declared.name
        names[*indexes, index] = name
        names |= _names(declared.nested_type, name, (*indexes, index))
    return names


def write_descriptor_set(path: Path, name: str, fields: Sequence[tuple[str, str, bool]]) -> None:
    """Write the descriptor set of one message of proto3; `fields`: name, type in lower case, whether it is repeated."""
    types = _library().descriptor_pb2
    file = types.FileDescriptorProto(name=f"{name.lower()}.proto", syntax="proto3")
    message = file.message_type.add(name=name)
    kinds = types.FieldDescriptorProto
    for number, (field_name, kind, is_list) in enumerate(fields, start=1):
        message.field.add(
            name=field_name,
            number=number,
            type=kinds.Type.Value(f"TYPE_{kind.upper()}"),
            label=kinds.LABEL_REPEATED if is_list else kinds.LABEL_OPTIONAL,
        )
    path.write_bytes(types.FileDescriptorSet(file=[file]).SerializeToString())


class _Library(NamedTuple):
    descriptor_pb2: Any
    descriptor_pool: Any
    json_format: Any
    message: Any
    message_factory: Any


def _library() -> _Library:
    try:
        return _Library(*(importlib.import_module(f"google.protobuf.{name}") for name in _Library._fields))
    except ImportError:
        raise FormatError('[source] format = "protobuf" needs protobuf: pip install springtide[formats]') from None
