import numpy as np
import pytest

from springtide.embeddings.config import TableLimits
from springtide.embeddings.lookup.read_only import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN
from springtide.embeddings.memory.capacity import Capacity
from springtide.kernels.ops import Ops
from tests.embeddings.backends import host
from tests.embeddings.small_tables import learn, make, status


def test_limits_apply_to_a_table_in_use(ops: Ops) -> None:
    table = make(Capacity.of_rows(64), device=ops)
    learn(table, [1, 2, 3])
    before = host(table.find(np.zeros(1, np.uint16), np.array([1]))[0])
    table.set_limits(TableLimits(lr=0.0))
    learn(table, [1])
    np.testing.assert_array_equal(host(table.find(np.zeros(1, np.uint16), np.array([1]))[0]), before)
    table.set_limits(TableLimits(min_count={0: 2}, ttl_seconds={0: 5}))
    learn(table, [9], at_ms=10_000)
    assert status(table, [9]) == [NOT_ADMITTED]
    table.advance(10_000, 0)
    assert set(status(table, [1, 2, 3])) <= {FORGOTTEN, UNKNOWN}  # unknown once swept
    table.set_limits(TableLimits(min_count={0: None}, ttl_seconds={0: None}))
    learn(table, [10], at_ms=10_000)
    table.advance(90_000, 0)
    assert status(table, [10]) == [KNOWN]
    with pytest.raises(ValueError, match="ttl_seconds"):
        TableLimits(ttl_seconds={0: -1})
    with pytest.raises(ValueError, match="1KiB"):
        table.set_limits(TableLimits(lr=0.5, device_bytes="1KiB"))
    assert table.lr == 0.0
    with pytest.raises(ValueError, match="sketch"):
        make(None, device_bytes="16MiB", admission={"min_count": 2})
