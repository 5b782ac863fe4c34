"""A version as bytes: a CRC-framed record that names its parent. HTTP carries the same frame, unchanged.

Little endian: magic (8), payload length u64, epoch u64, number u64, parent checksum u64, crc32(payload) u32,
crc32(the 44 header bytes before) u32, payload. A record's checksum is crc32(payload) << 32 | crc32(header).

A trainer of many ranks writes a version as a version record, which lists its shard records, and one shard record for
each other rank: the same frame, with the rank in the place of the parent.

"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np

from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.format.tensors import Array, Arrays, decode_metadata, decode_tensors, encode_tensors

ROWS = (".feature", ".id", ".value", ".state", ".count", ".last_seen")
STRINGS = ("texts", "items")  # groups of `feature`, `id`, `offsets`, `bytes`
SKETCH_BLOCK, SKETCH_BYTES = "sketch.block", "sketch.bytes"
COUNTERS = slice(4, None)  # of a sketch block, behind its age as u32
MAGIC = b"SPRTIDE2"  # the number grows with every change of the format
HEADER = struct.Struct("<8sQQQQII")
NO_STATE = -1
EPOCH_SHIFT = 32  # number = epoch * 2**32 + count: never used twice, whatever the disk lost


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """A shard record as its version record names it."""

    rank: int
    checksum: int


def merge_shard_tensors(own: Arrays, shards: Sequence[Arrays]) -> Arrays:
    """Return the tensors of a version record with those of its shard records.

    LogError if two ranks write the same tensor, unless it is one of rows, keys, strings, items or the sketch.
    """
    if not any(shards):
        return own
    parts = [own, *shards]
    merged: Arrays = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        having = [part for part in parts if name in part]
        if len(having) == 1:
            merged[name] = having[0][name]
        elif is_offsets(name):
            merged[name] = _join_offsets([part[name] for part in having])
        elif is_row_column(name):
            merged[name] = np.concatenate([part[name] for part in having])
        elif name not in (SKETCH_BLOCK, SKETCH_BYTES):
            raise LogError(f"two ranks have written the tensor {name!r} of one version")
    if SKETCH_BLOCK not in merged and any(SKETCH_BLOCK in part for part in parts):
        having = [part for part in parts if SKETCH_BLOCK in part]
        merged[SKETCH_BLOCK], merged[SKETCH_BYTES] = _merge_blocks(
            np.concatenate([part[SKETCH_BLOCK] for part in having]),
            np.concatenate([part[SKETCH_BYTES] for part in having]),
        )
    for array in merged.values():
        array.flags.writeable = False
    return merged


def is_row_column(name: str) -> bool:
    """Return True for tensors that hold one entry for each key, or the bytes of strings."""
    group = name.rpartition("/")[2].partition(".")[0]
    return (group in ("rows", "forgotten") and name.endswith(ROWS)) or group in STRINGS


def is_offsets(name: str) -> bool:
    """Return True for tensors that say where strings begin."""
    return name in {f"{group}.offsets" for group in STRINGS}


def _join_offsets(parts: Sequence[Array]) -> Array:
    """Return the offsets into the bytes of all parts, end to end."""
    ends = np.cumsum([0, *(part[-1] for part in parts)])
    return np.concatenate([parts[0][:1], *(part[1:] + end for part, end in zip(parts, ends[:-1], strict=True))])


def _merge_blocks(blocks: Array, contents: Array) -> tuple[Array, Array]:
    """Return each block once, u8 (b, 64). One that several ranks have written gets the larger of their counts.

    So no id is counted less often than it came. Counts of an older age are halved as often as they are behind.
    """
    unique, inverse = np.unique(blocks, return_inverse=True)
    ages = contents[:, :4].copy().view(np.uint32)[:, 0]
    newest = np.zeros(len(unique), np.uint32)
    np.maximum.at(newest, inverse, ages)
    halvings = np.minimum(newest[inverse] - ages, 8).astype(np.uint8)
    counters = contents[:, COUNTERS] >> halvings[:, np.newaxis]
    merged = np.zeros((len(unique), contents.shape[1]), np.uint8)
    np.maximum.at(merged[:, COUNTERS], inverse, counters)
    merged[:, :4] = newest[:, np.newaxis].view(np.uint8)
    return unique, merged


class StreamPosition(TypedDict):
    """The next offset to read of a partition. A topic that is deleted and re-created gets another topic id."""

    topic_id: str
    offset: int


class NamedKey(msgspec.Struct, frozen=True):
    """A key as people write it: the feature's name, and an id that may be a number or a string."""

    feature: str
    id: Any


class CommandEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An executed command, recorded by the version that carries it out."""

    id: str
    kind: str = ""
    samples_trained: int = 0  # when it was executed
    result: dict[str, Any] = {}  # what it changed, in numbers; `refused` with the reason if it changed nothing
    keys: list[NamedKey] = []  # of a `forget` that was not refused
    # of the same: the stream positions up to which samples of these keys are erased, by "topic/partition"
    positions: dict[str, StreamPosition] | None = None

    @property
    def is_refused(self) -> bool:
        """True if the command changed nothing."""
        return "refused" in self.result


class VersionMeta(msgspec.Struct, kw_only=True):
    """A version's record beside its tensors. Times are in ms since 1970."""

    created_ms: int = 0
    # the version reflects every record that was readable at this wall time
    complete_until_ms: int = 0
    samples_trained: int = 0
    step: int = 0
    # partition, as "topic/number", -> the next offset to train on
    positions: dict[str, StreamPosition] = {}
    event_clock_ms: int = 0
    # feature number -> event time: rows of this feature last seen earlier are expired
    expiry_cutoffs: dict[str, int] = {}
    # feature number -> occurrences before an id is admitted, i.e. gets a row of its own; features above 1 only
    admission: dict[str, int] = {}
    # the size of the sketch that counts ids without a row; a change means that it was emptied
    sketch_blocks: int = 0
    # how often the counts of the sketch have been halved
    sketch_age: int = 0
    # of the schema
    fingerprint: str = ""
    scores: dict[str, Any] = {}
    # label -> the share of its events that come within its window: what the net predicts is divided by it
    label_shares: dict[str, float] = {}
    dead_letters: dict[str, int] = {}
    # the Kafka timestamps of some of the records that this version added
    record_ms: list[int] = []
    # those records, or some of them, waited for a trainer that was catching up
    catching_up: bool = False
    # by this version; in a base: by all versions, the newest 10,000
    executed_commands: list[CommandEntry] = []
    trainer: dict[str, Any] = {}
    # the version that a rollback restored, 0 otherwise. Its `dense.*` and `state.*` are complete: a reader drops those
    # of earlier records
    restores: int = 0
    # where the exact state of net and optimizer at this version is: 0 in the log's records, N in the folder state-N,
    # NO_STATE nowhere: a trainer cannot continue from this version
    exact_state: int = 0
    # the newest version known to be durable when this one was written; the writer had then looked for a higher epoch
    durable: int = 0
    # of a base with which a changed schema begins: the version before it, and what was kept, begun and dropped
    change: dict[str, Any] = {}


class Head(msgspec.Struct, frozen=True, order=True):
    """A position in the log: a version's number, and the checksum that distinguishes it from another of that number."""

    number: int
    checksum: int

    def __str__(self) -> str:
        return version_name(self.number)


def version_name(number: int) -> str:
    """Return a version number as users see it: "epoch.count"."""
    return f"{number >> EPOCH_SHIFT}.{number & ((1 << EPOCH_SHIFT) - 1)}"


class RecordHeader(NamedTuple):
    """The first 48 bytes of a record, checked."""

    length: int
    epoch: int
    number: int
    parent: int
    payload_crc: int
    header_crc: int

    @property
    def checksum(self) -> int:
        return self.payload_crc << 32 | self.header_crc

    @property
    def head(self) -> Head:
        return Head(self.number, self.checksum)


def parse_header(header: bytes | memoryview) -> RecordHeader:
    """Parse the header of a record; CorruptRecordError when it does not match its own checksum.

    LogError when it is whole but of another format.
    """
    magic, length, epoch, number, parent, payload_crc, header_crc = HEADER.unpack(header)
    is_whole = zlib.crc32(header[:-4]) == header_crc
    if is_whole and magic != MAGIC and magic.startswith(MAGIC[:-1]):
        formats = (magic[-1:].decode("ascii", "replace"), MAGIC[-1:].decode())
        raise LogError("the log has format {}, this program reads format {}: start a new log".format(*formats))
    if not is_whole or magic != MAGIC:
        raise CorruptRecordError("a record's header does not match its checksum")
    return RecordHeader(length, epoch, number, parent, payload_crc, header_crc)


