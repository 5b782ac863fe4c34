"""The ops against the oracle."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.kernels.compile import compile_ops
from tests.kernels.oracle import Key, unique
from tests.kernels.small_batch import OPS, arrays

# few features and ids, among them ids whose halves are alike
SMALL_KEYS = st.tuples(st.integers(0, 2), st.integers(-3, 40) | st.sampled_from([2**63 - 1, -(2**63), 1 << 32]))


@settings(deadline=None)
@given(st.lists(st.tuples(SMALL_KEYS, st.integers(-5, 5)), max_size=60))
def test_unique_equals_the_oracle(batch: list[tuple[Key, int]]) -> None:
    keys, times = [key for key, _ in batch], [time for _, time in batch]
    ours = OPS.unique(*arrays(keys), np.array(times, np.int64))
    expected, inverse, occurrences, newest = unique(keys, times)
    assert list(zip(ours.features_U.tolist(), ours.ids_U.tolist(), strict=True)) == expected
    assert ours.inverse_K.tolist() == inverse
    assert ours.occurrences_U.tolist() == occurrences
    assert ours.last_seen_U.tolist() == newest
    assert ours.key_hash_U.tolist() == OPS.hash_keys(ours.features_U, ours.ids_U).tolist()
    order, offsets = OPS.group(ours.inverse_K, ours.occurrences_U)
    for u in range(len(expected)):
        assert order[offsets[u] : offsets[u + 1]].tolist() == [k for k, v in enumerate(inverse) if v == u]


def test_compiling_runs_every_verb() -> None:
    compile_ops((8,))
