"""Compact a log once: merge the newest base with the durable versions after it into the next base.

Rows are merged block by block; memory is bounded by the changes, not by the base.

"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import msgspec

from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, draft_base, link_file, write_base
from springtide.app.version_log.compact.onnx import OnnxBuilder
from springtide.app.version_log.compact.retention import delete_base
from springtide.app.version_log.read.corruption import report_corruption
from springtide.app.version_log.read.exact_state import ExactStates
from springtide.app.version_log.read.id_dictionary import merge_id_strings
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.replay_state import ReplayState
from springtide.app.version_log.tables import LogTable
from springtide_client.array_types import UInt64Array
from springtide_client.errors import CorruptRecordError, GapError, LogError
from springtide_client.format.checksums import encode_checksummed_json
from springtide_client.format.records import EPOCH_SHIFT, Head, Record, VersionMeta
from springtide_client.log.base import MANIFEST, MODEL, Base, read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name, base_number
from springtide_client.rows.layers import merge_layers
from springtide_client.rows.row_block import RowBlock
from springtide_client.system.clock import wall_ms
from springtide_client.system.files import write_synced

CHUNK_ROWS = 65_536
MAX_REPLAYED_BYTES = 1 << 30  # of records over one base; more of them become an intermediate base
READ_CHUNK_BYTES = 16 << 20

logger = logging.getLogger(__name__)


def link_base(log_path: Path, base: Base, head: Head, meta: VersionMeta) -> Path:
    """Write the base of version `head`, which holds what `base` holds, and return its folder.

    The files are links, so it takes no space; where the file system has none, they are copied.
    """
    manifest = msgspec.structs.replace(
        base.manifest,
        number=head.number,
        checksum=head.checksum,
        epoch=head.number >> EPOCH_SHIFT,
        created_ms=wall_ms(),
        meta=meta,
        repeats=base.manifest.repeats or base.manifest.number,
    )
    with draft_base(log_path, head) as draft:
        for name in base.manifest.files:
            link_file(base.path / name, draft / name)
        write_synced(draft / MANIFEST, encode_checksummed_json(manifest))
    return Path(log_path) / base_name(head.number)


def compact_log(
    directory: LogDirectory,
    *,
    window_samples: int,
    max_replayed_bytes: int = MAX_REPLAYED_BYTES,
    onnx: OnnxBuilder | None = None,
    base_files: int = 0,
) -> Path | None:
    """Write the base of the newest version known to be durable; None if the log has no newer one than its last base.

    `base_files`: [log] base_files.
    """
    base, damaged = newest_intact_base(directory)
    if base is None:
        return None
    last = newest_exact_version(LogIndex(directory), base, max_replayed_bytes)
    state = ReplayState(base, window_samples=window_samples)
    for record in durable_records(directory, base) if last > base.head.number else ():
        state.apply(record)
        if record.number >= last:
            break
    if state.head == base.head or not state.is_exact(directory.path):
        return None
    damaged_by_number = {base_number(path): path for path in damaged}
    if (same := damaged_by_number.pop(state.head.number, None)) is not None:
        delete_base(same)
    if state.is_idle and state.state_head is None:
        written = link_base(directory.path, base, state.head, state.meta)
    else:
        written = write_merged_base(directory.path, state, onnx, base_files=base_files)
    for version, path in damaged_by_number.items():
        if version < state.head.number:  # a newer one stays: the log does not reach it, so it may be the last copy
            delete_base(path)
    return written


def newest_intact_base(directory: LogDirectory) -> tuple[Base | None, list[Path]]:
    """Return the newest base whose files all match their checksums, and the damaged ones newer than it.

    The next base gets new checksums, so a damaged row carried over would pass for a good one from then on. If all bases
    are damaged, the newest of which only EXPORTS are, which hold no row; else the newest that opens: without a next
    base the log would grow for ever. LogError if none opens.
    """
    damaged: list[Path] = []
    with_rows: tuple[Base, list[Path]] | None = None
    for path in reversed(directory.bases()):
        if damaged and not LogIndex(directory).runs.are_connected(base_number(path), base_number(damaged[0])):
            break  # the versions after it were deleted: a base made from it would hold an old one
        try:
            base = Base.open(path)
            base.verify(exports=False)
            with_rows = with_rows or (base, list(damaged))
            base.verify()
            return base, damaged
        except (LogError, OSError) as error:
            logger.error("a base is damaged", extra={"base": path.name, "reason": str(error)})
            damaged.append(path)
    return with_rows or (directory.open_base(), [])


def durable_records(directory: LogDirectory, base: Base) -> Iterator[Record]:
    """Yield the records after a base that a later record calls durable.

    The later record's writer had checked for a higher epoch before it called them durable; a seal proves less.
    """
    waiting: deque[Record] = deque()
    with directory.follow(base.head) as cursor:
        while True:
            try:
                records = cursor.read(READ_CHUNK_BYTES)
            except (GapError, CorruptRecordError) as error:
                logger.warning("the log is corrupt after its newest base", extra={"reason": str(error)})
                report_corruption(directory, str(error))
                return
            if not records:
                return
            for record in records:
                waiting.append(record)
                while waiting and waiting[0].number <= record.meta.durable:
                    yield waiting.popleft()


def newest_exact_version(index: LogIndex, base: Base, max_replayed_bytes: int) -> int:
    """Return the newest durable version whose exact state of the net is there; 0 if there is none after the base.

    The first one after `max_replayed_bytes` of records, if there are more.
    """
    entries = [entry for entry in index.entries if entry.number > base.head.number]
    metas: list[VersionMeta] = []
    try:
        metas.extend(entry.read_summary().meta for entry in entries)
    except LogError:
        return entries[-1].number  # corrupt: the reader that gets there reports where
    durable = max((meta.durable for meta in metas), default=0)
    states = ExactStates(index.directory.path, base, index.find)
    newest = num_bytes = 0
    for entry, meta in zip(entries, metas, strict=True):
        num_bytes += entry.num_bytes
        if entry.number <= durable and states.has(meta.exact_state):
            newest = entry.number
            if num_bytes >= max_replayed_bytes:
                break
    return newest


def write_merged_base(log_path: Path, state: ReplayState, onnx: OnnxBuilder | None = None, *, base_files: int) -> Path:
    """Write the base that has the replayed versions over the one before. Tombstones and dead rows are dropped."""
    base, meta, manifest = state.base, state.meta_since(oldest_commands(log_path)), state.base.manifest
    images, dead = [], []
    for table in state.tables:
        merged, dropped = merged_table(state, table, meta.expiry_cutoffs, base_files or state.num_ranks)
        images.append(merged)
        dead.append(dropped)
    main, *others = images
    image = BaseImage(
        head=state.head,
        schema=manifest.decode_schema(),
        table=main,
        tables={table.name: other for table, other in zip(state.tables[1:], others, strict=True)},
        model=manifest.model,
        meta=meta,
        dense=state.arrays,
        state=state.state_file(log_path),
        sketch=state.sketch,
        id_strings=merge_id_strings([*state.id_strings, base.id_strings], merge_layers(*dead)),
        items=state.live_items(),
        program=base.model_path,
        program_checksum=manifest.files.get(MODEL),
        onnx=None if onnx is None else onnx.build(base, state.arrays, meta.label_shares),
    )
    return write_base(log_path, image)


def merged_table(
    state: ReplayState, table: LogTable, cutoffs: Mapping[str, int], num_ranges: int
) -> tuple[TableImage, RowBlock]:
    """Return the rows that the merge keeps of one table, and the keys that it drops."""
    base, changes, dead = state.base, state.changed_rows(table), DeadKeys()
    keys = dead.collect(merged_blocks(table.base_rows(base).keys_only(), changes.keys_only(), cutoffs))

    def rows() -> Iterator[RowBlock]:
        return (block for block, _ in merged_blocks(table.base_layer(base), changes, cutoffs))

    return TableImage.of(table.spec, rows, keys, num_ranges), dead.layer()


def oldest_commands(log_path: Path) -> frozenset[str]:
    """Return the ids of the commands that the oldest base of a log has; none if it cannot be read."""
    for path in LogDirectory(log_path).bases():
        try:
            return frozenset(entry.id for entry in read_base_manifest(path).meta.executed_commands)
        except (LogError, OSError):
            continue
    return frozenset()


class DeadKeys:
    """The keys that a merge drops, collected on the way."""

    def __init__(self) -> None:
        self._dropped = [RowBlock.zeros(0, 0)]

    def collect(self, blocks: Iterable[tuple[RowBlock, RowBlock]]) -> Iterator[RowBlock]:
        """Yield the live rows of merged blocks."""
        for block, dropped in blocks:
            if len(dropped):
                self._dropped.append(dropped)
            yield block

    def layer(self) -> RowBlock:
        """Return the keys collected so far, with values of width 0."""
        return RowBlock.concatenate(self._dropped).in_key_order()


def dead_keys(state: ReplayState, table: LogTable) -> RowBlock:
    """Return the keys of one table that a merge drops."""
    dead, changes = DeadKeys(), state.changed_rows(table).keys_only()
    for _ in dead.collect(merged_blocks(table.base_rows(state.base).keys_only(), changes, state.meta.expiry_cutoffs)):
        pass
    return dead.layer()


def block_bounds(*layers: RowBlock) -> UInt64Array:
    """Return the key hashes at which layers are split into blocks, of CHUNK_ROWS rows of the longest."""
    return max(layers, key=len).key_hash[CHUNK_ROWS::CHUNK_ROWS]


def merged_blocks(
    rows: RowBlock, changes: RowBlock, cutoffs: Mapping[str, int], bounds: UInt64Array | None = None
) -> Iterator[tuple[RowBlock, RowBlock]]:
    """Merge `changes` over `rows` in key order; yield the live rows and the dead ones of each block of keys.

    `bounds`: where the blocks end, if not as is best for these rows.
    """
    bounds = block_bounds(rows, changes) if bounds is None else bounds
    for old, new in zip(_split(rows, bounds), _split(changes, bounds), strict=True):
        merged = merge_layers(old, new)
        alive = merged.live_mask(cutoffs)
        if alive.all():
            yield merged.without_tombstones(), merged.take(slice(0, 0))
        else:
            yield merged.where(alive).without_tombstones(), merged.where(~alive)


def _split(layer: RowBlock, bounds: UInt64Array) -> list[RowBlock]:
    ends = [0, *layer.key_hash.searchsorted(bounds).tolist(), len(layer)]
    return [layer.take(slice(start, end)) for start, end in pairwise(ends)]
