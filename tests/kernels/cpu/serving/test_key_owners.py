"""Compiled owners of keys are those of the client."""

import numpy as np
import pytest

from springtide.kernels.cpu.serving.key_owners import first_foreign, split_keys
from springtide_client.keys import hash_keys
from springtide_client.rows.hash_range import owners_of, split_by_owner

IDS = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 500)


@pytest.mark.parametrize("count", [1, 2, 7, 65_535])
@pytest.mark.parametrize("features", [np.array([3], np.uint16), np.arange(500, dtype=np.uint16) % 5])
def test_keys_are_split_as_in_numpy(count, features) -> None:
    expected, found = split_by_owner(features, IDS, count), split_keys(features, IDS, count)
    assert expected.keys() == found.keys()
    for number, places in expected.items():
        assert places.tolist() == found[number].tolist()
    assert split_keys(features[:1], IDS[:0], count) == split_by_owner(features[:1], IDS[:0], count) == {}


def test_the_first_key_of_another_range_is_found() -> None:
    owners = owners_of(hash_keys(np.array([3], np.uint16), IDS), 2)
    own = IDS[owners == 1]
    assert first_foreign(3, own, 1, 2) == -1
    assert first_foreign(3, own[:0], 1, 2) == -1
    key_hash = own.copy()
    key_hash[[7, 9]] = IDS[owners == 0][:2]
    key_hash.flags.writeable = False
    assert first_foreign(3, key_hash, 1, 2) == 7
