"""The compiled search answers like the numpy one, bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.cpu.serving.layer_search import FEW_KEYS, LayerSearchCache
from springtide_client.keys import GOLDEN, MASK, hash_keys
from springtide_client.rows.admission_counts import AdmissionCounts, SketchLayer
from springtide_client.rows.layers import record_layer
from springtide_client.rows.row_block import RowBlock
from springtide_client.rows.search import FORGOTTEN, KNOWN, NOT_ADMITTED, UNKNOWN, LayerStack, NumpySearch
from tests.support.layers import sorted_layer

DIM = 3
FEATURES = (0, 1, 2, 40_000)
# ids of feature 1 whose key hashes equal those of ids of feature 0
TWINS = [int(np.uint64((i ^ GOLDEN) & MASK).astype(np.int64)) for i in (0, 1, 7)]
IDS = [-(2**63), -5, 0, 1, 2, 7, 10**12, 2**63 - 1, *TWINS]

keys = st.tuples(st.sampled_from(FEATURES), st.sampled_from(IDS))
changes = st.tuples(st.dictionaries(keys, st.integers(0, 20), max_size=12), st.lists(keys, max_size=4, unique=True))
by_feature = st.dictionaries(st.sampled_from(["0", "1", "2", "9"]), st.integers(0, 25), max_size=3)


def row_layer(rows: dict[tuple[int, int], int], marks: list[tuple[int, int]] = []) -> RowBlock:  # noqa: B006
    tensors = {}
    if rows:
        seeds = np.array(list(rows.values()))
        tensors |= {
            "rows.feature": np.array([feature for feature, _ in rows], np.uint16),
            "rows.id": np.array([row_id for _, row_id in rows], np.int64),
            "rows.value": np.stack([seeds, -seeds, seeds / 3], 1).astype(np.float32),
            "rows.count": seeds.astype(np.int64),
            "rows.last_seen": seeds.astype(np.int64),
        }
    if marks:
        tensors |= {
            "forgotten.feature": np.array([feature for feature, _ in marks], np.uint16),
            "forgotten.id": np.array([row_id for _, row_id in marks], np.int64),
        }
    return record_layer(tensors, DIM)


def stack_of(layers, horizons=None, admission=None, seen=None, age=0) -> LayerStack:
    return LayerStack(
        tuple(x for x in layers if len(x)), DIM, horizons or {}, admission or {}, seen or AdmissionCounts(), age
    )


def assert_equal_answers(stack: LayerStack, features, ids, search=None) -> np.ndarray:
    rows, status = (search or LayerSearchCache()(stack))(features, ids)
    expected_rows, expected_status = NumpySearch(stack)(features, ids)
    np.testing.assert_array_equal(status, expected_status)
    np.testing.assert_array_equal(rows.view(np.uint32), expected_rows.view(np.uint32))
    return status


@settings(max_examples=300, deadline=None)
@given(st.lists(changes, max_size=5), st.lists(keys, max_size=40), by_feature, by_feature, st.data())
def test_the_compiled_search_answers_like_numpy(versions, asked, horizons, admission, data) -> None:
    num_blocks = data.draw(st.integers(1, 4))
    counts = st.lists(st.integers(0, 3), min_size=64, max_size=64)

    def blocks(number: int) -> np.ndarray:
        found = np.array([data.draw(counts) for _ in range(number)], np.uint8).reshape(number, 64)
        found[:, 1:4] = 0  # ages are small
        return found

    numbers = np.array(sorted(data.draw(st.sets(st.integers(0, num_blocks - 1)))), np.int64)
    layers = (SketchLayer(numbers, blocks(len(numbers))),) if len(numbers) else ()
    seen = AdmissionCounts(num_blocks, blocks(num_blocks) if data.draw(st.booleans()) else None, layers)
    stack = stack_of(
        [row_layer(*change) for change in versions], horizons, admission, seen, data.draw(st.integers(0, 9))
    )
    features = np.array([feature for feature, _ in asked], np.uint16)
    ids = np.array([row_id for _, row_id in asked], np.int64)
    assert_equal_answers(stack, features, ids)
    assert_equal_answers(stack, np.array([1], np.uint16), ids)


def test_a_mark_a_horizon_and_the_sketch_say_why_there_is_no_row() -> None:
    sketch = np.full((1, 64), 1, np.uint8)
    sketch[:, :4] = 0
    layers = [row_layer({(0, 1): 5}, [(0, 2)]), row_layer({(0, 2): 9, (1, 3): 9, (1, 4): 10})]
    stack = stack_of(layers, {"1": 10}, {"0": 2}, AdmissionCounts(1, sketch))
    features, ids = np.array([0, 0, 0, 1, 1, 1], np.uint16), np.array([1, 2, 3, 3, 4, 5])
    expected = [KNOWN, FORGOTTEN, NOT_ADMITTED, FORGOTTEN, KNOWN, UNKNOWN]
    assert assert_equal_answers(stack, features, ids).tolist() == expected


@pytest.mark.parametrize("num_asked", [0, 1, FEW_KEYS, FEW_KEYS + 1])
def test_many_keys_in_many_layers(num_asked) -> None:
    random = np.random.default_rng(num_asked)
    layers = []
    for size in (3, 40, 700, 9_000):
        ids = random.choice(20_000, size, replace=False)
        values = random.normal(size=(size, DIM)).astype(np.float32)
        ones = np.ones(size, np.int64)
        layers.append(sorted_layer(random.integers(0, 2, size).astype(np.uint16), ids, values, ones, ones))
    stack = stack_of(layers)
    searches = LayerSearchCache()
    for search in (searches(stack), searches(stack)):  # the second knows the layers
        asked = random.integers(-5, 20_000, num_asked)
        assert_equal_answers(stack, random.integers(0, 3, num_asked).astype(np.uint16), asked, search)


@pytest.mark.parametrize("spread", [1, 2**20, 2**50])
def test_keys_chosen_to_lie_unevenly_are_found(spread) -> None:
    # inverting the mixing gives ids whose key hashes lie close together: interpolation misses, results must not
    ids = unmixed(2**60 + np.arange(5_000, dtype=np.uint64) * np.uint64(spread)).view(np.int64)
    values = np.arange(15_000, dtype=np.float32).reshape(-1, DIM)
    ones, feature = np.ones(5_000, np.int64), np.zeros(5_000, np.uint16)
    layers = [
        sorted_layer(feature[:size], ids[::step], values[:size], ones[:size], ones[:size])
        for step, size in ((7, 715), (1, 5_000))
    ]
    assert assert_equal_answers(stack_of(layers), feature, ids).tolist() == [KNOWN] * 5_000


def test_a_version_without_rows_knows_nothing() -> None:
    assert assert_equal_answers(stack_of([]), np.zeros(1, np.uint16), np.array([1, 2])).tolist() == [UNKNOWN] * 2


def test_one_feature_or_one_a_key() -> None:
    with pytest.raises(ValueError, match="2 features for 3 ids"):
        LayerSearchCache()(stack_of([]))(np.zeros(2, np.uint16), np.zeros(3, np.int64))


def unmixed(key_hash: np.ndarray) -> np.ndarray:
    """The ids of feature 0 with these key hashes."""
    x = key_hash.copy()
    for multiplier, shift in ((0x94D0_49BB_1331_11EB, 31), (0xBF58_476D_1CE4_E5B9, 27), (1, 30)):
        x ^= (x >> np.uint64(shift)) ^ (x >> np.uint64(2 * shift))
        x *= np.uint64(pow(multiplier, -1, 2**64))
    np.testing.assert_array_equal(hash_keys(np.zeros(len(x), np.uint16), x.view(np.int64)), key_hash)
    return x
