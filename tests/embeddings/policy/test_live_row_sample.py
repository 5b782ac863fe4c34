"""The sample of live rows, compared with a dictionary of all of them."""

import numpy as np

from springtide.embeddings.policy.live_row_sample import LiveRowSample
from springtide_client.keys import SHARED_ROW_OFFSET, hash_keys

Truth = dict[tuple[int, int], int]


def add(sample: LiveRowSample, truth: Truth, rows: Truth) -> None:
    features = np.array([feature for feature, _ in rows], np.uint16)
    sample.add(features, np.array([id_ for _, id_ in rows], np.int64), np.array(list(rows.values()), np.int64))
    truth |= rows


def live(truth: Truth, cutoffs: dict[int, int]) -> list[int]:
    return sorted(seen for (feature, _), seen in truth.items() if seen >= cutoffs.get(feature, 0))


def test_while_it_is_not_full_it_is_exact() -> None:
    generator, sample, cutoffs = np.random.default_rng(1), LiveRowSample(), {0: 0, 1: 0}
    truth: Truth = {}
    for version in range(40):
        keys = generator.integers(0, [[2, 3000]], (300, 2))
        add(sample, truth, {(int(f), int(i)): 100 * version + int(i) % 100 for f, i in keys})
        gone = generator.integers(0, [[2, 3000]], (20, 2))
        sample.forget(gone[:, 0].astype(np.uint16), gone[:, 1].copy())
        for f, i in gone.tolist():
            truth.pop((f, i), None)
        cutoffs[version % 2] = max(cutoffs[version % 2], 100 * version - 1500)
        assert sample.num_live(cutoffs) == len(live(truth, cutoffs))
        truth = {key: seen for key, seen in truth.items() if seen >= cutoffs[key[0]]}
    coldest = sample.coldest(500)
    assert coldest == live(truth, {})[499] + 1
    assert sample.features() == [0, 1]


def test_many_rows_are_estimated_from_a_base_as_from_versions() -> None:
    ids = np.arange(200_000)
    features, key_hash = np.zeros(len(ids), np.uint16), hash_keys(np.zeros(len(ids), np.uint16), ids)
    order = np.argsort(key_hash)
    from_base, from_versions = LiveRowSample(2000), LiveRowSample(2000)
    from_base.read_base(key_hash[order], features, ids[order])
    for start in range(0, len(ids), 5000):
        part = slice(start, start + 5000)
        from_versions.add(features[part], ids[part], ids[part])
    for sample in (from_base, from_versions):
        assert abs(sample.num_live({}) - 200_000) < 20_000
        assert abs(sample.coldest(50_000) - 50_000) < 8000
        assert abs(sample.num_live({0: 150_000}) - 50_000) < 8000


def test_rows_that_ids_share_do_not_count() -> None:
    sample = LiveRowSample()
    sample.add(np.array([3, SHARED_ROW_OFFSET + 3], np.uint16), np.array([7, 0]), np.array([5, 5]))
    assert sample.num_live({}) == 1
    assert sample.features() == [3]
