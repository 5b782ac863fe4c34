import numpy as np

from springtide.embeddings.lookup.materialize import KNOWN, NOT_ADMITTED, UNKNOWN
from springtide.embeddings.memory.capacity import Capacity
from springtide.kernels.ops import Ops
from tests.embeddings.backends import host, uses_shared_row
from tests.embeddings.small_tables import DIM, learn, make, status


def test_an_id_is_admitted_after_min_count_occurrences(ops: Ops) -> None:
    table = make(Capacity.of_rows(64), device=ops, admission={"min_count": 3, "sketch_bytes": "64KiB"})
    zeros, id_ = np.zeros(1, np.uint16), np.array([42])
    lookup = table.lookup(zeros, id_, zeros.astype(np.int64))
    assert uses_shared_row(lookup).tolist() == [True]
    shared_before = host(table.gather(lookup))
    table.update(lookup, np.ones((1, DIM), np.float32))
    assert status(table, [42, 43]) == [NOT_ADMITTED, UNKNOWN]

    lookup = table.lookup(zeros, np.array([43]), zeros.astype(np.int64))
    assert (host(table.gather(lookup)) < shared_before).all()  # they share a row, and it has learned
    lookup.release()

    learn(table, [42])
    assert status(table, [42]) == [NOT_ADMITTED]
    learn(table, [42])
    assert status(table, [42]) == [KNOWN]
    assert table.counters()["admitted"] == 1
    assert table.counters()["not_admitted"] == 3


def test_admission_counts_halve_with_samples(ops: Ops) -> None:
    table = make(device=ops, admission={"min_count": 4, "sketch_bytes": "64KiB", "decay_every_samples": 100})
    learn(table, [1] * 3)
    learn(table, [2] * 3)
    table.advance(0, 99)
    learn(table, [1])
    table.advance(0, 100)
    learn(table, [2])
    assert status(table, [1, 2]) == [KNOWN, NOT_ADMITTED]


def test_ids_are_counted_when_their_lookup_is_learned_from(ops: Ops) -> None:
    table = make(Capacity.of_rows(64), device=ops, admission={"min_count": 3, "sketch_bytes": "64KiB"})
    keys = np.zeros(2, np.uint16), np.array([42, 43]), np.zeros(2, np.int64)
    table.lookup(*keys).release()
    lookup = table.lookup(*keys)
    assert len(table.admission.take_delta()[0]) == 0
    assert status(table, [42, 43]) == [UNKNOWN] * 2
    table.touch(lookup)
    assert len(table.admission.take_delta()[0]) == 2
    assert status(table, [42, 43]) == [NOT_ADMITTED] * 2
