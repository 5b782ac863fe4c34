"""A view equals a dictionary: random versions, erasures, merged layers, layers on disk, a newer base."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from springtide_client.encode import encode_instances
from springtide_client.errors import GapError, LogError
from springtide_client.follow.views import MemoryLimit
from springtide_client.keys import SHARED_ROW_OFFSET, hash_keys
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN, View, divide_by_shares
from springtide_client.rows.admission_counts import estimates
from springtide_client.rows.initial_values import initial_values
from springtide_client.schema import Schema

KEYS = [(feature, row_id) for feature in (0, 1, 2) for row_id in (-3, 0, 1, 2, 7, 2**40)]
INSTANCES = [
    {"user_id": 1, "item_id": 2, "genres": [1, 2, 7], "last_items": [2, 0], "age": 3.5},
    {"user_id": 99, "item_id": None, "genres": [], "last_items": None},
    {},
]

keys = st.sampled_from(KEYS)
versions = st.lists(
    st.tuples(st.dictionaries(keys, st.integers(0, 50), max_size=8), st.lists(keys, max_size=3, unique=True)),
    min_size=1,
    max_size=12,
)


def row(log, seed: int):
    return np.random.default_rng(seed).normal(size=log.dim).astype(np.float32), seed + 1, 1000 + seed


def ask(view: View, keys: list[tuple[int, int]]):
    features_K, ids_K = np.array([f for f, _ in keys], np.uint16), np.array([i for _, i in keys], np.int64)
    return view.lookup(features_K, ids_K)


def assert_equals_dictionary(view: View, log, keys=KEYS) -> None:
    rows, status = ask(view, keys)
    for key, found, code in zip(keys, rows, status.tolist(), strict=True):
        info = view.row_info(*key)
        if key in log.rows:
            value, count, seen = log.rows[key]
            assert code == KNOWN
            np.testing.assert_array_equal(found, value)
            np.testing.assert_array_equal(info.pop("vector"), value)
            assert info == {"status": "known", "count": count, "last_seen_ms": seen}
        else:
            assert code == (FORGOTTEN if key in log.tombstones else UNKNOWN)
            assert np.isnan(found).all()
            assert info["status"] == ("forgotten" if key in log.tombstones else "unknown")
            assert info["vector"] is None


_opened: list[View] = []


def open_newest(log) -> View:
    """The newest base; the program is parsed once for all tests, as it is for all bases of a trainer."""
    view = View.open(LogDirectory(log.path).newest_base(), like=_opened[0] if _opened else None)
    _opened.append(view)
    return view


def newest(log, view: View | None = None) -> View:
    view = view or open_newest(log)
    for record in LogDirectory(log.path).records(view.head):
        view = view.apply(record)
    return view


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(versions, st.data())
def test_a_view_answers_like_a_dictionary(make_log, drawn, data) -> None:
    log = make_log()
    plain = moved = open_newest(log)
    for changed, forgotten in drawn:
        log.append({key: row(log, seed) for key, seed in changed.items()}, forgotten)
        (record,) = LogDirectory(log.path).records(plain.head)
        plain, moved = plain.apply(record), moved.apply(record).merged()
        if data.draw(st.booleans()):
            limit = MemoryLimit(memory_bytes=moved.parameters.num_bytes, folder=log.path / "cache")
            moved = limit.apply(moved)
        assert plain.version == moved.version == log.number
        for view in (plain, moved):
            assert_equals_dictionary(view, log)
        np.testing.assert_array_equal(
            plain.predict(encode_instances(log.schema, INSTANCES)),
            moved.predict(encode_instances(log.schema, INSTANCES)),
        )
    assert list((log.path / "cache").glob("*")) == []
    log.write_base()
    again = open_newest(log)
    assert again.head == plain.head
    assert_equals_dictionary(again, log)


def test_many_keys_at_once_give_the_same_rows_as_few(log) -> None:
    log.append({(0, i): row(log, i) for i in range(0, 3000, 2)})
    log.write_base()
    log.append({(0, i): row(log, i + 1) for i in range(0, 3000, 3)}, [(0, i) for i in range(1, 3000, 5)])
    view = newest(log, open_newest(log))
    assert_equals_dictionary(view, log, [(0, i) for i in np.random.default_rng(0).integers(-10, 3010, 2000).tolist()])


def test_older_views_do_not_change(log) -> None:
    log.append({(0, 1): row(log, 1)}, dense={"linear.bias": np.ones(2, np.float32)})
    old = newest(log)
    before = old.predict(encode_instances(log.schema, INSTANCES))
    log.append({(0, 1): row(log, 2)}, dense={"linear.bias": np.zeros(2, np.float32)})
    new = newest(log, old)
    np.testing.assert_array_equal(old.predict(encode_instances(log.schema, INSTANCES)), before)
    assert (new.predict(encode_instances(log.schema, INSTANCES)) < before).all()


def test_an_unknown_id_predicts_with_its_initial_value(log) -> None:
    log.append({(0, 5): row(log, 1)}, [(0, 9)])
    view = newest(log)
    features_K, ids_K = np.array([0, 0, 1], np.uint16), np.array([5, 9, 5])
    rows = view.rows_for_model(features_K, ids_K)[0]
    first = initial_values(features_K, ids_K, dim=log.dim, seed=log.seed, scale=log.init_scale)
    np.testing.assert_array_equal(rows[0], log.rows[0, 5][0])
    np.testing.assert_array_equal(rows[1:], first[1:])


def test_a_row_before_the_expiry_cutoff_is_forgotten_until_it_is_written_again(log) -> None:
    log.append({(0, 1): row(log, 5), (1, 1): row(log, 5)})
    log.append({}, expiry_cutoffs={"0": 1006})
    view = newest(log)
    assert ask(view, [(0, 1), (1, 1)])[1].tolist() == [FORGOTTEN, KNOWN]
    assert view.row_info(0, 1)["status"] == "forgotten"
    log.append({(0, 1): row(log, 6)}, expiry_cutoffs={"0": 1006})
    assert ask(newest(log, view), [(0, 1), (1, 1)])[1].tolist() == [KNOWN, KNOWN]


def status_of(view: View, *keys: tuple[int, int]) -> list[int]:
    return ask(view, list(keys))[1].tolist()


def test_an_id_that_was_seen_too_seldom_is_not_admitted(log) -> None:
    log.admission = {"0": 3}
    log.append({(0, 1): row(log, 5)}, seen={(0, 2): 1, (1, 2): 1})
    view = newest(log)
    assert status_of(view, (0, 1), (0, 2), (0, 3), (1, 2)) == [KNOWN, NOT_ADMITTED, UNKNOWN, UNKNOWN]
    assert view.row_info(0, 2)["status"] == "not_admitted"
    log.append({(0, 2): row(log, 6)}, [(0, 1)], seen={(0, 1): 2, (0, 7): 2})
    after = newest(log, view)
    assert status_of(after, (0, 1), (0, 2), (0, 7)) == [FORGOTTEN, KNOWN, NOT_ADMITTED]
    assert status_of(view, (0, 7)) == [UNKNOWN]
    log.write_base()
    # the base has counts, and no tombstones
    assert status_of(open_newest(log), (0, 1), (0, 2), (0, 7), (0, 3)) == [NOT_ADMITTED, KNOWN, NOT_ADMITTED, UNKNOWN]


def test_counts_halve_with_age_and_end_with_another_sketch(log) -> None:
    log.admission = {"0": 3}
    log.append(seen={(0, 2): 2})
    view = newest(log)
    for age, status in ((1, NOT_ADMITTED), (2, UNKNOWN)):
        log.append(sketch_age=age)
        view = newest(log, view)
        assert status_of(view, (0, 2)) == [status]
    log.append(sketch_blocks=64)
    view = newest(log, view)
    assert (view.admission_counts.num_blocks, view.admission_counts.layers, view.admission_counts.base) == (
        64,
        (),
        None,
    )


def test_ids_that_are_not_admitted_predict_with_their_shared_row(log) -> None:
    log.admission = {"0": 3, "1": 3}
    log.append({(SHARED_ROW_OFFSET, 0): row(log, 5)}, seen={(0, 2): 1, (0, 4): 1, (1, 2): 1})
    view = newest(log)
    features_K, ids_K = np.array([0, 0, 0, 1], np.uint16), np.array([2, 3, 4, 2])
    rows, status = view.rows_for_model(features_K, ids_K)
    shared = log.rows[SHARED_ROW_OFFSET, 0][0]
    shape = {"dim": log.dim, "seed": log.seed, "scale": log.init_scale}
    np.testing.assert_array_equal(rows[:3], [shared] * 3)  # also the one that was never seen
    assert status.tolist() == [NOT_ADMITTED, UNKNOWN, NOT_ADMITTED, NOT_ADMITTED]
    # the shared row of feature 1 was never written: it has its initial value
    born = initial_values(np.array([1 + SHARED_ROW_OFFSET], np.uint16), np.array([0]), **shape)[0]
    np.testing.assert_array_equal(rows[3], born)


def test_an_id_that_its_next_use_would_admit_predicts_as_a_new_row(log) -> None:
    log.admission = {"0": 3}
    log.append({(SHARED_ROW_OFFSET, 0): row(log, 5), (0, 1): row(log, 6)}, seen={(0, 2): 2})
    log.append({}, [(0, 1)])
    view = newest(log)
    features_K, ids_K = np.array([0, 0], np.uint16), np.array([2, 1])
    rows, status = view.rows_for_model(features_K, ids_K)
    assert status.tolist() == [NOT_ADMITTED, FORGOTTEN]
    shape = {"dim": log.dim, "seed": log.seed, "scale": log.init_scale}
    np.testing.assert_array_equal(rows[0], initial_values(features_K[:1], ids_K[:1], **shape)[0])
    np.testing.assert_array_equal(rows[1], log.rows[SHARED_ROW_OFFSET, 0][0])


def test_counts_in_many_layers_equal_those_in_one(log) -> None:
    log.admission = {"0": 9}
    random = np.random.default_rng(1)
    plain = merged = open_newest(log)
    keys = [(0, i) for i in range(300)]
    for _ in range(20):
        log.append(seen={(0, int(i)): int(random.integers(1, 9)) for i in random.integers(0, 200, 10)})
        (record,) = LogDirectory(log.path).records(plain.head)
        plain, merged = plain.apply(record), merged.apply(record).merged()
    assert len(merged.admission_counts.layers) <= 4
    np.testing.assert_array_equal(ask(plain, keys)[1], ask(merged, keys)[1])
    key_hash = hash_keys(np.zeros(300, np.uint16), np.arange(300))
    np.testing.assert_array_equal(merged.admission_counts.estimates(key_hash, 0), estimates(log.sketch, key_hash, 0))
    log.write_base()
    np.testing.assert_array_equal(
        open_newest(log).admission_counts.estimates(key_hash, 0), estimates(log.sketch, key_hash, 0)
    )


def test_initial_values_of_a_bfloat16_table_are_rounded_to_bfloat16(log) -> None:
    features_K, ids_K = np.zeros(50, np.uint16), np.arange(50)
    log.dtype = "bfloat16"
    log.number += 1
    log.write_base()
    rows = torch.from_numpy(open_newest(log).rows_for_model(features_K, ids_K)[0])
    full = torch.from_numpy(initial_values(features_K, ids_K, dim=log.dim, seed=log.seed, scale=log.init_scale))
    assert torch.equal(rows, full.to(torch.bfloat16).float())
    assert not torch.equal(rows, full)


def test_a_record_that_is_not_a_child_is_a_gap(log) -> None:
    log.append({(0, 1): row(log, 1)})
    log.append({(0, 1): row(log, 2)})
    view = open_newest(log)
    first, second = LogDirectory(log.path).records(view.head)
    with pytest.raises(GapError, match="does not follow"):
        view.apply(second)
    with pytest.raises(GapError, match="does not follow"):
        view.apply(first).apply(first)


def test_a_record_of_another_schema_is_a_gap(log) -> None:
    log.append({(0, 1): row(log, 1)}, fingerprint="another")
    with pytest.raises(GapError, match="schema"):
        newest(log)


def test_layers_stay_few(log) -> None:
    for version in range(60):
        log.append({(0, 10 * version + i): row(log, i) for i in range(10)})
    view = open_newest(log)
    for record in LogDirectory(log.path).records(view.head):
        view = view.apply(record).merged()
        assert len(view.tables[""].layers) <= 4
    assert_equals_dictionary(view, log, list(log.rows))


def test_parameters_larger_than_the_cache_are_refused(log, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cache_bytes"):
        MemoryLimit(memory_bytes=10, folder=tmp_path).apply(newest(log))


def test_predictions_are_divided_by_the_share_that_comes_within_the_window(log) -> None:
    log.append({key: row(log, n) for n, key in enumerate(KEYS)})
    view = newest(log)
    within = view.predict(encode_instances(view.schema, INSTANCES))
    label = view.schema.labels[0]
    served = replace(view, meta=structs.replace(view.meta, label_shares={label: 0.6, "another": 0.1}))
    divided = served.predict(encode_instances(view.schema, INSTANCES))
    np.testing.assert_allclose(divided[:, 0], np.minimum(within[:, 0] / 0.6, 0.99), rtol=1e-6)
    np.testing.assert_array_equal(divided[:, 1:], within[:, 1:])
    few = replace(view, meta=structs.replace(view.meta, label_shares={label: 0.0}))
    assert np.isfinite(few.predict(encode_instances(view.schema, INSTANCES))).all()
    values = replace(Schema(labels=("dwell",), categorical=("a",)), links={"dwell": "identity"})
    np.testing.assert_allclose(
        divide_by_shares(values, np.array([[3.0], [-1.0]], np.float32), {"dwell": 0.5}), [[6.0], [-2.0]]
    )
