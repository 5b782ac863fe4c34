"""A view of several tables answers for each key with the row of its table."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from springtide_client.encode import encode_instances
from springtide_client.errors import LogError
from springtide_client.follow.views import MemoryLimit
from springtide_client.keys import CROSSES, SHARED_ROW_OFFSET
from springtide_client.log.directory import LogDirectory
from springtide_client.model.inputs import assemble, lookup_keys
from springtide_client.model.view import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN
from springtide_client.rows.initial_values import initial_values
from tests.client.model.test_view import INSTANCES, ask, newest, open_newest

TABLES = {"dim2": (2, [1, 3]), "dim6": (6, [CROSSES])}
DIMS = {0: 4, 1: 2, 2: 4, CROSSES: 6}
KEYS = [(feature, row_id) for feature in DIMS for row_id in (-3, 0, 7, 2**40)]

keys = st.sampled_from(KEYS)
versions = st.lists(
    st.tuples(st.dictionaries(keys, st.integers(0, 50), max_size=8), st.lists(keys, max_size=3, unique=True)),
    min_size=1,
    max_size=8,
)


def row(key: tuple[int, int], seed: int):
    dim = DIMS[key[0] % SHARED_ROW_OFFSET]
    return np.random.default_rng(seed).normal(size=dim).astype(np.float32), seed + 1, 1000 + seed


def assert_equals_dictionary(view, log) -> None:
    for feature in DIMS:
        rows, status = view.lookup(np.array([feature], np.uint16), np.array([i for f, i in KEYS if f == feature]))
        for key, found, code in zip([key for key in KEYS if key[0] == feature], rows, status, strict=True):
            if key in log.rows:
                value, count, seen = log.rows[key]
                assert code == KNOWN
                np.testing.assert_array_equal(found, value)
                assert view.table_of(feature).count_and_last_seen(*key) == (count, seen)
            else:
                assert code == (FORGOTTEN if key in log.tombstones else UNKNOWN)
                assert found.shape == (DIMS[feature],)
                assert np.isnan(found).all()
                assert view.row_info(*key)["status"] == ("forgotten" if key in log.tombstones else "unknown")
    rows, status = ask(view, KEYS)
    for key, found, code in zip(KEYS, rows, status, strict=True):
        alone, (own_code,) = ask(view, [key])
        assert code == own_code
        np.testing.assert_array_equal(found[: DIMS[key[0]]], alone[0])
        assert np.isnan(found[DIMS[key[0]] :]).all()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(versions, st.data())
def test_a_view_of_several_tables_answers_like_a_dictionary(make_log, drawn, data) -> None:
    log = make_log(tables=TABLES)
    plain = moved = open_newest(log)
    for changed, forgotten in drawn:
        log.append({key: row(key, seed) for key, seed in changed.items()}, forgotten)
        (record,) = LogDirectory(log.path).records(plain.head)
        plain, moved = plain.apply(record), moved.apply(record).merged()
        if data.draw(st.booleans()):
            moved = MemoryLimit(memory_bytes=moved.parameters.num_bytes, folder=log.path / "cache").apply(moved)
            assert moved.num_bytes == moved.fixed_bytes
        assert_equals_dictionary(plain, log)
        assert_equals_dictionary(moved, log)
        assert plain.num_changed_rows >= moved.num_changed_rows
    log.write_base()
    again = open_newest(log)
    assert again.head == plain.head
    assert_equals_dictionary(again, log)
    features = encode_instances(log.schema, INSTANCES)
    np.testing.assert_array_equal(again.predict(features), plain.predict(features))
    np.testing.assert_array_equal(again.predict(features), moved.predict(features))


def test_a_model_sees_narrow_rows_with_zeros_behind_them(make_log) -> None:
    log = make_log(tables=TABLES)
    log.append({key: row(key, 3) for key in [(0, 1), (1, 2), (2, 7)]}, [(1, 9)])
    view = newest(log)
    assert view.dim == 4
    features_K, ids_K = np.array([0, 1, 1, 1, 2], np.uint16), np.array([1, 2, 9, 10, 7])
    rows, status = view.rows_for_model(features_K, ids_K)
    assert status.tolist() == [KNOWN, KNOWN, FORGOTTEN, UNKNOWN, KNOWN]
    np.testing.assert_array_equal(rows[[0, 4]], [log.rows[0, 1][0], log.rows[2, 7][0]])
    np.testing.assert_array_equal(rows[1], [*log.rows[1, 2][0], 0, 0])
    first = initial_values(features_K[2:4], ids_K[2:4], dim=2, seed=log.seed, scale=log.init_scale)
    np.testing.assert_array_equal(rows[2:4], np.hstack([first, np.zeros((2, 2), np.float32)]))
    features = encode_instances(log.schema, INSTANCES)
    expected = assemble(log.schema, features, view.rows_for_model(*lookup_keys(log.schema, features))[0])
    np.testing.assert_array_equal(view.predict(features), view.model.predict(view.parameters, expected))


def test_ids_that_are_not_admitted_share_a_row_of_their_feature_in_its_table(make_log) -> None:
    log = make_log(tables=TABLES)
    log.admission = {"1": 3}
    shared = (SHARED_ROW_OFFSET + 1, 0)
    log.append({shared: row(shared, 5)}, seen={(1, 8): 1})
    view = newest(log)
    rows, status = view.rows_for_model(np.array([1, 1], np.uint16), np.array([8, 9]))
    assert status.tolist() == [NOT_ADMITTED, UNKNOWN]
    np.testing.assert_array_equal(rows, [[*log.rows[shared][0], 0, 0]] * 2)


def test_the_files_of_all_tables_share_one_limit(make_log) -> None:
    log = make_log(tables=TABLES)
    log.append({(feature, i): row((feature, i), i) for feature in (0, 1) for i in range(100)})
    view = newest(log)
    sizes = [table.layer_bytes for table in view.tables.values() if table.layers]
    limit = MemoryLimit(memory_bytes=view.parameters.num_bytes, disk_bytes=sum(sizes) + 200, folder=log.path)
    assert limit.apply(view).num_bytes == view.fixed_bytes
    too_small = MemoryLimit(memory_bytes=view.parameters.num_bytes, disk_bytes=sum(sizes) - 1, folder=log.path)
    with pytest.raises(LogError, match="cache_disk_bytes"):
        too_small.apply(view)
