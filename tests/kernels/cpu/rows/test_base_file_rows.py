"""A sorted image: what is found in it, against a dictionary."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from springtide.kernels.cpu.rows import base_file_rows

EDGES = [0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
WORDS = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1), st.integers(2**40, 2**40 + 30))
KEYS = st.tuples(WORDS, st.integers(0, 3))


@given(st.lists(KEYS, unique=True, max_size=200), st.lists(KEYS, max_size=100))
def test_a_row_is_found_where_it_stands_and_nowhere_else(there: list[tuple[int, int]], others: list[tuple[int, int]]):
    there.sort()
    asked = [*there[::2], *others]
    key_hash_n, feature_n = np.array([k for k, _ in there], np.uint64), np.array([f for _, f in there], np.uint16)
    key_hash_K, features_K = np.array([k for k, _ in asked], np.uint64), np.array([f for _, f in asked], np.uint16)
    places = {key: row for row, key in enumerate(there)}
    rows_K = base_file_rows.find_rows(key_hash_n, feature_n, key_hash_K, features_K)
    assert rows_K.tolist() == [places.get(key, -1) for key in asked]

    num, dim = len(there), 5
    value_nD = np.arange(num * dim, dtype=np.float32).reshape(num, dim)
    state_nS, count_n, last_seen_n = value_nD[:, :2].copy(), np.arange(num) * 3, np.arange(num) * 7
    values_KD, states_KS = np.full((len(asked), dim), -1, np.float32), np.full((len(asked), 2), -1, np.float32)
    counts_K, last_seen_K = np.full(len(asked), -1), np.full(len(asked), -1)
    base_file_rows.copy_rows(
        value_nD, state_nS, count_n, last_seen_n, rows_K, values_KD, states_KS, counts_K, last_seen_K
    )
    for k, row in enumerate(rows_K):
        if row >= 0:
            np.testing.assert_array_equal(values_KD[k], value_nD[row])
            np.testing.assert_array_equal(states_KS[k], state_nS[row])
            assert (counts_K[k], last_seen_K[k]) == (row * 3, row * 7)
        else:
            assert set(values_KD[k]) | set(states_KS[k]) | {counts_K[k], last_seen_K[k]} == {-1}
