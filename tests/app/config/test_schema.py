"""Which tables the features get: one for each width and optimizer, by stable names."""

import pytest

from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from tests.support.config import write_config

SETTINGS = """
name = "test"
[schema]
label = "click"
categorical = ["user", "item", "shop"]
sequence = ["history"]
share = { history = "item" }
[table]
dim = 8
"""


def tables_of(tmp_path, more):
    table = load_config(write_config(tmp_path / "springtide.toml", SETTINGS, more)).table
    return {name: (own.dim, own.optimizer, own.features) for name, own in table.tables.items()}


def test_features_of_one_width_share_a_table(tmp_path):
    assert tables_of(tmp_path, "[features.item]\ndim = 8\n[features.user]\nttl_seconds = 3\n") == {}
    more = "[features.item]\ndim = 4\n[features.shop]\ndim = 4\n"
    assert tables_of(tmp_path, more) == {"": (8, None, (0,)), "dim4": (4, None, (1, 2))}


def test_an_optimizer_of_its_own_makes_a_table_of_its_own(tmp_path):
    more = '[features.item]\noptimizer = { name = "adam" }\n[features.shop]\noptimizer = { name = "adam", lr = 0.5 }\n'
    assert tables_of(tmp_path, more) == {
        "": (8, None, (0,)),
        "dim8-adam": (8, {"name": "adam"}, (1,)),
        "dim8-adam-2": (8, {"name": "adam", "lr": 0.5}, (2,)),
    }


def test_the_table_keeps_a_feature_and_only_owners_choose(tmp_path):
    with pytest.raises(UserError, match=r"nothing uses \[table\] dim = 8: give \[table\] the dim \(2\)"):
        tables_of(tmp_path, "".join(f"[features.{name}]\ndim = 2\n" for name in ("user", "item", "shop")))
    with pytest.raises(UserError, match=r"history shares the rows of item, so it goes into \[features.item\]"):
        tables_of(tmp_path, "[features.history]\ndim = 2\n")
    with pytest.raises(UserError, match=r"\[features.item\] dim"):
        tables_of(tmp_path, "[features.item]\ndim = 0\n")
    with pytest.raises(UserError, match=r"\[features.item\] optimizer"):
        tables_of(tmp_path, '[features.item]\noptimizer = { name = "rmsprop" }\n')
