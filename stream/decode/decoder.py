"""Decodes raw records to columns; what cannot be learned becomes a dead letter.

Two paths, one meaning. A format's fast path reads the fetched bytes once and writes straight into the columns. A record
that it does not parse is decoded by the reference: the codec's `load`, then the encoder of springtide_client that
servers use too. Tests hold them equal for any bytes: columns, dead letters, id strings.

    field        accepted                                                      otherwise
    label        number, boolean, decimal string in 0..1; of several some null missing_label, label_range, wrong_type
    weight       number >= 0; missing or null = 1                              wrong_type
    timestamp    whole milliseconds, 0 or since 1980, at most                  bad_timestamp
                 max_future_seconds after the record's own time and after now
    categorical  integer, integral float, string, boolean; missing = MISSING_ID wrong_type
    lists        of these, nulls skipped, cut to the limit; missing = empty    wrong_type
    weighted     objects of numbers by id, or lists of [id, number]; of one id wrong_type
                 all add up; null elements skipped, cut; missing = empty
    dense        number, boolean, decimal string; missing = NaN                wrong_type
    the record   an object; of duplicate names the last counts; unknown names  empty (null), too_large, wrong_type,
                 are skipped                                                   bad_json (as the format has it)
    any number   finite, where it is used also in float32                      not_finite

JSON's fast path leaves to the reference, among others, records with a known name twice or a name with escapes, numbers
of more than 19 digits, subnormal or near the end of float64's range, unknown values nested deeper than 63 levels, and
whatever makes a record a dead letter. Where a list is weighted, the reference decodes every record.

The string behind a hashed id is delivered beside the columns at the first sight of the id; `SeenSet` remembers up to
half a million ids and is then cleared.
"""

# N records
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from springtide.kernels.cpu.hashing import hash_tuples
from springtide.stream.columns import NO_KEY, Columns, DeadLetter, RawRecords
from springtide.stream.decode.arrow_columns import TableWriter, concatenate_tables, new_strings
from springtide.stream.decode.erasure_filter import ErasureFilter
from springtide.stream.decode.formats import HEADER, KEY, DecodeConfig
from springtide.stream.decode.parsers.seen_set import SeenSet
from springtide.stream.decode.protobuf import write_descriptor_set
from springtide.stream.decode.record_fields import read_ids
from springtide.stream.decode.reference import ReferenceDecoder
from springtide.stream.decode.rows import DecodedRows
from springtide.stream.errors import FormatError
from springtide.stream.negatives import BAD_RATE_REASON, RowSampling
from springtide.stream.positions import Partition
from springtide_client.array_types import BoolArray, Int64Array, UInt64Array
from springtide_client.errors import EncodeError
from springtide_client.features import IdStrings
from springtide_client.keys import MISSING_ID, mix64_array
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms

MAX_DETAIL_CHARS = 300


