"""Keys in order, means of lists, padded sequences: compared with loops over plain lists."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide_client.features import Features, Ragged
from springtide_client.model.inputs import assemble, lookup_keys
from springtide_client.schema import Schema

SCHEMA = Schema(
    labels=("click",),
    categorical=("user", "item"),
    multi_value=("genres", "tags"),
    sequence=("last", "seen"),
    dense=("age",),
    share={"last": "item", "tags": "genres"},
)
ids = st.integers(-(2**63), 2**63 - 1)
samples = st.tuples(ids, ids, *[st.lists(ids, max_size=4)] * 4, st.floats(width=32, allow_nan=True))


def ragged(lists: list[list[int]]) -> Ragged:
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return Ragged(np.array([i for one in lists for i in one], np.int64), offsets)


def features_of(drawn: list[tuple]) -> Features:
    return Features(
        categorical_NC=np.array([[u, i] for u, i, *_ in drawn], np.int64).reshape(len(drawn), 2),
        lists=tuple(ragged([sample[2 + place] for sample in drawn]) for place in range(4)),
        dense_NF=np.array([[sample[6]] for sample in drawn], np.float32).reshape(len(drawn), 1),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(samples, max_size=6))
def test_inputs_equal_those_of_a_loop_over_samples(drawn: list[tuple]) -> None:
    features = features_of(drawn)
    features_K, ids_K = lookup_keys(SCHEMA, features)
    expected = [(number, key) for sample in drawn for number, key in enumerate(sample[:2])]
    for place, number in enumerate([2, 2, 1, 5]):
        expected += [(number, key) for sample in drawn for key in sample[2 + place]]
    assert list(zip(features_K.tolist(), ids_K.tolist(), strict=True)) == expected

    rows_KD = np.random.default_rng(0).normal(size=(len(ids_K), 3)).astype(np.float32)
    inputs = assemble(SCHEMA, features, rows_KD)
    rows = iter(rows_KD)
    categorical = [[next(rows) for _ in range(2)] for _ in drawn]
    longest = max([1, *(len(sample[place]) for sample in drawn for place in (4, 5))])
    np.testing.assert_array_equal(inputs.categorical, np.reshape(categorical, (len(drawn), 2, 3)))
    for p in range(2):
        for n, sample in enumerate(drawn):
            own = [next(rows) for _ in sample[2 + p]]
            np.testing.assert_allclose(inputs.pooled[n, p], np.mean(own, 0) if own else np.zeros(3), atol=1e-6)
    assert inputs.sequence.shape == (len(drawn), 2, longest, 3)
    for s in range(2):
        for n, sample in enumerate(drawn):
            own = [next(rows) for _ in sample[4 + s]]
            assert inputs.sequence_length[n, s] == len(own)
            padded = np.zeros((longest, 3), np.float32)
            padded[: len(own)] = np.reshape(own, (len(own), 3))
            np.testing.assert_array_equal(inputs.sequence[n, s], padded)
    np.testing.assert_array_equal(inputs.dense, features.dense_NF)


@settings(max_examples=30, deadline=None)
@given(st.lists(samples, max_size=6), st.sampled_from(["sum", "max"]))
def test_lists_may_be_pooled_by_sum_or_max(drawn: list[tuple], pooling: str) -> None:
    schema = replace(SCHEMA, pooling={"tags": pooling})
    features = features_of(drawn)
    features_K, _ = lookup_keys(schema, features)
    rows_KD = np.random.default_rng(0).normal(size=(len(features_K), 3)).astype(np.float32)
    pooled = assemble(schema, features, rows_KD).pooled
    start = 2 * len(drawn) + sum(len(sample[2]) for sample in drawn)
    for n, sample in enumerate(drawn):
        own = rows_KD[start : start + len(sample[3])]
        start += len(own)
        expected = (own.sum(0) if pooling == "sum" else own.max(0)) if len(own) else np.zeros(3)
        np.testing.assert_allclose(pooled[n, 1], expected, atol=1e-6)
    np.testing.assert_array_equal(pooled[:, 0], assemble(SCHEMA, features, rows_KD).pooled[:, 0])


def test_absent_kinds_have_an_axis_of_size_0() -> None:
    schema = Schema(labels=("click",), dense=("age",))
    features = Features(np.zeros((2, 0), np.int64), (), np.ones((2, 1), np.float32))
    features_K, ids_K = lookup_keys(schema, features)
    assert features_K.shape == ids_K.shape == (0,)
    inputs = assemble(schema, features, np.zeros((0, 8), np.float32))
    shapes = [part.shape for part in inputs]
    assert shapes == [(2, 0, 8), (2, 0, 8), (2, 0, 1, 8), (2, 0), (2, 1)]
