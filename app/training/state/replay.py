"""Replays a log into a learner: its newest base, then every version after it."""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch

from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.training.ranks.ranks import Ranks
from springtide.app.training.state.version_tensors import Arrays, arrays_to_delta, without_prefix
from springtide.app.training.step.learner import Learner
from springtide.app.version_log.read.exact_state import PARAMETERS, RANDOM, fold_net, is_net
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.rows import TableDelta
from springtide_client.format.records import Record, VersionMeta
from springtide_client.log.base import Base


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
    if meta.exact_state > base.tip.number:
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
    if meta.sketch_blocks == table.sketch().num_blocks:
        table.restore_sketch(blocks_B, np.ascontiguousarray(bytes_B64))
