"""Views of a range of keys: each holds and maps its share, and together they answer like the whole."""

import mmap

import numpy as np
import pytest

from springtide_client.keys import hash_keys
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import KNOWN, UNKNOWN, View
from springtide_client.rows.hash_range import NO_KEYS, HashRange, owners_of
from tests.client.model.test_view import newest, open_newest, row
from tests.support.wide_log import WideLog

FEATURES, IDS = np.zeros(600, np.uint16), np.arange(600)


def open_range(log, hash_range: HashRange) -> View:
    path = LogDirectory(log.path).newest_base()
    return newest(log, View.open(path, like=open_newest(log), hash_range=hash_range))


def mapped_bytes(view: View) -> int:
    """The bytes of the maps under the columns of the base's rows."""
    rows = view.tables[""].base_rows
    maps = {id(array.base): array.base for array in (rows.key_hash, rows.value, rows.count, rows.last_seen)}
    return sum(len(pages) for pages in maps.values() if isinstance(pages, mmap.mmap))


@pytest.mark.parametrize(("count", "num_files"), [(2, 1), (3, 1), (2, 4), (3, 2)])
def test_parts_hold_their_share_and_together_all(log, count, num_files) -> None:
    log.append({(0, i): row(log, i) for i in range(400)})
    log.write_base(num_files)
    log.append({(0, i): row(log, i + 1) for i in range(300, 600)}, [(0, i) for i in range(0, 300, 3)])
    whole = newest(log)
    rows, status = whole.lookup(FEATURES, IDS)
    parts = [open_range(log, HashRange(number, count)) for number in range(1, count + 1)]
    owners = owners_of(hash_keys(FEATURES, IDS), count)
    for number, part in enumerate(parts):
        own = owners == number
        found, codes = part.lookup(FEATURES, IDS)
        np.testing.assert_array_equal(found[own], rows[own])
        np.testing.assert_array_equal(codes[own], status[own])
        assert (codes[~own] == UNKNOWN).all()
        assert part.num_rows == pytest.approx(whole.num_rows / count, rel=0.25)
        assert part.num_changed_rows == pytest.approx(whole.num_changed_rows / count, rel=0.25)
        assert part.tables[""].layers[0].value.base is None  # its own memory: the record is free to go
    assert sum(part.num_rows for part in parts) == whole.num_rows
    assert sum(len(part.base) for part in parts) == 400


def test_of_a_base_only_the_slice_is_mapped(make_log) -> None:
    log = make_log(dim=4)
    log.append({(0, i): row(log, i) for i in range(20_000)})
    log.write_base()
    file = (LogDirectory(log.path).newest_base() / "rows.safetensors").stat().st_size
    part = open_range(log, HashRange(2, 4))
    assert file / 5 < mapped_bytes(part) + 2 * len(part.base) + 8 * len(part.base) < file / 3
    assert mapped_bytes(part) > 0
    for table in part.base.tables.values():
        assert len(table.states) == len(table.rows)
        assert (part.base.main.rows.find(FEATURES, IDS) >= 0).sum() == (part.lookup(FEATURES, IDS)[1] == KNOWN).sum()


def test_a_view_of_no_keys_needs_no_file_with_rows(log) -> None:
    log.append({(0, 1): row(log, 1)}, dense={"linear.bias": np.ones(2, np.float32)})
    base = log.write_base()
    for name in ("rows.safetensors", "optimizer.safetensors"):
        (base / name).unlink()
    log.append({(0, 2): row(log, 2)})
    view = newest(log, View.open(base, hash_range=NO_KEYS))
    assert view.version == log.number
    assert view.num_rows == 0
    assert view.lookup(FEATURES, IDS)[1].tolist() == [UNKNOWN] * len(IDS)


def test_the_wide_parts_numbers_are_cut_with_the_rows(tmp_path) -> None:
    log = WideLog(tmp_path / "log", crosses_table=True)
    log.learn(40)
    log.publish()
    log.log.write_base()
    log.learn(10)
    log.publish()
    whole, parts = newest(log.log), [open_range(log.log, HashRange(number, 2)) for number in (1, 2)]
    users, ids = np.zeros(12, np.uint16), np.arange(12)
    owners = owners_of(hash_keys(users, ids), 2)
    expected = whole.search_of(0).with_states(users, ids)
    for number, part in enumerate(parts):
        found = part.search_of(0).with_states(users, ids)
        for ours, wholes in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours[owners == number], wholes[owners == number])