@dataclass(frozen=True)
class Record:
    """One version as the log holds it, with its shard records if it lists any. Payloads match their checksums."""

    epoch: int
    number: int
    parent: int
    checksum: int
    payload: bytes
    shards: tuple["Record", ...] = ()  # in the order of `shard_entries`
    num_left_out: int = 0  # shard records that this reader has no use for

    @staticmethod
    def verify_payload(header: RecordHeader, payload: bytes) -> "Record":
        """Return the record of a header and its payload; CorruptRecordError when the checksum does not match."""
        if zlib.crc32(payload) != header.payload_crc:
            raise CorruptRecordError(f"version {version_name(header.number)} does not match its checksum")
        return Record(header.epoch, header.number, header.parent, header.checksum, payload)

    @property
    def head(self) -> Head:
        return Head(self.number, self.checksum)

    @property
    def num_bytes(self) -> int:
        """The length of the frame, with those of its shard records."""
        return HEADER.size + len(self.payload) + sum(shard.num_bytes for shard in self.shards)

    @property
    def header(self) -> bytes:
        """The 48 bytes before the payload, as they were written: header + payload is the frame."""
        return _pack_header(len(self.payload), self.epoch, self.number, self.parent, self.checksum >> 32)[0]

    def frame(self) -> bytes:
        """Return the record as it was written, followed by its shard records."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Yield the pieces of the frame."""
        for record in (self, *self.shards):
            yield record.header
            yield record.payload

    @cached_property
    def shard_entries(self) -> tuple[ShardEntry, ...]:
        """The shard records that belong to the version; empty if one rank wrote it. LogError if they cannot be read."""
        return decode_shard_entries(decode_metadata(self.payload))

    def with_shards(self, shards: Sequence["Record"], needed: tuple[ShardEntry, ...] | None = None) -> "Record":
        """Return the whole version, or as much as its reader needs. CorruptRecordError if these are other records.

        `needed`: some of the shard records that it lists; None: all.
        """
        needed = self.shard_entries if needed is None else needed
        if [(shard.parent, shard.head) for shard in shards] != [
            (entry.rank, Head(self.number, entry.checksum)) for entry in needed
        ]:
            raise CorruptRecordError(f"version {self.head} comes with other shard records than it lists")
        return replace(self, shards=tuple(shards), num_left_out=len(self.shard_entries) - len(needed))

    @cached_property
    def meta(self) -> VersionMeta:
        """The record beside the version's tensors; LogError when it cannot be read."""
        try:
            return msgspec.json.decode(self._decoded[1]["version"], type=VersionMeta)
        except (KeyError, msgspec.MsgspecError) as error:
            raise LogError(f"version {self.head} has no readable meta: {error!r}") from None

    def tensors(self) -> Arrays:
        """Return the tensors as read-only arrays over the payload, without copying; those of shard records are merged.

        LogError if the version lists shard records and these were not read.
        """
        return self._merged

    @cached_property
    def _decoded(self) -> tuple[Arrays, dict[str, str]]:
        return decode_tensors(self.payload)

    @cached_property
    def _merged(self) -> Arrays:
        arrays, metadata = self._decoded
        if len(self.shards) + self.num_left_out != len(decode_shard_entries(metadata)):
            raise LogError(f"version {self.head} was read without its shard records")
        return merge_shard_tensors(arrays, [shard.tensors() for shard in self.shards])


def decode_shard_entries(metadata: Mapping[str, str]) -> tuple[ShardEntry, ...]:
    """Return the shard records that the metadata of a record's payload lists; LogError if they cannot be read."""
    try:
        return msgspec.json.decode(metadata.get("shards", "[]"), type=tuple[ShardEntry, ...])
    except msgspec.MsgspecError as error:
        raise LogError(f"a version's list of shard records cannot be read: {error}") from None


def encode_pieces(
    epoch: int,
    number: int,
    parent: int,
    meta: VersionMeta,
    tensors: Mapping[str, Array],
    shards: Sequence[ShardEntry] = (),
) -> tuple[list[bytes | memoryview], int]:
    """Return the pieces whose concatenation is the frame, and its checksum. Contiguous arrays are not copied."""
    metadata = {"version": msgspec.json.encode(meta).decode()}
    if shards:
        metadata["shards"] = msgspec.json.encode(shards).decode()
    return _encode_frame(epoch, number, parent, encode_tensors(tensors, metadata))


def encode_shard_pieces(
    epoch: int, number: int, rank: int, tensors: Mapping[str, Array]
) -> tuple[list[bytes | memoryview], int]:
    """Return the same for the shard record of one rank."""
    return _encode_frame(epoch, number, rank, encode_tensors(tensors))


def _encode_frame(
    epoch: int, number: int, parent: int, pieces: Sequence[memoryview]
) -> tuple[list[bytes | memoryview], int]:
    crc, length = 0, 0
    for piece in pieces:
        crc, length = zlib.crc32(piece, crc), length + len(piece)
    header, checksum = _pack_header(length, epoch, number, parent, crc)
    return [header, *pieces], checksum


def _pack_header(length: int, epoch: int, number: int, parent: int, payload_crc: int) -> tuple[bytes, int]:
    header = HEADER.pack(MAGIC, length, epoch, number, parent, payload_crc, 0)[:-4]
    header_crc = zlib.crc32(header)
    return header + header_crc.to_bytes(4, "little"), payload_crc << 32 | header_crc
