"""The verbs against the oracle."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import compile as compiling
from kernels.backend import backend
from kernels.spec import NO_SLOT, TOUCHED, WIDTH
from tests.kernels.oracle import Key, Row, unique

VERBS = backend()
# few features and ids, among them ids whose halves are alike
SMALL_KEYS = st.tuples(st.integers(0, 2), st.integers(-3, 40) | st.sampled_from([2**63 - 1, -(2**63), 1 << 32]))


def arrays(keys: list[Key]) -> tuple[Any, Any]:
    return np.array([f for f, _ in keys], np.uint16), np.array([i for _, i in keys], np.int64)


def placed(store: Any, keys: list[Key], tick: int, protect_from: int) -> Any:
    features, ids = arrays(keys)
    return VERBS.find_or_insert(store, features, ids, VERBS.mix_keys(features, ids), tick, protect_from)


@settings(deadline=None)
@given(st.lists(st.tuples(SMALL_KEYS, st.integers(-5, 5)), max_size=60))
def test_unique_equals_the_oracle(batch: list[tuple[Key, int]]) -> None:
    keys, times = [key for key, _ in batch], [time for _, time in batch]
    ours = VERBS.unique(*arrays(keys), np.array(times, np.int64))
    expected, inverse, occurrences, newest = unique(keys, times)
    assert list(zip(ours.features_U.tolist(), ours.ids_U.tolist(), strict=True)) == expected
    assert ours.inverse_K.tolist() == inverse
    assert ours.occurrences_U.tolist() == occurrences
    assert ours.last_seen_U.tolist() == newest
    assert ours.mixed_U.tolist() == VERBS.mix_keys(ours.features_U, ours.ids_U).tolist()
    order, offsets = VERBS.group(ours.inverse_K, ours.occurrences_U)
    for u in range(len(expected)):
        assert order[offsets[u] : offsets[u + 1]].tolist() == [k for k, v in enumerate(inverse) if v == u]


@settings(deadline=None)
@given(
    st.lists(SMALL_KEYS, min_size=1, max_size=60),
    st.sampled_from([1, 7, 8, 16, 29]),
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.05, 3.0]),
)
def test_update_equals_the_oracle_however_it_is_split(
    keys: list[Key], dim: int, seed: int, parts: int, lr: float
) -> None:
    rng = np.random.default_rng(seed)
    times = rng.integers(0, 100, len(keys))
    batch = VERBS.unique(*arrays(keys), times)
    store = VERBS.allocate(WIDTH * 4, 64, dim, 1)
    slots = VERBS.find_or_insert(store, batch.features_U, batch.ids_U, batch.mixed_U, 1, 1).slots_U
    VERBS.create(store, slots, batch.features_U, batch.ids_U, 9, 0.1)
    names = list(zip(batch.features_U.tolist(), batch.ids_U.tolist(), strict=True))
    rows = [Row(key, dim=dim, seed=9, scale=0.1) for key in names]
    order, offsets = VERBS.group(batch.inverse_K, batch.occurrences_U)
    for step in range(3):
        grads = rng.standard_normal((len(keys), dim)).astype(np.float32)
        if step == 1:
            grads[rng.integers(len(keys)), rng.integers(dim)] = rng.choice([np.nan, np.inf, 3e38])
        bounds = [len(names) * part // parts for part in range(parts + 1)]
        fresh, refused = [], 0
        for start, stop in itertools.pairwise(bounds):
            new, bad = VERBS.update(store, slots, order, offsets, grads, batch.last_seen_U, lr, 1e-8, start, stop)
            fresh += new.tolist()
            refused += bad
        for u, row in enumerate(rows):
            row.update([grads[k] for k in np.flatnonzero(batch.inverse_K == u)], int(batch.last_seen_U[u]), lr, 1e-8)
        assert fresh == (slots.tolist() if step == 0 else [])
        assert refused == (1 if step == 1 else 0)
    columns = VERBS.read(store, slots)
    for u, row in enumerate(rows):
        np.testing.assert_array_equal(columns.values_ND[u], row.value)
        assert columns.states_NS[u, 0] == row.state
        assert columns.counts_N[u] == row.count
        assert columns.last_seen_N[u] == row.last_seen
    touched = VERBS.clear_touched(store, np.concatenate([slots, slots]))
    assert sorted(touched.tolist()) == sorted(slots.tolist())
    assert not (VERBS.read(store, slots).flags_N & TOUCHED).any()


@pytest.mark.parametrize("dim", [1, 3, 16, 64, 100])
def test_what_is_scattered_is_gathered(dim: int) -> None:
    store = VERBS.allocate(64, 16, dim, 1)
    keys = [(1, i * 7) for i in range(30)]
    slots = placed(store, keys, 1, 1).slots_U
    rng = np.random.default_rng(0)
    columns = VERBS.read(store, slots)._replace(
        values_ND=rng.standard_normal((30, dim)).astype(np.float32), counts_N=np.arange(30), flags_N=np.full(30, 2)
    )
    VERBS.scatter(store, slots, columns)
    inverse = rng.integers(0, 30, 100)
    np.testing.assert_array_equal(VERBS.gather(store, slots, inverse), columns.values_ND[inverse])
    assert np.isnan(VERBS.gather(store, np.array([NO_SLOT]), np.array([0]))).all()
    np.testing.assert_array_equal(VERBS.read(store, slots).counts_N, np.arange(30))


def test_wrong_shapes_are_refused_before_a_kernel_sees_them() -> None:
    store = VERBS.allocate(64, 16, 4, 1)
    slots = placed(store, [(0, 1)], 1, 1).slots_U
    with pytest.raises(ValueError, match="multiple of 16"):
        VERBS.allocate(17, 1, 4, 1)
    with pytest.raises(ValueError, match="state_width"):
        VERBS.allocate(16, 1, 4, 9)
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="gradients"):
        VERBS.update(store, slots, one, np.array([0, 1]), np.zeros((1, 5), np.float32), one, 0.1, 1e-8, 0, 1)
    with pytest.raises(ValueError, match="values"):
        VERBS.scatter(store, slots, VERBS.read(store, slots)._replace(values_ND=np.zeros((2, 4), np.float32)))


def test_compiling_runs_every_verb() -> None:
    compiling.main()
