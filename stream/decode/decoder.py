"""Raw records to columns: ids, numbers, labels and times in arrays; what cannot be learned becomes a dead letter.

Two paths, one meaning. `stream.decode.json_parser` walks the fetched bytes once and writes straight into the
columns; a record in
which it meets anything that it is not sure of is decoded again by `decode_reference`: msgspec, then the encoder in
springtide_client that servers use too. Tests hold them equal for any bytes: columns, dead letters, texts.

    field        taken as                                                      else
    label        number, boolean, decimal text in 0..1; of several some null   missing_label, label_range, wrong_type
    weight       number >= 0; missing or null = 1                              wrong_type
    timestamp    whole milliseconds, 0 or since 1980, at most                  bad_timestamp
                 max_future_seconds after the record's own time and after now
    categorical  integer, integral float, text, boolean; missing = MISSING_ID  wrong_type
    lists        of these, nulls skipped, cut to the limit; missing = empty    wrong_type
    dense        number, boolean, decimal text; missing = NaN                  wrong_type
    the record   a JSON object; of equal names the last counts; unknown        empty (null), too_large, bad_json,
                 names are passed over                                         wrong_type
    any number   finite, where it is used also in float32                      not_finite

A record deviates, among others, where it has a known name twice or a name with escapes, numbers of more than 19 digits,
subnormal or near the end of float64's range, unknown values nested deeper than 63, or what makes it a dead letter.

A text travels beside the columns at the first sight of its id; `Told` remembers up to half a million ids, then anew.

M messages a second, one core of an EPYC (Zen 5), records in memory, columns handed out; after the comma the reference:
    2 + 6 ids, 6 numbers, label, time; 207 bytes         3.4-3.8, 0.13
    26 texts, 13 integers, label, time; 662 bytes        0.7-1.05, 0.018
    the same with 13 floats of 17 digits; 862 bytes      0.5-0.7, 0.019
    24 texts in lists, unknown fields; 417 bytes         1.0-2.0, 0.019
A poll of one record takes 19 microseconds.
"""

# N records
import numpy as np
from springtide_client.errors import EncodeError
from springtide_client.features import IdStrings
from springtide_client.schema import Schema

from stream.columns import Columns, DeadLetter
from stream.decode.json_parser.parser import JsonParser
from stream.decode.json_parser.seen_set import SeenSet
from stream.decode.reference import ReferenceDecoder
from stream.decode.rows import DecodedRows
from stream.positions import Partition
from stream.records import RawRecords

MAX_DETAIL = 300


class Decoder:
    """Decodes the records of one schema. Keeps which texts it has told; one thread at a time."""

    def __init__(
        self,
        schema: Schema,
        *,
        max_message_bytes: int = 1 << 20,
        max_future_seconds: float = 60,
        told: SeenSet | None = None,
    ) -> None:
        self.schema = schema
        self.seen_strings = told or SeenSet()
        self.parser = JsonParser(
            schema, max_message_bytes=max_message_bytes, max_future_seconds=max_future_seconds, told=self.seen_strings
        )
        self.reference = ReferenceDecoder(
            schema, max_message_bytes=max_message_bytes, max_future_seconds=max_future_seconds
        )

    def decode(self, raw: RawRecords, now_ms: int) -> Columns:
        """The records as columns, dead letters beside them; never raises for what a record holds."""
        rows = DecodedRows(self.schema, len(raw))
        deviates_N, found = self.parser.parse(raw, rows, now_ms)
        alive_N = np.ones(len(raw), np.bool_)
        dead: list[DeadLetter] = []
        texts: list[tuple[int, int, str]] = []
        for n in np.flatnonzero(deviates_N).tolist():
            try:
                sample, encoded = self.reference.decode(raw.value(n), int(raw.record_ms_N[n]), now_ms)
            except EncodeError as error:
                alive_N[n] = False
                dead.append(make_dead_letter(raw, n, error))
            else:
                rows.write(n, sample, encoded)
                texts += encoded.id_strings
        return rows.columns(raw, alive_N, dead, join(found, self.unseen(texts)) if texts else found)

    def unseen(self, texts: list[tuple[int, int, str]]) -> IdStrings:
        """Those texts that have not been told before."""
        features = np.array([feature for feature, _, _ in texts], np.uint16)
        ids = np.array([id_ for _, id_, _ in texts], np.int64)
        fresh = self.seen_strings.add_all(features, ids)
        return IdStrings(features[fresh], ids[fresh], [texts[t][2] for t in np.flatnonzero(fresh)])


def join(one: IdStrings, other: IdStrings) -> IdStrings:
    """Both."""
    return IdStrings(
        np.concatenate([one.features, other.features]),
        np.concatenate([one.ids, other.ids]),
        one.strings + other.strings,
    )


def compile_parser() -> None:
    """Compiles the scanner into Numba's cache, so that a first start is quick."""
    schema = Schema(labels=("label",), categorical=("id",), sequence=("ids",))
    raw = RawRecords.from_messages(Partition("", 0), [b'{"label": 1, "id": "text", "ids": [1]}', b"{"])
    Decoder(schema).decode(raw, 0)


def make_dead_letter(raw: RawRecords, n: int, error: EncodeError) -> DeadLetter:
    """Record n with the reason why it cannot be learned."""
    return DeadLetter(
        partition=raw.partition,
        offset=int(raw.offset_N[n]),
        reason=error.reason,
        detail=str(error)[:MAX_DETAIL],
        key=raw.key(n),
        value=raw.value(n),
        record_ms=int(raw.record_ms_N[n]),
    )
