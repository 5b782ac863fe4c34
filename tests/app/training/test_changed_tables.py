"""A start with other widths of rows, or without the wide part, keeps everything of a trained log that still fits."""

from pathlib import Path

import numpy as np

from springtide.app.config.load import Config
from springtide.app.version_log.verify.verify import verify
from springtide_client.keys import CROSSES
from springtide_client.log.base import Base
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.initial_values import initial_values
from springtide_client.wide.layout import wide_width
from tests.app.training.test_changed_settings import LAYERS, WITHOUT_GENRES, contents, learn
from tests.support.config import Section, config_in
from tests.torture.verify.log_contents import LogContents

USER_ID, WIDE = 0, 4 * wide_width(1)  # bytes of the wide part's numbers
WIDE_PART = {"model": {"wide": True}}


def learned(folder: Path, *changes: Section) -> tuple[Config, LogContents]:
    """Start under these settings and learn a little; return what the log holds then."""
    config = config_in(folder, *LAYERS, *changes)
    learn(config)
    errors = verify(LogDirectory(config.log.path), deep=True).errors
    assert [error for error in errors if "does not hash to its id" not in error.what] == []  # made-up strings
    return config, contents(config)


def begun(config: Config) -> tuple[Base, dict[tuple[int, int], tuple[bytes, bytes, int, int]]]:
    """Return the base with which the newest epoch began, and its rows."""
    base = LogDirectory(config.log.path).open_base()
    assert base is not None
    rows = {}
    for name in base.manifest.all_tables:
        layer = base.tables[name].layer
        for i in range(len(layer)):
            key = int(layer.feature[i]), int(layer.id[i])
            rows[key] = layer.value[i].tobytes(), layer.state[i].tobytes(), int(layer.count[i]), int(layer.last_seen[i])
    return base, rows


def test_a_feature_gets_rows_of_its_own_width_and_back(tmp_path: Path) -> None:
    _, then = learned(tmp_path)
    config, now = learned(tmp_path, {"features": {"user_id": {"dim": 6}}})
    base, rows = begun(config)
    assert base.manifest.tables["dim6"].features == [USER_ID]
    assert "[features.user_id] dim (4, now 6)" in base.manifest.meta.change["changed"]
    assert "vectors and optimizer states of the rows of user_id, from their first values" in str(
        base.manifest.meta.change["begun"]
    )
    assert rows.keys() == then.rows.keys()
    for key, row in rows.items():
        assert row[2:] == then.rows[key][2:]
        if key[0] % 32768 == USER_ID:
            features, ids = np.array([key[0]], np.uint16), np.array([key[1]])
            assert row[0] == initial_values(features, ids, dim=6, seed=0, scale=config.table.init_scale).tobytes()
        else:
            assert row == then.rows[key]
    assert now.meta.samples_trained > then.meta.samples_trained
    users = {len(row[0]) for key, row in now.rows.items() if key[0] % 32768 == USER_ID}
    assert users == {4 * 6}
    again, _ = learned(tmp_path)
    base, rows = begun(again)
    assert not base.manifest.tables
    assert {key: row for key, row in rows.items() if key[0] % 32768 != USER_ID} == {
        key: row for key, row in now.rows.items() if key[0] % 32768 != USER_ID
    }


def test_the_wide_part_is_turned_off_and_on_without_a_loss_of_anything_else(tmp_path: Path) -> None:
    config, then = learned(tmp_path, WIDE_PART)
    of_ids = config.schema.owner_names()
    ids = {key: row for key, row in then.rows.items() if key[0] % 32768 in of_ids}
    assert len(ids) < len(then.rows)  # there are bins, and perhaps crosses
    config, after = learned(tmp_path)
    base, rows = begun(config)
    assert "the wide part's weights of those rows" in base.manifest.meta.change["dropped"]
    assert rows == {key: (value, state[:-WIDE], *rest) for key, (value, state, *rest) in ids.items()}
    config, _ = learned(tmp_path, WIDE_PART)
    base, rows = begun(config)
    assert "the wide part's weights of those rows" in base.manifest.meta.change["begun"]
    assert rows == {key: (value, state + bytes(WIDE), *rest) for key, (value, state, *rest) in after.rows.items()}
    assert not any(key[0] == CROSSES for key in rows)


def test_the_wide_part_goes_on_with_the_fields_and_labels_that_stay(tmp_path: Path) -> None:
    _, then = learned(tmp_path, WIDE_PART)
    changed = {"schema": {"multi_value": ["tags"], "dense": ["price"]}}
    config, _ = learned(tmp_path, WIDE_PART, WITHOUT_GENRES, changed)
    base, _ = begun(config)
    before, now = (
        {name: array for name, array in arrays.items() if name.startswith("dense.wide.")}
        for arrays in (then.arrays, base.dense)
    )
    numbers_before, numbers_now = (list(arrays["dense.wide.numbers_F"]) for arrays in (before, now))
    for number in set(numbers_before) & set(numbers_now):
        gates = before["dense.wide.gates_LTB"][0, numbers_before.index(number)]
        assert now["dense.wide.gates_LTB"][0, numbers_now.index(number)].tolist() == gates.tolist()
    assert now["dense.wide.number_weights_LX"].tolist() == before["dense.wide.number_weights_LX"][:, 2:].tolist()
    assert now["dense.wide.bias_L"].tolist() == before["dense.wide.bias_L"].tolist()