class Decoder:
    """Decodes the records of one schema, and remembers whose strings it has emitted. One thread at a time."""

    def __init__(
        self,
        schema: Schema,
        config: DecodeConfig | None = None,
        *,
        seen_strings: SeenSet | None = None,
        key: Sequence[str] | None = None,
    ) -> None:
        """`config`: by default what a configuration without these keys means.

        `key`: of records that are to be joined, the fields by which; their labels come from other records.
        """
        config = config or DecodeConfig()
        self.schema, self.key = schema, None if key is None else tuple(key)
        self.seen_strings = seen_strings or SeenSet()
        self._sample_by, self._rate_field = config.sample_by, config.rate_field
        self._request, self._group, self._check = config.request_field, config.group_field, config.check_field
        self._bias, self._bias_drop = config.bias_fields, config.bias_drop
        asked = (*(key or ()), *config.sample_by, *filter(None, (self._request, self._group, self._check)))
        asked = (*asked, *config.bias_fields)
        self.only_keys = [name for name in dict.fromkeys(asked) if name not in schema.categorical]
        self._record_fields = [
            name for name in config.record_fields if name in schema.categorical or name in self.only_keys
        ]
        # rows have more numbers after those of the schema, the sender's rate last; what is beside the message has a
        # name that no message has
        row_schema, self._num_numbers = schema, len(config.number_fields)
        for name in (*config.number_fields, *filter(None, [config.rate_field])):
            row_schema = with_number(row_schema, name)
        outside = {name: f"\0{number}" for number, name in enumerate(self._record_fields)}
        row_schema, keys = renamed(row_schema, outside), [outside.get(name, name) for name in self.only_keys]
        self.row_schema, self.codec = row_schema, config.open_codec()
        self.reference = ReferenceDecoder(row_schema, config, self.codec, keys=keys, has_labels=key is None)
        self.fast_path, self.table_parser = None, None
        if not schema.weighted:
            self.fast_path = self.codec.fast_path(
                row_schema, config, self.seen_strings, keys=keys, has_labels=key is None
            )
        self.table_writer = self.codec.table_writer(row_schema, config, keys=keys)
        if not schema.weighted and not self.only_keys:  # further ids are left to pyarrow
            self.table_parser = self.codec.table_parser(row_schema, config, self.seen_strings)
        if key is not None and self.table_writer is not None:
            raise FormatError(f'format = "{config.format}" cannot be joined: its messages hold several samples')

    def decode(self, raw: RawRecords, now_ms: int) -> Columns:
        """The records as columns, with their dead letters; never raises for what a record holds.

        Raises RetriableError, before it decodes anything, while what the format needs besides is not to be had.
        """
        self.codec.prepare(raw)
        if self.table_writer is not None:
            return self._decode_tables(raw, now_ms, self.table_writer)
        rows = DecodedRows(self.row_schema, len(raw), len(self.only_keys))
        if self.fast_path is not None:
            unparsed_N, id_strings = self.fast_path.parse(raw, rows, now_ms)
        else:
            unparsed_N, id_strings = np.ones(len(raw), np.bool_), self._unseen([])
        is_sample_N = np.ones(len(raw), np.bool_)
        dead_letters: list[DeadLetter] = []
        reference_strings: list[tuple[int, int, str]] = []  # feature number, id, string
        for n in np.flatnonzero(unparsed_N).tolist():
            try:
                sample, encoded, keys = self.reference.decode(raw.value(n), int(raw.record_ms_N[n]), now_ms)
            except EncodeError as error:
                is_sample_N[n] = False
                dead_letters.append(make_dead_letter(raw, n, error))
            else:
                rows.write(n, sample, encoded, keys)
                reference_strings += encoded.id_strings
        if reference_strings:
            id_strings = IdStrings.concatenate([id_strings, self._unseen(reference_strings)])
        refused: dict[int, EncodeError] = {}
        if self._record_fields:
            refused, new = self._write_record_fields(raw, rows, np.arange(len(raw)), is_sample_N)
            id_strings = IdStrings.concatenate([id_strings, *new])
        sampled = self._sampled(rows)
        if sampled is not None:
            refused = self._refused(sampled, is_sample_N) | refused
        for n, reason in refused.items():
            is_sample_N[n] = False
            dead_letters.append(make_dead_letter(raw, n, reason))
        if refused:
            dead_letters.sort(key=lambda letter: letter.offset)
        if sampled is not None:
            sampled = sampled.take(np.flatnonzero(is_sample_N))
        columns = self._without_numbers(rows.columns(raw, is_sample_N, dead_letters, id_strings), sampled)
        columns = self._with_groups(columns, rows, is_sample_N)
        if self.key is None:
            return columns
        return replace(columns, key_hash_N=self._hash(rows, self.key)[is_sample_N], raw=raw)

    def _decode_tables(self, raw: RawRecords, now_ms: int, writer: TableWriter) -> Columns:
        """The rows of records that are tables, in their order; a record with a row that is no sample has none."""
        letters: dict[int, EncodeError] = {}
        tables: dict[int, Any] = {}
        parser = self.table_parser
        checked = None if parser is None else parser.check(raw)
        num_rows_N = np.full(len(raw), -1, np.int64) if checked is None else checked.num_rows_N
        for n in range(len(raw)):
            if num_rows_N[n] >= 0:
                continue
            try:
                table = self.reference.load_table(raw.value(n))
            except EncodeError as error:
                letters[n] = error
                num_rows_N[n] = 0
                continue
            if parser is None or checked is None or not parser.learn(raw.value(n) or b"", checked, n):
                tables[n], num_rows_N[n] = table, table.num_rows
        record_R, start_N = np.repeat(np.arange(len(raw)), num_rows_N), np.cumsum(num_rows_N) - num_rows_N
        rows = DecodedRows(self.row_schema, len(record_R), len(self.only_keys))
        is_left_N, new = np.zeros(len(raw), np.bool_), list[IdStrings]()
        if parser is not None and checked is not None:
            is_left_N, strings = parser.write(checked, rows, start_N, now_ms)
            is_left_N[[*letters, *tables]] = False
            new.append(strings)
        is_bad_R, noted = np.zeros(len(record_R), np.bool_), []
        for first_record, table in concatenate_tables(tables):
            first = int(start_N[first_record])
            here = slice(first, first + table.num_rows)
            record_ms_R = raw.record_ms_N[record_R[here]]
            is_bad_R[here], found = writer.write(table, rows, first, record_ms_R, now_ms)
            noted += [(number, row_M + first, ids) for number, row_M, ids in found]
        is_left_N |= np.bincount(record_R[is_bad_R], minlength=len(raw)) > 0
        reference_strings: list[tuple[int, int, str]] = []
        for n in np.flatnonzero(is_left_N).tolist():
            try:
                table = tables[n] if n in tables else self.reference.load_table(raw.value(n))
                decoded = self.reference.decode_table(table, int(raw.record_ms_N[n]), now_ms)
            except EncodeError as error:
                letters[n] = error
                continue
            for row, (sample, encoded, keys) in enumerate(decoded, start=int(start_N[n])):
                rows.write(row, sample, encoded, keys)
                reference_strings += encoded.id_strings
        new.append(self._unseen(reference_strings))
        for number, row_M, ids in noted:
            is_noted_M = ids.is_hashed & ~is_left_N[record_R[row_M]]
            new.append(new_strings(self.seen_strings, number, ids, np.flatnonzero(is_noted_M)))
        is_dead_N = np.zeros(len(raw), np.bool_)
        is_dead_N[list(letters)] = True
        if self._record_fields:
            refused, new_ids = self._write_record_fields(raw, rows, record_R, ~is_dead_N)
            letters |= refused
            new += new_ids
            is_dead_N[list(letters)] = True
        sampled = self._sampled(rows)
        if sampled is not None:
            for row, reason in self._refused(sampled, ~is_dead_N[record_R]).items():
                n = int(record_R[row])
                detail = f"row {row - start_N[n]}: {reason}"
                letters.setdefault(n, EncodeError(reason.reason, detail, field=reason.field))
            is_dead_N[list(letters)] = True
            sampled = sampled.take(np.flatnonzero(~is_dead_N[record_R]))
        dead_letters = [make_dead_letter(raw, n, error) for n, error in sorted(letters.items())]
        strings_of_all = IdStrings.concatenate(new)
        columns = rows.columns(raw, ~is_dead_N[record_R], dead_letters, strings_of_all, record_R=record_R)
        return self._with_groups(self._without_numbers(columns, sampled), rows, ~is_dead_N[record_R])

    def _write_record_fields(
        self, raw: RawRecords, rows: DecodedRows, record_R: Int64Array, is_sample_N: BoolArray
    ) -> tuple[dict[int, EncodeError], list[IdStrings]]:
        """Write what is beside the messages to their rows, of which `record_R` has the record of each.

        Returns why records that are samples in all else cannot be learned, and the strings of ids that are new.
        """
        errors: dict[int, EncodeError] = {}
        found = [(name, read_ids(raw, name)) for name in self._record_fields]
        for _, ids in reversed(found):
            errors |= {n: error for n, error in ids.errors.items() if is_sample_N[n]}
        is_learned_N = is_sample_N.copy()
        is_learned_N[list(errors)] = False
        strings = []
        for name, ids in found:
            if name in self.only_keys:
                rows.key_NK[:, self.only_keys.index(name)] = ids.ids_N[record_R]
                continue
            rows.categorical_NC[:, self.schema.categorical.index(name)] = ids.ids_N[record_R]
            hashed = np.flatnonzero(ids.is_hashed_N & is_learned_N)
            values, first = np.unique(ids.ids_N[hashed], return_index=True)
            features = np.full(len(values), self.schema.number(name), np.uint16)
            is_new = self.seen_strings.add_all(features, values)
            texts = [ids.string(raw, n) for n in hashed[first[is_new]].tolist()]
            strings.append(IdStrings(features[is_new], values[is_new], texts))
        return errors, strings

    def _hash(self, rows: DecodedRows, names: Sequence[str]) -> UInt64Array:
        """The hash of each row's values of these ids, NO_KEY where one of them is null."""
        hash_N: UInt64Array = hash_tuples(np.stack([self._ids(rows, name) for name in names], axis=1))
        return hash_N

    def _ids(self, rows: DecodedRows, name: str) -> Int64Array:
        """Each row's value of one id, a feature or not."""
        if name in self.only_keys:
            return rows.key_NK[:, self.only_keys.index(name)]
        return rows.categorical_NC[:, self.schema.categorical.index(name)]

    def _with_groups(self, columns: Columns, rows: DecodedRows, is_sample_N: BoolArray) -> Columns:
        """The columns with the ids by which their scores are grouped, and what else a sample has beside features."""
        if self._request is not None:
            columns = replace(columns, request_N=self._ids(rows, self._request)[is_sample_N])
        if self._group is not None:
            columns = replace(columns, group_N=self._ids(rows, self._group)[is_sample_N])
        if self._check is not None:
            columns = replace(columns, signals_N=self._ids(rows, self._check)[is_sample_N])
        if self._bias:
            bias_NB = np.stack([self._ids(rows, name) for name in self._bias], axis=1)[is_sample_N]
            bias_NB[are_dropped(columns, self._bias_drop)] = MISSING_ID
            columns = replace(columns, features=replace(columns.features, bias_NB=bias_NB))
        return columns

    def _sampled(self, rows: DecodedRows) -> RowSampling | None:
        """How each row was sampled and by what it is; None where negatives are not."""
        if self._rate_field is None and not self._sample_by:
            return None
        rates_N = np.ones(len(rows.labels_NL), np.float32)
        if self._rate_field is not None:
            rates_N = rows.dense_NF[:, -1].copy()
        return RowSampling(rates_N, self._hash(rows, self._sample_by) if self._sample_by else None)

    def _refused(self, sampled: RowSampling, is_sample_N: BoolArray) -> dict[int, EncodeError]:
        """Why rows that are samples in all else cannot be learned: there is no valid rate, or nothing to sample by."""
        refused, rates_N = {}, sampled.rates_N
        is_bad_N = ~((rates_N > 0) & (rates_N <= 1)) & is_sample_N
        for n in np.flatnonzero(is_bad_N).tolist():
            what = "missing" if np.isnan(rates_N[n]) else f"{rates_N[n]:g}"
            detail = f"{self._rate_field}: the rate of negatives is above 0 and at most 1, not {what}"
            refused[n] = EncodeError(BAD_RATE_REASON, detail, field=self._rate_field)
        if sampled.hash_N is not None and self._sample_by != self.key:  # a join says the same of its key
            for n in np.flatnonzero((sampled.hash_N == NO_KEY) & is_sample_N & ~is_bad_N).tolist():
                refused[n] = EncodeError("no_key", "a field of [negatives] by is null or missing")
        return dict(sorted(refused.items()))

    def _without_numbers(self, columns: Columns, sampled: RowSampling | None) -> Columns:
        """The columns with what is known of their sampling; the sender's rate and other numbers are no features."""
        num, dense_NF = len(self.schema.dense), columns.features.dense_NF
        if dense_NF.shape[1] > num:
            features = replace(columns.features, dense_NF=np.ascontiguousarray(dense_NF[:, :num]))
            columns = replace(columns, features=features)
        if self._num_numbers:
            numbers_NK = np.ascontiguousarray(dense_NF[:, num : num + self._num_numbers])
            columns = replace(columns, numbers_NK=numbers_NK)
        return columns if sampled is None else replace(columns, sampled=sampled)

    def _unseen(self, strings: list[tuple[int, int, str]]) -> IdStrings:
        """Those strings that have not been emitted yet; they count as emitted from now on."""
        features = np.array([feature for feature, _, _ in strings], np.uint16)
        ids = np.array([id_ for _, id_, _ in strings], np.int64)
        is_new = self.seen_strings.add_all(features, ids)
        return IdStrings(features[is_new], ids[is_new], [strings[t][2] for t in np.flatnonzero(is_new)])


