"""One layer equals a dictionary, several equal dictionaries updated in order."""

# K keys
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide_client.keys import GOLDEN, MASK
from springtide_client.rows import layers
from springtide_client.rows.layers import flatten_layers, merge_layers, push_layer, record_layer
from springtide_client.rows.row_block import COLUMNS, RowBlock

# id 0 of feature 0 and TWIN of feature 1 have one key hash
TWIN = int(np.uint64(GOLDEN).astype(np.int64))
KEYS = [(0, 0), (1, TWIN), (1, 0), (0, TWIN), (0, 1), (2, 1), (0, -5), (3, 2**62), (1, 7), (0, 7)]
DIM = 2

Rows = dict[tuple[int, int], float | None]  # None: forgotten


def tensors_of(rows: Rows) -> dict[str, np.ndarray]:
    alive = [(key, value) for key, value in rows.items() if value is not None]
    erased = [key for key, value in rows.items() if value is None]
    return {
        "rows.feature": np.array([key[0] for key, _ in alive], np.uint16),
        "rows.id": np.array([key[1] for key, _ in alive], np.int64),
        "rows.value": np.array([[value] * DIM for _, value in alive], np.float32).reshape(-1, DIM),
        "rows.state": np.array([[value] for _, value in alive], np.float32).reshape(-1, 1),
        "rows.count": np.array([value for _, value in alive], np.int64),
        "rows.last_seen": np.array([value for _, value in alive], np.int64),
        "forgotten.feature": np.array([key[0] for key in erased], np.uint16),
        "forgotten.id": np.array([key[1] for key in erased], np.int64),
    }


def answers(layer: RowBlock) -> Rows:
    features = np.array([key[0] for key in KEYS], np.uint16)
    ids = np.array([key[1] for key in KEYS], np.int64)
    out: Rows = {}
    for key, row in zip(KEYS, layer.find(features, ids), strict=True):
        if row >= 0:
            assert (layer.feature[row], layer.id[row]) == key
            gone = layer.tombstone is not None and layer.tombstone[row]
            out[key] = None if gone else float(layer.value[row, 0])
    return out


rows_of_a_record = st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(1, 99).map(float)))


def test_keys_of_two_features_can_share_a_key_hash() -> None:
    layer = record_layer(tensors_of({(0, 0): 1.0, (1, TWIN): 2.0}), DIM)
    assert layer.key_hash[0] == layer.key_hash[1]
    assert (GOLDEN ^ TWIN) & MASK == 0


@given(rows_of_a_record)
def test_a_layer_answers_like_a_dictionary(rows: Rows) -> None:
    layer = record_layer(tensors_of(rows), DIM)
    assert answers(layer) == rows
    assert bool((layer.key_hash[1:] >= layer.key_hash[:-1]).all())


@settings(max_examples=300)
@given(st.lists(rows_of_a_record, max_size=6))
def test_layers_pushed_one_by_one_answer_like_updates(history: list[Rows]) -> None:
    stack, expected = (), {}
    for rows in history:
        stack = push_layer(stack, record_layer(tensors_of(rows), DIM, state_width=1))
        expected |= rows
    for older, newer in itertools.pairwise(stack):
        assert len(newer) * 2 <= len(older)
    flat = flatten_layers(stack, DIM, 1)
    assert answers(flat) == expected
    assert len(flat) == len(expected)
    np.testing.assert_array_equal(flat.state[:, 0], flat.value[:, 0])


def test_a_row_overrides_the_tombstone_of_the_same_record() -> None:
    tensors = tensors_of({(0, 1): 4.0})
    tensors |= {"forgotten.feature": np.array([0], np.uint16), "forgotten.id": np.array([1])}
    assert answers(record_layer(tensors, DIM)) == {(0, 1): 4.0}


def test_a_record_without_rows_is_an_empty_layer() -> None:
    assert len(record_layer({}, DIM)) == 0
    assert answers(RowBlock.zeros(0, DIM)) == {}


def test_merging_with_an_empty_layer_copies_nothing() -> None:
    layer = record_layer(tensors_of({(0, 1): 1.0}), DIM)
    assert merge_layers(layer, RowBlock.zeros(0, DIM)) is layer
    assert merge_layers(RowBlock.zeros(0, DIM), layer) is layer


@given(st.lists(rows_of_a_record, min_size=1, max_size=6))
def test_layers_merged_at_once_answer_like_updates(history: list[Rows]) -> None:
    expected: Rows = {}
    for rows in history:
        expected |= rows
    merged = merge_layers(*(record_layer(tensors_of(rows), DIM, state_width=1) for rows in history))
    assert answers(merged) == expected
    assert len(merged) == len(expected)


@pytest.mark.parametrize("state_width", [0, 1])
@pytest.mark.parametrize("sizes", [(5_000, 4_000), (9_000, 30, 2_500, 700), (1_200, 6_000, 6_000)])
def test_large_layers_are_merged_in_pieces_as_small_ones_at_once(monkeypatch, sizes, state_width) -> None:
    random = np.random.default_rng(7)
    history = []
    for size in sizes:  # every third id is forgotten; both keys with the same key hash are in every layer
        ids = np.unique(random.integers(-4_000, 4_000, size) * (1 << 30))
        found: Rows = {(int(id) % 3, int(id)): float(random.integers(1, 99)) for id in ids}
        found |= dict.fromkeys(list(found)[::3], None)
        history.append(record_layer(tensors_of(found | {(0, 0): 5.0, (1, TWIN): 6.0}), DIM, state_width))
    monkeypatch.setattr(layers, "MIN_PIECE_ROWS", 1 << 40)
    at_once = merge_layers(*history)
    monkeypatch.setattr(layers, "MIN_PIECE_ROWS", 64)
    monkeypatch.setattr(layers, "PIECE_BYTES", 1)
    in_pieces = merge_layers(*history)
    assert len(in_pieces) > 2 * 64
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(in_pieces, name), getattr(at_once, name))


def test_ordered_rows_are_copied_only_if_they_are_a_small_part_of_the_record() -> None:
    tensors = tensors_of({(0, 1): 1.0, (0, 7): 2.0, (2, 1): 3.0})
    ordered = record_layer(tensors, DIM)
    tensors |= {
        "rows.feature": ordered.feature,
        "rows.id": ordered.id,
        "rows.value": ordered.value,
        "rows.count": ordered.count,
        "rows.last_seen": ordered.last_seen,
    }
    assert record_layer(tensors, DIM).value is ordered.value
    tensors["dense.weight"] = np.zeros(1000, np.float32)
    few = record_layer(tensors, DIM)
    assert not np.shares_memory(few.value, ordered.value)
    np.testing.assert_array_equal(few.value, ordered.value)
