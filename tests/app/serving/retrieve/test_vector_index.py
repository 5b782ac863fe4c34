import numpy as np
import pytest

from springtide.app.serving.retrieve.vector_index import ExactIndex, InvertedFile


def unit_vectors(num: int, dim: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(num, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def built(vectors_IO: np.ndarray) -> InvertedFile:
    index = InvertedFile.build(vectors_IO)
    assert index is not None
    return index


@pytest.mark.parametrize(("num", "dim"), [(1, 1), (5, 3), (1_000, 8), (3_000, 30)])
def test_asked_for_everything_it_equals_exact_search(num, dim):
    vectors_IO, queries_QO = unit_vectors(num, dim), unit_vectors(6, dim, 1)
    index = built(vectors_IO).scanning(num)
    for query_O in queries_QO:
        for wanted in {1, min(10, num), num}:
            found = index.nearest(query_O, wanted)
            assert sorted(found.tolist()) == sorted(ExactIndex(vectors_IO).nearest(query_O, wanted).tolist())
    assert sorted(index.nearest(queries_QO[0], num + 5).tolist()) == list(range(num))
    one_by_one = np.array([np.sort(index.nearest(query_O, 1)) for query_O in queries_QO])
    np.testing.assert_array_equal(index.nearest_of_each(queries_QO, 1), one_by_one)


def test_only_vectors_that_pass_are_found():
    vectors_IO, query_O = unit_vectors(2_000, 8), unit_vectors(1, 8, 1)[0]
    passes_I = np.arange(2_000) % 3 == 0
    index = built(vectors_IO)
    assert len(index.nearest(query_O, 50, passes_I)) == 50
    assert passes_I[index.nearest(query_O, 50, passes_I)].all()
    found = index.scanning(2_000).nearest(query_O, 20, passes_I)
    expected = np.flatnonzero(passes_I)[ExactIndex(vectors_IO[passes_I]).nearest(query_O, 20)]
    assert sorted(found.tolist()) == sorted(expected.tolist())
    few_I = np.isin(np.arange(2_000), [7, 1_999])
    assert sorted(index.nearest(query_O, 10, few_I).tolist()) == [7, 1_999]


def test_equal_vectors_are_all_found():
    vectors_IO = np.repeat(unit_vectors(2, 4), 300, axis=0)
    found = built(vectors_IO).scanning(600).nearest(vectors_IO[0], 300)
    assert sorted(found.tolist()) == list(range(300))


def test_tuned_to_queries_it_reads_as_much_as_it_needs():
    vectors_IO, queries_QO = unit_vectors(20_000, 16), unit_vectors(20, 16, 1)
    index = built(vectors_IO)
    tuned = index.tuned(queries_QO, 64)
    assert tuned is not None
    assert index.tuned(queries_QO, 64, between=lambda: False) is None
    assert index.num_to_scan < tuned.num_to_scan <= 20_000  # nothing is near anything else: the hardest case
    for query_O in queries_QO[:3]:
        exact = ExactIndex(vectors_IO).nearest(query_O, 10)
        assert len(set(exact.tolist()) & set(tuned.nearest(query_O, 64).tolist())) >= 9


def test_equal_calls_build_equal_files_and_a_build_ends_when_told_to():
    vectors_IO = unit_vectors(500, 8)
    first, second = built(vectors_IO), built(vectors_IO)
    np.testing.assert_array_equal(first.codes_BOV, second.codes_BOV)
    np.testing.assert_array_equal(first.places_BV, second.places_BV)
    assert InvertedFile.build(vectors_IO, between=lambda: False) is None
