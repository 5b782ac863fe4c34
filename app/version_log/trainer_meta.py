"""A version's record about its trainer: the typed form of `VersionMeta.trainer`; and the erasures that it holds.

`springtide_client` carries the field as plain JSON; only the trainer and the commands that write versions read it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from springtide.app.scores.policy_value import PolicyTotals
from springtide.app.scores.served import ServedScores
from springtide.stream.decode.erasure_filter import Erasure
from springtide.stream.join_state import JoinState
from springtide.stream.positions import Partition, Position, positions_from_meta, positions_to_meta
from springtide_client.array_types import BoolArray, Int64Array, UInt16Array
from springtide_client.counters import ALL_ID, PairHalf, half_ids
from springtide_client.errors import EncodeError, LogError
from springtide_client.format.records import CommandEntry, StreamPosition, VersionMeta
from springtide_client.keys import MISSING_ID, encode_id
from springtide_client.memory import Remembered
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema

Positions = Mapping[str, StreamPosition]


class ErasureMeta(msgspec.Struct, frozen=True):
    """Erased keys (feature number, id), and the positions before which records still hold them."""

    keys: list[tuple[int, int]]
    until: dict[str, StreamPosition]


class GateMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The health gate's automatic rollbacks: how many there were, and the newest one."""

    rollbacks: int = 0
    skipped_in_a_row: int = 0  # samples, by rollbacks with too few good samples between them
    since: int | None = None  # samples_trained of the version gone back to
    version: int = 0
    reason: str = ""
    detail: str = ""
    skipped: int = 0


class SeekMeta(msgspec.Struct, frozen=True):
    """A change of position in one partition that was requested on the command line."""

    from_offset: int | None
    to_offset: int


class TrainerMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Trainer state that is neither a tensor nor of interest to followers. Partitions are written "topic/0"."""

    watermarks: dict[str, int] = {}  # partition -> the latest event time learned, ms
    idle: list[str] = []  # partitions that do not hold back the event clock
    loss: float | None = None  # of the newest batch
    skipped_steps: int = 0  # of the dense net, because gradients were not finite
    clipped_steps: int = 0  # of the dense net
    kernels: str = ""  # the level of CPU that they were compiled for: sums may differ in their last bits on another
    table: dict[str, Any] = {}  # EmbeddingTable.clock_state()
    limits: dict[str, Any] = {}  # changed at run time: [the limit, the configured value that it overrides]
    gate: GateMeta = GateMeta()
    seeks: dict[str, SeekMeta] = {}  # since the previous version
    sought_by: str = ""  # the launch of the newest change of position, which its restarts do not repeat
    erasures: list[ErasureMeta] = []  # those that the stream from this version's positions on still contains
    high_water_marks: dict[str, StreamPosition] = {}  # how far the stream was ever learned, where further than now
    num_dropped: int = 0  # negatives that were dropped
    served: ServedScores = ServedScores()  # scores of what was served for joined impressions, if they have it
    policies: dict[str, PolicyTotals] = {}  # what other policies would have earned
    num_late: int = 0  # samples learned for an event that came after the window
    memory: dict[str, int] = {}  # what could not be read as event times say: MemoryStep.counts
    num_settled: int = 0  # samples learned again once no more of their events count
    join: JoinState | None = None  # of a stream whose labels are joined; `positions` say from where it is read again

    @staticmethod
    def of(meta: VersionMeta) -> "TrainerMeta":
        """Decode a version's field; raises LogError if another program wrote it."""
        try:
            return msgspec.convert(meta.trainer, TrainerMeta)
        except msgspec.ValidationError as error:
            raise LogError(f"the version's trainer metadata cannot be read: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the value of `VersionMeta.trainer`."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


def parse_keys(body: Mapping[str, Any], schema: Schema) -> list[tuple[int, int]]:
    """Return the keys a command names, as (feature number, id), each once, and those of what they are remembered for.

    ValueError if one is malformed.
    """
    keys: dict[tuple[int, int], None] = {}
    named = body.get("keys")
    for key in named if isinstance(named, list) else []:
        if not isinstance(key, dict) or key.get("feature") not in schema.features or "id" not in key:
            raise ValueError(f"{key!r} is not a valid key of this log")
        keys |= dict.fromkeys(keys_of_id(schema, key["feature"], key["id"]))
    if not keys:
        raise ValueError("the command names no keys")
    return list(keys)


def keys_of_id(schema: Schema, feature: str, given_id: Any) -> list[tuple[int, int]]:
    """Return the key of an id, as (feature number, id), and those of what it is remembered for."""
    number, row_id = schema.number(feature), encode_id(given_id)[0]
    memories: list[Remembered] = [memory for memory in schema.memories if schema.number(memory.of) == number]
    if row_id != ALL_ID:
        memories += [one for one in schema.counters if [*map(schema.number, one.key)] == [number]]
    return [(number, row_id), *((schema.memory_number(memory), row_id) for memory in memories)]


def halves_of_pairs(schema: Schema, keys: Iterable[tuple[int, int]]) -> list[PairHalf]:
    """Return what the rows of pairs have in common that count one of these keys, (feature number, id)."""
    found = []
    for number, row_id in keys:
        half = int(half_ids(np.array([row_id], np.int64))[0])
        for counter in schema.counters:
            if len(counter.key) == 2 and row_id != MISSING_ID:
                places = [place for place, name in enumerate(counter.key) if schema.number(name) == number]
                found += [PairHalf(schema.memory_number(counter), place, half) for place in places]
    return found


def are_pairs(halves: Iterable[PairHalf], features_K: UInt16Array, ids_K: Int64Array) -> BoolArray:
    """Return which keys are of pairs with one of these halves."""
    is_pair_K = np.zeros(len(ids_K), np.bool_)
    for half in halves:
        is_pair_K |= half.holds(features_K, ids_K)
    return is_pair_K


def keys_of_entry(entry: CommandEntry, schema: Schema) -> list[tuple[int, int]]:
    """Return the keys, as (feature number, id), that an executed command has erased."""
    if entry.kind != "forget" or entry.is_refused:
        return []
    keys = []
    for key in entry.keys:
        try:
            keys += keys_of_id(schema, key.feature, key.id)
        except (EncodeError, KeyError):
            continue
    return keys


def erased_keys(entries: Iterable[CommandEntry], schema: Schema) -> RowBlock:
    """Return the keys that executed commands have erased, as a layer without values."""
    keys = {key for entry in entries for key in keys_of_entry(entry, schema)}
    features = np.array([feature for feature, _ in keys], np.uint16)
    return RowBlock.of_keys(features, np.array([row_id for _, row_id in keys], np.int64)).in_key_order()


def erased_pairs(entries: Iterable[CommandEntry], schema: Schema) -> list[PairHalf]:
    """Return what the rows of pairs have in common that executed commands have erased."""
    return halves_of_pairs(schema, dict.fromkeys(key for entry in entries for key in keys_of_entry(entry, schema)))


def erasures_of(
    entries: Iterable[CommandEntry], schema: Schema, *, otherwise: Positions | None = None
) -> list[Erasure]:
    """Return the erasure of each `forget` command; `otherwise`: its positions if the entry has none."""
    found = []
    for entry in entries:
        keys = keys_of_entry(entry, schema)
        positions = otherwise if entry.positions is None else entry.positions
        if keys and positions:
            found.append(Erasure(tuple(keys), positions_from_meta(positions)))
    return found


def erasures_ahead(erasures: Iterable[Erasure], positions: Mapping[Partition, Position]) -> list[Erasure]:
    """Return the erasures that matter when the stream is read on from these positions, each once."""
    found: list[Erasure] = []
    for erasure in erasures:
        if erasure not in found and erasure.affects_replay_from(positions):
            found.append(erasure)
    return found


def max_positions(one: Mapping[Partition, Position], other: Mapping[Partition, Position]) -> dict[Partition, Position]:
    """Return the higher offset of each partition; `one` decides the topic where the topic ids differ."""
    found = dict(one)
    for partition, at in other.items():
        here = found.setdefault(partition, at)
        if at.matches_topic(here.topic_id) and at.offset > here.offset:
            found[partition] = at
    return found


def high_water_marks(meta: VersionMeta) -> dict[Partition, Position]:
    """Return how far the stream was ever learned up to a version, which a rollback may have rewound since."""
    trainer = TrainerMeta.of(meta)
    marks = positions_from_meta(trainer.high_water_marks)
    return max_positions(furthest_read(positions_from_meta(meta.positions), trainer.join), marks)


def furthest_read(positions: Mapping[Partition, Position], join: JoinState | None) -> dict[Partition, Position]:
    """Return how far the stream was read: of a join, whose positions say from where it is read again, by its marks."""
    read = dict(positions)
    for partition, offset in ({} if join is None else join.next_offsets()).items():
        if partition in read:
            read[partition] = read[partition]._replace(offset=max(read[partition].offset, offset))
    return read


def erasures_to_meta(erasures: Iterable[Erasure]) -> list[ErasureMeta]:
    """Return the erasures as a version's TrainerMeta holds them."""
    return [ErasureMeta(list(erasure.keys), positions_to_meta(erasure.until)) for erasure in erasures]


def erasures_from_meta(metas: Iterable[ErasureMeta]) -> list[Erasure]:
    """Invert `erasures_to_meta`."""
    return [Erasure(tuple(meta.keys), positions_from_meta(meta.until)) for meta in metas]
