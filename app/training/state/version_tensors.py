"""The tensors of a version: rows, erased keys, admission sketch, id strings; and a log of them, replayed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.training.ranks.ranks import Ranks
from springtide.app.training.step.learner import Learner
from springtide.app.version_log.read.exact_state import PARAMETERS, RANDOM, fold_net, is_net
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.rows import NO_KEYS, TableDelta
from springtide_client.features import IdStrings
from springtide_client.format.records import Record, VersionMeta
from springtide_client.log.base import Base
from springtide_client.rows.row_block import RowBlock
from springtide_client.rows.table_names import MAIN_TABLE, ROW_TENSORS, record_tensor

Arrays = dict[str, npt.NDArray[Any]]
T = TypeVar("T")


def with_prefix(prefix: str, arrays: Mapping[str, T]) -> dict[str, T]:
    """Return the arrays or tensors by their full names."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Return the arrays of a group, by their own names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def delta_to_arrays(delta: TableDelta) -> Arrays:
    """Return a table's delta as tensors; empty groups are absent."""
    arrays: Arrays = {}
    rows, forgotten = delta.rows, delta.forgotten
    if len(rows):
        arrays |= dict(zip(ROW_TENSORS, (rows.feature, rows.id, *rows.contents), strict=True))
    if len(forgotten):
        arrays |= {"forgotten.feature": forgotten.feature, "forgotten.id": forgotten.id}
    return arrays


def deltas_to_arrays(deltas: Mapping[str, TableDelta]) -> Arrays:
    """Return the deltas of several tables, by name, as tensors: rows by table, the forgotten keys of all together."""
    arrays: Arrays = {}
    forgotten: list[Arrays] = []
    for table, delta in deltas.items():
        tensors = delta_to_arrays(delta)
        if len(delta.forgotten):
            forgotten.append({name: tensors.pop(name) for name in ("forgotten.feature", "forgotten.id")})
        if not delta.rows.state.shape[1] and table != MAIN_TABLE:
            tensors.pop("rows.state", None)
        arrays |= {record_tensor(table, name): array for name, array in tensors.items()}
    for name in ("forgotten.feature", "forgotten.id") if forgotten else ():
        arrays[name] = np.concatenate([part[name] for part in forgotten])
    return arrays


def arrays_to_delta(arrays: Mapping[str, npt.NDArray[Any]], *, dim: int, state_width: int) -> TableDelta:
    """Invert `delta_to_arrays`."""
    rows, forgotten = RowBlock.zeros(0, dim, state_width), NO_KEYS
    if "rows.id" in arrays:
        columns: list[npt.NDArray[Any]] = [arrays[name] for name in ROW_TENSORS]
        rows = RowBlock(*columns)
    if "forgotten.id" in arrays:
        forgotten = RowBlock.of_keys(arrays["forgotten.feature"], arrays["forgotten.id"])
    return TableDelta(rows, forgotten)


def sketch_to_arrays(blocks_B: npt.NDArray[np.int64], bytes_B64: npt.NDArray[np.uint8]) -> Arrays:
    """Return the changed blocks of the admission sketch as tensors; {} if there are none."""
    return {"sketch.block": blocks_B, "sketch.bytes": bytes_B64} if len(blocks_B) else {}


def id_strings_to_arrays(id_strings: Iterable[IdStrings]) -> Arrays:
    """Return id strings as tensors, all UTF-8 bytes in one of them; {} if there are none."""
    parts = list(id_strings)
    encoded = [string.encode() for part in parts for string in part.strings]
    if not encoded:
        return {}
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(string) for string in encoded], out=offsets[1:])
    return {
        "texts.feature": np.concatenate([part.features for part in parts]),
        "texts.id": np.concatenate([part.ids for part in parts]),
        "texts.offsets": offsets,
        "texts.bytes": np.frombuffer(b"".join(encoded), np.uint8),
    }


def replay_log(
    learner: Learner,
    scores: ProgressiveScores,
    base: Base,
    records: Iterable[Record],
    *,
    read_state: Callable[[int], Arrays],
    on_delta: Callable[[TableDelta], None] | None = None,
    ranks: Ranks | None = None,
) -> VersionMeta:
    """Restore rows, sketch, dense net, optimizer, random state and scores; returns the metadata of the last version.

    The table reads the rows of the base itself; `on_delta` gets those of each version. `read_state` returns the
    exact state of the net at a version that does not carry it. Of several `ranks` this one keeps the rows of its range.
    ValueError if the log holds another net.
    """
    arrays: Arrays = {**base.dense, **base.trainer_state}
    scores.restore(without_prefix("state.scores.", arrays))
    meta, table = base.manifest.meta, learner.table
    net, names = fold_net({}, arrays, is_whole=True), base.manifest.table_names
    if base.sketch is not None:
        _restore_sketch(table, meta, np.arange(len(base.sketch)), base.sketch)
    for record in records:
        meta, tensors = record.meta, record.tensors()
        for name, one in table.tables.items():
            own = names.tensors_of(name, tensors)
            delta = arrays_to_delta(own, dim=one.dim, state_width=one.layout.state_width)
            one.restore(delta if ranks is None else ranks.own_part(delta))
            if on_delta is not None:
                on_delta(delta)
        if "sketch.block" in tensors:
            _restore_sketch(table, meta, tensors["sketch.block"], tensors["sketch.bytes"])
        if meta.restores:
            scores.restore(without_prefix("state.scores.", tensors))
        else:
            scores.apply(without_prefix("state.scores.", tensors))
        carried = {name: np.array(array) for name, array in tensors.items() if is_net(name)}  # outlives the record
        net = fold_net(net, carried, is_whole=bool(meta.restores))
    if meta.exact_state > base.head.number:
        net = read_state(meta.exact_state)
    parameters = without_prefix(PARAMETERS, net) or without_prefix("dense.", net)
    learner.restore(parameters, without_prefix("state.", net))
    if RANDOM in net:
        torch.set_rng_state(torch.from_numpy(np.array(net[RANDOM])))
    return meta


def _restore_sketch(
    table: AnyTable, meta: VersionMeta, blocks_B: npt.NDArray[np.int64], bytes_B64: npt.NDArray[np.uint8]
) -> None:
    """Take the counts of a version, unless `sketch_bytes` has changed since: then counting starts again."""
    if meta.sketch_blocks == table.admission.sketch_info().num_blocks:
        table.admission.restore(blocks_B, np.ascontiguousarray(bytes_B64))