def are_dropped(columns: Columns, share: float) -> BoolArray:
    """Which samples are learned without bias: this share of them, the same on every replay."""
    if share == 0:
        return np.zeros(len(columns), np.bool_)
    numbers_P = np.array([partition.number for partition in columns.partitions], np.uint64)
    hash_N = mix64_array(numbers_P[columns.partition_N]) ^ columns.offset_N.astype(np.uint64)
    is_dropped_N: BoolArray = mix64_array(hash_N) < np.uint64(share * 2.0**64)
    return is_dropped_N


def renamed(schema: Schema, names: Mapping[str, str]) -> Schema:
    """Return the schema with other names of some ids; what they are numbered stays."""
    if not names:
        return schema
    return replace(
        schema,
        categorical=tuple(names.get(name, name) for name in schema.categorical),
        share={names.get(name, name): names.get(owner, owner) for name, owner in schema.share.items()},
        numbers={names.get(name, name): number for name, number in schema.numbers.items()},
    )


def with_number(schema: Schema, name: str) -> Schema:
    """Return the schema with one more number, the last one."""
    numbers = schema.numbers
    if schema.next_number:
        numbers = {**numbers, name: schema.next_number}
    return replace(
        schema, dense=(*schema.dense, name), numbers=numbers, next_number=schema.next_number + bool(schema.next_number)
    )


