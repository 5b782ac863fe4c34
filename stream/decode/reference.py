"""The slow path of decoding, which defines what a record means: the codec's `load`, then the encoder of servers."""

from collections.abc import Mapping, Sequence
from typing import Any

from springtide.stream.decode.arrow_columns import rows_of
from springtide.stream.decode.formats import DecodeConfig, MessageCodec
from springtide_client.encode import EncodedInstance, InstanceEncoder, flatten
from springtide_client.errors import EncodeError
from springtide_client.keys import MISSING_ID, encode_id
from springtide_client.schema import Schema, field_paths
from springtide_client.targets import SampleTargets, parse_targets


class ReferenceDecoder:
    """The slow path of decoding, which defines the result: one record at a time, in every case."""

    def __init__(
        self,
        schema: Schema,
        config: DecodeConfig,
        codec: MessageCodec,
        *,
        keys: Sequence[str] = (),
        has_labels: bool = True,
    ) -> None:
        self.schema, self.config, self.format, self.codec = schema, config, config.message_format, codec
        self.keys, self.has_labels = tuple(keys), has_labels
        self.paths = field_paths([*schema.names, *keys])
        self.encoder = InstanceEncoder(schema)

    def decode(
        self, value: bytes | None, record_ms: int, now_ms: int
    ) -> tuple[SampleTargets, EncodedInstance, list[int]]:
        """The record's labels, weight and time, its features, and its keys.

        Raises EncodeError with the dead letter's reason.
        """
        return self._decode_object(
            self.format.load_object(self.codec, self._require(value)), record_ms=record_ms, now_ms=now_ms
        )

    def load_table(self, value: bytes | None) -> Any:
        """The table that a record is, of a format that has them. Raises EncodeError with the dead letter's reason."""
        return self.format.load(self.codec.load_table, self._require(value))

    def decode_table(
        self, table: Any, record_ms: int, now_ms: int
    ) -> list[tuple[SampleTargets, EncodedInstance, list[int]]]:
        """The samples of a table, all or none. Raises EncodeError with the dead letter's reason; it names the row."""
        decoded = []
        for row, record in enumerate(self.format.load(lambda _: rows_of(table), b"")):
            try:
                decoded.append(self._decode_object(record, record_ms=record_ms, now_ms=now_ms))
            except EncodeError as error:
                raise EncodeError(error.reason, f"row {row}: {error}", field=error.field) from None
        return decoded

    def _require(self, value: bytes | None) -> bytes:
        if value is None:
            raise EncodeError("empty", "the record has no value")
        if len(value) > self.config.max_message_bytes:
            raise EncodeError("too_large", f"{len(value)} bytes are more than max_message_bytes")
        return value

    def _decode_object(
        self, record: Mapping[str, Any], *, record_ms: int, now_ms: int
    ) -> tuple[SampleTargets, EncodedInstance, list[int]]:
        record = flatten(self.paths, record)
        sample = parse_targets(
            self.schema,
            record,
            record_ms=record_ms,
            now_ms=now_ms,
            max_future_seconds=self.config.max_future_seconds,
            has_labels=self.has_labels,
        )
        keys = []
        for name in self.keys:
            try:
                keys.append(MISSING_ID if record.get(name) is None else encode_id(record[name])[0])
            except EncodeError as error:
                raise error.in_field(name) from None
        return sample, self.encoder.encode(record), keys
