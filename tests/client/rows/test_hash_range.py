"""Ranges of keys: together all keys, none twice, and each one slice of what is sorted."""

import numpy as np
import pytest

from springtide.embeddings.sharding import route
from springtide_client.rows.hash_range import ALL_KEYS, NO_KEYS, HashRange, owners_of

MIXED = np.sort(np.random.default_rng(1).integers(0, 2**64, 500, np.uint64))
# a key is at the very beginning of a range, or at its very end
EDGES = np.sort(
    np.array(
        [HashRange(n, count).start for count in (1, 2, 3, 7) for n in range(1, count + 1)]
        + [HashRange(n, count).end - 1 for count in (1, 2, 3, 7) for n in range(1, count + 1)],
        np.uint64,
    )
)


@pytest.mark.parametrize("key_hash", [MIXED, EDGES, MIXED[:0]])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 65_535])
def test_every_key_has_one_owner_the_same_as_among_ranks(key_hash, count) -> None:
    owners = owners_of(key_hash, count)
    np.testing.assert_array_equal(owners, route.owners_of(key_hash, count))
    for number in sorted({1, count, *(owners + 1).tolist()}):
        part = HashRange(number, count)
        held = np.flatnonzero(part.holds(key_hash))
        assert np.arange(len(key_hash))[part.slice_of(key_hash)].tolist() == held.tolist()
        assert all(part.start <= key < part.end for key in key_hash[held].tolist())
        assert (owners[held] + 1 == number).all()


def test_a_range_is_read_from_its_text() -> None:
    assert HashRange.parse("2/4") == HashRange(2, 4)
    assert str(HashRange.parse("2/4")) == "2/4"
    assert HashRange.parse("1/1").is_all
    assert ALL_KEYS.is_all
    assert not HashRange(1, 2).is_all
    assert NO_KEYS.is_empty
    assert NO_KEYS.slice_of(MIXED) == slice(0, 0)
    for text in ("", "2", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "1/70000", "a/b", " 1/4"):
        with pytest.raises(ValueError, match="is not a range"):
            HashRange.parse(text)
