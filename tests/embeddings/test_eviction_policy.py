"""Eviction policies are complete; rows are evicted by a score computed from the rows themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from springtide.embeddings.config import TableConfig
from springtide.embeddings.eviction_policy import EVICTION_POLICIES, EvictionPolicy, PrioritySource, ScoredRows, l2_norm
from springtide.embeddings.lookup.materialize import KNOWN
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.kernels.ops import Ops
from springtide_client.rows.row_block import RowBlock
from tests.embeddings.small_tables import DIM, learn, make, status


def lengthen(table: EmbeddingTable, ids: Any, lengths: Any) -> None:
    """Train rows with sgd and a learning rate of 1 until their values have these norms."""
    ids_K = np.asarray(ids, np.int64)
    features_K, times_K = np.zeros(len(ids_K), np.uint16), np.full(len(ids_K), 1000, np.int64)
    lookup = table.lookup(features_K, ids_K, times_K)
    (rows_KD,) = table.ops.fetch(table.gather(lookup))
    wanted_KD = np.zeros((len(ids_K), DIM), np.float32)
    wanted_KD[:, 0] = lengths
    table.update(lookup, *table.ops.put(np.ascontiguousarray(rows_KD - wanted_KD)))


def by_last_seen(rows: ScoredRows) -> torch.Tensor:
    return -rows.last_seen_ms


SGD = {"name": "sgd", "lr": 1.0}


def test_l2_norm_evicts_the_row_with_the_smallest_norm(ops: Ops) -> None:
    table, width = make(eviction="l2-norm", optimizer=SGD, device=ops), ops.width
    lengths = np.arange(width) + 5.0
    lengths[[3, 7]] = 1, 2
    lengthen(table, range(width), lengths)
    lengthen(table, [3], [4])  # it grows, so that 7 is now the smallest
    learn(table, [1000])
    assert np.flatnonzero(np.array(status(table, range(width))) != KNOWN).tolist() == [7]


def test_a_fetched_row_has_the_score_of_its_values(tmp_path: Path, ops: Ops) -> None:
    spill = RocksSpill(tmp_path / "spill", dim=DIM, state_width=0)
    table, width = make(eviction="l2-norm", optimizer=SGD, spill=spill, device=ops), ops.width
    zero, one, others = np.zeros(1, np.uint16), np.array([1]), np.arange(100, 100 + width)
    lengthen(table, [1], [50])
    lengthen(table, others, np.full(width, 60.0))
    assert int(table.memory.find(zero, one)[0]) < 0  # the others are longer
    table.forget(np.zeros(width, np.uint16), others)
    table.lookup(zero, one, one).release()
    lengthen(table, others[1:], np.full(width - 1, 10.0))
    lengthen(table, [200], [10])
    assert int(table.memory.find(zero, one)[0]) >= 0
    table.close()


def test_written_rows_have_the_score_of_their_values(ops: Ops) -> None:
    table, width = make(eviction="l2-norm", optimizer=SGD, device=ops), ops.width
    values_ND = np.full((width, DIM), 3, np.float32)
    values_ND[5] = 0.5
    nothing = np.zeros(width, np.int64)
    table.write(RowBlock(nothing.astype(np.uint16), np.arange(width), values_ND, values_ND[:, :0], nothing, nothing))
    learn(table, [1000])
    assert np.flatnonzero(np.array(status(table, range(width))) != KNOWN).tolist() == [5]


def test_a_function_scores_rows_by_their_values_and_metadata(ops: Ops) -> None:
    seen: list[ScoredRows] = []

    def score(rows: ScoredRows) -> torch.Tensor:
        seen.append(rows)
        return -rows.last_seen_ms

    config = TableConfig(dim=DIM, eviction="custom", optimizer={"name": "adam", "lr": 0.1})
    table = EmbeddingTable(config, seed=0, capacity=Capacity.of_rows(1), device=ops, score=score)
    width = ops.width
    for id_ in range(width):
        learn(table, [id_, id_], at_ms=1000 + id_ % 3)
    learn(table, [1000], at_ms=1)  # of the latest, the lower key hash and then the lower tick
    gone = np.flatnonzero(np.array(status(table, range(width))) != KNOWN)
    assert gone.tolist() == [2]
    created, updated = seen[0], seen[1]
    assert (created.ids.tolist(), created.counts.tolist(), created.last_seen_ms.tolist()) == ([0], [0], [0])
    assert (updated.ids.tolist(), updated.counts.tolist(), updated.last_seen_ms.tolist()) == ([0], [2], [1000])
    assert updated.values.shape == (1, DIM)
    assert updated.states.shape == (1, 2 * DIM + 1)


@pytest.mark.parametrize("wrong", [lambda rows: rows.values, lambda rows: 1.0, lambda rows: rows.ids[:0]])
def test_a_wrong_result_is_an_error_and_changes_nothing(wrong: Any, ops: Ops) -> None:
    config = TableConfig(dim=DIM, eviction="custom")
    table = EmbeddingTable(config, seed=0, capacity=Capacity.of_rows(1), device=ops, score=wrong)
    with pytest.raises(ValueError, match="one number a row"):
        learn(table, [1, 2])
    assert status(table, [1, 2]) == [1, 1]
    assert table.memory.num_pinned == 0


def test_a_score_goes_with_custom_eviction_only() -> None:
    with pytest.raises(ValueError, match="custom"):
        EmbeddingTable(TableConfig(dim=DIM), seed=0, capacity=Capacity.of_rows(1), score=by_last_seen)


@pytest.mark.parametrize(
    "incomplete",
    [
        {"source": PrioritySource.ROW},
        {"source": PrioritySource.KEYS, "of_row": l2_norm},
        {"source": PrioritySource.COUNT, "of_row": l2_norm},
        {"source": PrioritySource.NOTHING, "description": ""},
    ],
)
def test_an_incomplete_policy_is_refused_where_it_is_declared(incomplete: Any) -> None:
    with pytest.raises(ValueError, match="eviction policy"):
        EvictionPolicy(**{"name": "new", "description": "one of them"} | incomplete)


def test_a_table_evicts_by_a_policy_that_is_declared_and_by_no_other() -> None:
    assert TableConfig.of({"dim": 1, "eviction": "lfu"}).eviction_policy is EVICTION_POLICIES["lfu"]
    with pytest.raises(ValueError, match="eviction"):
        TableConfig.of({"dim": 1, "eviction": "mru"})