def compile_parsers() -> None:
    """Compile the fast path of every format into Numba's cache, so that the first start is quick.

    Those of formats whose library is not installed are left out.
    """
    schema = Schema(labels=("label",), categorical=("id",), sequence=("ids",))
    fields = [("label", "int", "int32"), ("id", "string", "string"), ("ids", "long", "int64")]
    with tempfile.TemporaryDirectory() as folder:
        avro, proto = Path(folder, "a.avsc"), Path(folder, "a.desc")
        types = [{"name": name, "type": kind} for name, kind, _ in fields[:2]]
        types.append({"name": "ids", "type": {"type": "array", "items": "long"}})  # type: ignore[dict-item]
        avro.write_bytes(msgspec.json.encode({"type": "record", "name": "Click", "fields": types}))
        with suppress(FormatError):
            write_descriptor_set(proto, "Click", [(name, kind, name == "ids") for name, _, kind in fields])
        for config in (
            DecodeConfig(format="json"),
            DecodeConfig(format="msgpack"),
            DecodeConfig(format="arrow"),
            DecodeConfig(format="avro", schema_file=avro),
            DecodeConfig(format="protobuf", descriptor_file=proto, message="Click"),
        ):
            with suppress(FormatError):  # the library is not installed
                message = config.open_codec().from_json(b'{"label": 1, "id": "text", "ids": [1]}')
                raw = RawRecords.from_messages(Partition("", 0), [message, message[:-1]])
                Decoder(schema, config).decode(raw, 0)
    within = Schema(labels=("label",), categorical=("user.id",))  # JSON has a loop of its own for fields in objects
    raw = RawRecords.from_messages(Partition("", 0), [b'{"label": 1, "user": {"id": 1}}'])
    Decoder(within, DecodeConfig()).decode(raw, 0)
    raw = RawRecords.from_messages(Partition("", 0), [b""], keys=[b"text"], headers=[[("name", b"text")]])
    for name in (KEY, f"{HEADER}name"):
        read_ids(raw, name)


