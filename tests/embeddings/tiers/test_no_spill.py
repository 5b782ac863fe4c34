"""What a table without a spill still knows of the rows that it lost."""

import numpy as np
import pytest

from springtide.embeddings.tiers.no_spill import NoSpill
from springtide.embeddings.tiers.record_kinds import ABSENT, TOMBSTONE
from tests.embeddings.tiers.spill_support import find, numbered_rows

DIM, WIDTH = 4, 1


@pytest.mark.parametrize("over_base", [False, True])
def test_a_lost_row_is_known_until_its_generation_ends(over_base: bool) -> None:
    none = NoSpill(DIM, WIDTH, over_base=over_base)
    rows = numbered_rows(np.arange(1000), DIM, WIDTH)
    for start in range(0, 900, 30):
        none.write(rows.take(slice(start, start + 30)), 30)
    kinds_N = find(none, rows).kinds_U
    assert (kinds_N[:900] == TOMBSTONE).mean() > 0.99
    assert (kinds_N[900:] == ABSENT).all()
    closed = none.open_generation()
    none.write(rows.take(slice(990, 1000)), 10)
    none.destroy_generations(closed)
    assert np.flatnonzero(find(none, rows).kinds_U == TOMBSTONE).tolist() == list(range(990, 1000))


def test_over_a_base_no_lost_row_is_forgotten() -> None:
    none = NoSpill(DIM, WIDTH, over_base=True)
    ids_N = np.random.default_rng(0).permutation(3_000_000)
    for part in np.array_split(ids_N[:2_000_000], 40):
        none.add_tombstones(np.zeros(len(part), np.uint16), part)
    assert none.memory_bytes() == 16_000_000
    kinds_N = none.find(np.zeros(len(ids_N), np.uint16), ids_N).kinds_U
    assert (kinds_N[:2_000_000] == TOMBSTONE).all()
    assert (kinds_N[2_000_000:] == ABSENT).all()
    none.close()
    assert none.memory_bytes() == 0


def test_it_is_empty_until_a_row_is_lost() -> None:
    none = NoSpill(DIM, WIDTH, over_base=True)
    assert none.is_empty_for(1)
    none.write(numbered_rows(np.arange(1), DIM, WIDTH), 1)
    assert not none.is_empty_for(1)
