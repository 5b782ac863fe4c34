"""A mapped base as a source of rows: the same with and without readahead."""

from pathlib import Path

import numpy as np
import pytest

from springtide.app.training.state.base_rows import CHUNK_KEYS, BaseRows
from springtide.app.version_log.compact.base_writer import BaseImage, write_base
from springtide_client.format.records import Tip, VersionMeta
from springtide_client.keys import mix_keys
from springtide_client.log.base import Base, ModelIdentity, TableSpec
from springtide_client.rows.row_layer import RowLayer
from springtide_client.schema import Schema

NUM, DIM = 40_000, 4


def made(folder: Path, num: int) -> Base:
    """A base of ids 0, 2, 4... whose columns are functions of the id."""
    ids_N, features_N = np.arange(0, 2 * num, 2), np.arange(num).astype(np.uint16) % 3
    mixed_N = mix_keys(features_N, ids_N)
    order = np.argsort(mixed_N)
    ids_N, features_N = ids_N[order], features_N[order]
    values_ND = ids_N[:, None] + np.arange(DIM, dtype=np.float32)
    states_NS = -values_ND[:, :1]
    image = BaseImage(
        tip=Tip(1, 1),
        schema=Schema(labels=("click",), categorical=("a", "b", "c")),
        table=TableSpec(dim=DIM, state_width=1, seed=0, init_scale=0.05, optimizer={"name": "rowwise-adagrad"}),
        model=ModelIdentity(name="dlrm"),
        meta=VersionMeta(),
        dense={},
        num_rows=num,
        blocks=[
            RowLayer(
                mixed_N[order],
                features_N,
                ids_N,
                values_ND.astype(np.float32),
                ids_N % 7,
                ids_N + 1,
                None,
                states_NS.astype(np.float32),
            )
        ],
    )
    return Base.open(write_base(folder, image))


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("num", [NUM, 1, 0])
def test_a_row_is_found_as_written_and_an_unknown_key_is_not(tmp_path: Path, num: int, asks: bool) -> None:
    rows = BaseRows(made(tmp_path, num))
    ids_U = np.random.default_rng(0).permutation(2 * num + 10)[: 5 * CHUNK_KEYS]
    features_U = (ids_U // 2 % 3).astype(np.uint16)
    rows._readahead.observe(int(asks), 1)
    found, found_U = rows.find(features_U, ids_U)
    expected_U = (ids_U % 2 == 0) & (ids_U < 2 * num)
    np.testing.assert_array_equal(found_U, expected_U)
    known_U = ids_U[expected_U]
    np.testing.assert_array_equal(found.values[expected_U], known_U[:, None] + np.arange(DIM, dtype=np.float32))
    np.testing.assert_array_equal(found.states[expected_U, 0], -known_U)
    np.testing.assert_array_equal(found.counts[expected_U], known_U % 7)
    np.testing.assert_array_equal(found.last_seen[expected_U], known_U + 1)


def test_finding_no_keys_returns_no_rows(tmp_path: Path) -> None:
    rows = BaseRows(made(tmp_path, 10))
    rows._readahead.observe(1, 1)
    found, found_U = rows.find(np.empty(0, np.uint16), np.empty(0, np.int64))
    assert len(found) == len(found_U) == 0