def make_dead_letter(raw: RawRecords, n: int, error: EncodeError) -> DeadLetter:
    """Record n with the reason why it cannot be learned."""
    return DeadLetter(
        partition=raw.partition,
        offset=int(raw.offset_N[n]),
        reason=error.reason,
        detail=str(error)[:MAX_DETAIL_CHARS],
        key=raw.key(n),
        value=raw.value(n),
        record_ms=int(raw.record_ms_N[n]),
    )


class DecodePipeline:
    """Decodes the records of one source, drops erased ids, and labels with the topic's id.

    decode() runs in one thread; reset_emitted_strings() may be called by any.
    """

    def __init__(self, decoder: Decoder, erasure_filter: ErasureFilter | None = None) -> None:
        self._decoder = decoder
        self._erasure_filter = erasure_filter
        self._is_reset_requested = threading.Event()

    def reset_emitted_strings(self) -> None:
        """Emit the string of every id again at its next sight in the records decoded from now on."""
        self._is_reset_requested.set()

    def decode(self, raw: RawRecords, topic_id: str) -> Columns:
        """The records as columns without erased ids; never raises for what a record holds."""
        erasures = self._erasure_filter
        is_replay_needed = erasures is not None and erasures.needs_string_replay(raw.partition, raw.end)
        if is_replay_needed or self._is_reset_requested.is_set():
            self._is_reset_requested.clear()
            self._decoder.seen_strings.clear()
        columns = self._decoder.decode(raw, wall_ms())
        if erasures is not None:
            if is_replay_needed:
                erasures.on_string_replay()
            columns = erasures.apply(columns, raw.partition, topic_id)
        return replace(columns, topic_ids={raw.partition: topic_id})
