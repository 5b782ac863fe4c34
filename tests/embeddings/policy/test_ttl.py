import numpy as np

from springtide.embeddings.config import FeaturePolicy
from springtide.embeddings.lookup.materialize import FORGOTTEN, KNOWN, UNKNOWN
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.memory.resident import SWEEP_PARTS
from springtide.kernels.ops import Ops
from tests.embeddings.backends import host
from tests.embeddings.small_tables import learn, make, status


def test_ttl_runs_on_event_time_and_a_returning_id_is_new(ops: Ops) -> None:
    table = make(Capacity.of_rows(64), device=ops, features={1: FeaturePolicy(ttl_seconds=10)})
    learn(table, [1, 2], feature=1, at_ms=5_000)
    learn(table, [1, 2], feature=0, at_ms=5_000)
    first = table.find(np.ones(1, np.uint16), np.array([3]))
    table.advance(15_000, 0)
    assert status(table, [1, 2, 3], feature=1) == [KNOWN, KNOWN, UNKNOWN]
    learn(table, [2], feature=1, at_ms=15_000)
    table.advance(15_001, 0)
    assert table.expiry_cutoffs == {1: 5_001}
    assert status(table, [1, 2], feature=1) == [FORGOTTEN, KNOWN]
    assert status(table, [1, 2], feature=0) == [KNOWN, KNOWN]
    learn(table, [1], feature=1, at_ms=16_000)
    delta = table.take_delta()
    row = (delta.rows.feature == 1) & (delta.rows.id == 1)
    assert delta.rows.count[row].tolist() == [1]
    assert np.isnan(host(first[0])).all()


def test_a_late_update_keeps_an_old_row_alive(ops: Ops) -> None:
    table = make(device=ops, features={0: FeaturePolicy(ttl_seconds=10)})
    learn(table, [1], at_ms=50_000)
    table.advance(50_000, 0)
    learn(table, [1, 2], at_ms=20_000)  # long after its TTL
    assert status(table, [1, 2]) == [KNOWN, KNOWN]
    assert table.take_delta().rows.last_seen.tolist() == [50_000, 40_000]


def test_the_highest_feature_number_may_have_a_ttl(ops: Ops) -> None:
    table = make(device=ops, features={65535: FeaturePolicy(ttl_seconds=10)})
    table.advance(60_000, 0)
    learn(table, [1], feature=65535, at_ms=1_000)
    assert table.take_delta().rows.last_seen.tolist() == [50_000]


def test_expired_rows_are_swept_from_memory(ops: Ops) -> None:
    table = make(Capacity.of_rows(1024), device=ops, features={0: FeaturePolicy(ttl_seconds=10)})
    learn(table, range(300), at_ms=1_000)
    for _ in range(SWEEP_PARTS + 1):  # a device deletes what it found with the next call
        table.advance(60_000, 0)
    assert table.rows_by_tier()["device"] == 0
    assert table.counters()["expired"] == 300
    table.check_integrity()
