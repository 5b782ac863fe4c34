"""A base and the durable versions behind it become the next base, piece by piece: memory is bounded by the changes."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from springtide_client.errors import CorruptRecordError, GapError, LogError
from springtide_client.format.records import Record
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.layers import RowLayer, empty_layer, merge_layers, sorted_layer

from app.version_log.compact.base_writer import BaseImage, write_base
from app.version_log.compact.onnx import OnnxBuilder
from app.version_log.compact.retention import base_number, delete_base
from app.version_log.read.corruption import report_corruption
from app.version_log.read.id_strings import merge_id_strings
from app.version_log.read.replay_state import ReplayState

CHUNK_ROWS = 65_536
MAX_REPLAYED_BYTES = 1 << 30  # of records over one base: more of them make a base in between
READ_CHUNK_BYTES = 16 << 20

logger = logging.getLogger(__name__)


def compact_log(
    directory: LogDirectory,
    *,
    window_samples: int,
    overlay_bytes: int = MAX_REPLAYED_BYTES,
    onnx: OnnxBuilder | None = None,
) -> Path | None:
    """The next base, of the newest version that is known to be durable; None where there is no newer one."""
    base, damaged = newest_intact_base(directory)
    if base is None:
        return None
    overlay = ReplayState(base, window_samples=window_samples)
    for record in durable_records(directory, base):
        overlay.apply(record)
        if overlay.num_bytes >= overlay_bytes:
            break
    if overlay.tip == base.tip:
        return None
    numbers = {base_number(path): path for path in damaged}
    if (same := numbers.pop(overlay.tip.number, None)) is not None:
        delete_base(same)
    made = write_merged_base(directory.path, base, overlay, onnx)
    for number, path in numbers.items():
        if number < overlay.tip.number:  # else the log does not lead there, and it may be the last to know
            delete_base(path)
    return made


def newest_intact_base(directory: LogDirectory) -> tuple[Base | None, list[Path]]:
    """The newest base of which every byte is as it was written, and those passed over; LogError where none opens.

    What a merge carries on gets a new checksum: a damaged row would be a good one from then on. Where all are damaged,
    there is nothing better than the newest that opens: without a next base the log would only grow.
    """
    damaged: list[Path] = []
    for path in reversed(directory.bases()):
        try:
            base = Base.open(path)
            base.verify()
            return base, damaged
        except (LogError, OSError) as error:
            logger.error("a base is damaged", extra={"base": path.name, "reason": str(error)})
            damaged.append(path)
    return directory.open_base(), []


def durable_records(directory: LogDirectory, base: Base) -> Iterator[Record]:
    """The records behind a base that a later one calls durable: its writer had looked, a seal proves less."""
    waiting: deque[Record] = deque()
    with directory.follow(base.tip) as cursor:
        while True:
            try:
                records = cursor.read(READ_CHUNK_BYTES)
            except (GapError, CorruptRecordError) as error:
                logger.warning("the log breaks behind its newest base", extra={"reason": str(error)})
                report_corruption(directory, str(error))
                return
            if not records:
                return
            for record in records:
                waiting.append(record)
                while waiting and waiting[0].number <= record.meta.durable:
                    yield waiting.popleft()


def write_merged_base(log_path: Path, base: Base, overlay: ReplayState, onnx: OnnxBuilder | None = None) -> Path:
    """The base that equals `base` with `overlay` applied. Marks and dead rows end here."""
    changes, meta, manifest = overlay.changed_rows(), overlay.meta, base.manifest
    counted = count_live_rows(base.rows, changes, meta.expiry_cutoffs)
    image = BaseImage(
        tip=overlay.tip,
        schema=manifest.decode_schema(),
        table=manifest.table,
        model=manifest.model,
        meta=meta,
        dense=overlay.arrays,
        sketch=overlay.sketch,
        num_rows=counted[0],
        blocks=(block for block, _ in merged_blocks(base.layer, changes, meta.expiry_cutoffs)),
        texts=merge_id_strings([*overlay.id_strings, *_texts_of(base)], counted[1]),
        program=base.model_path,
        onnx=None if onnx is None else onnx.make(base, overlay.arrays),
    )
    return write_base(log_path, image)


def count_live_rows(rows: RowLayer, changes: RowLayer, horizons: Mapping[str, int]) -> tuple[int, RowLayer]:
    """How many rows will live, and the keys that will not."""
    num_rows, dead = 0, [empty_layer(0)]
    for block, gone in merged_blocks(_keys_only(rows), _keys_only(changes), horizons):
        num_rows += len(block)
        if len(gone):
            dead.append(gone)
    columns = (np.concatenate([getattr(part, name) for part in dead]) for name in ("feature", "id"))
    feature, id = columns
    zeros = np.zeros(len(id), np.int64)
    return num_rows, sorted_layer(feature, id, np.empty((len(id), 0), np.float32), zeros, zeros)


def merged_blocks(
    rows: RowLayer, changes: RowLayer, horizons: Mapping[str, int]
) -> Iterator[tuple[RowLayer, RowLayer]]:
    """The living rows of `changes` over `rows` in the order of their keys, and the dead ones, some at a time."""
    longer = rows if len(rows) >= len(changes) else changes
    bounds = longer.mixed[CHUNK_ROWS::CHUNK_ROWS]
    for old, new in zip(_split(rows, bounds), _split(changes, bounds), strict=True):
        merged = merge_layers(old, new)
        alive = merged.live_mask(horizons)
        if alive.all():
            yield _without_tombstones(merged), merged.take(slice(0, 0))
        else:
            yield _without_tombstones(merged.take(np.flatnonzero(alive))), merged.take(np.flatnonzero(~alive))


def _split(layer: RowLayer, bounds: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> list[RowLayer]:
    ends = [0, *layer.mixed.searchsorted(bounds).tolist(), len(layer)]
    return [layer.take(slice(start, end)) for start, end in pairwise(ends)]


def _keys_only(layer: RowLayer) -> RowLayer:
    fields = (layer.mixed, layer.feature, layer.id, layer.value[:, :0], layer.count, layer.last_seen)
    return RowLayer(*fields, layer.forgotten)


def _without_tombstones(layer: RowLayer) -> RowLayer:
    """Without the marks, of which none is left."""
    fields = (layer.mixed, layer.feature, layer.id, layer.value, layer.count, layer.last_seen)
    return RowLayer(*fields, None, layer.state)


def _texts_of(base: Base) -> list[Arrays]:
    return [] if base.id_strings is None else [base.id_strings]
