from pathlib import Path

import numpy as np

from springtide.embeddings.config import FeaturePolicy, TableLimits
from springtide.embeddings.lookup.materialize import KNOWN
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.tiers.rocksdb.spill import RocksSpill
from springtide.kernels.ops import Ops
from tests.embeddings.small_tables import DIM, learn, make, status


def test_a_quota_holds_between_batches_and_does_not_affect_other_features(tmp_path: Path, ops: Ops) -> None:
    table = make(
        Capacity.of_rows(1024),
        RocksSpill(tmp_path / "spill", dim=DIM, state_width=1),
        device=ops,
        features={1: FeaturePolicy(quota_bytes="4KiB")},
    )
    allowed = 4096 // table.quotas.slot_bytes
    learn(table, range(200), feature=0)
    for start in range(0, 600, 150):
        learn(table, range(start, start + 150), feature=1)
        assert int(np.count_nonzero(table.memory.features() == 1)) <= allowed
    assert int(np.count_nonzero(table.memory.features() == 0)) == 200
    assert table.counters()["evicted_quota"] >= 600 - allowed
    assert status(table, range(600), feature=1) == [KNOWN] * 600
    table.close()


def test_a_quota_can_be_set_and_removed(tmp_path: Path, ops: Ops) -> None:
    table = make(Capacity.of_rows(256), RocksSpill(tmp_path / "spill", dim=DIM, state_width=1), device=ops)
    learn(table, range(100), feature=1)
    learn(table, range(20), feature=0)
    table.set_limits(TableLimits(quota_bytes={1: 10 * table.quotas.slot_bytes}))
    assert int(np.count_nonzero(table.memory.features() == 1)) <= 10
    table.set_limits(TableLimits(quota_bytes={1: None}))
    learn(table, range(100), feature=1)
    assert int(np.count_nonzero(table.memory.features() == 1)) > 90
    table.check_integrity()
    table.close()
