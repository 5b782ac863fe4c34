"""Settings from the command line have the types that TOML gives them; TOML that is written is read back as it was."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.app.config.document import format_toml, merge_document, parse_assignment
from springtide.app.config.load import load_config
from springtide.app.errors import UserError

CONFIG = 'name = "tiny"\n[schema]\nlabel = "click"\ncategorical = ["user_id"]\n[train]\nbatch_size = 8\n'


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("train.batch_size=64", {"train": {"batch_size": 64}}),
        ("train.optimizer.lr = 0.01", {"train": {"optimizer": {"lr": 0.01}}}),
        ("model.name=deepfm", {"model": {"name": "deepfm"}}),
        ('model.name="deepfm"', {"model": {"name": "deepfm"}}),
        ("table.disk_bytes=2GiB", {"table": {"disk_bytes": "2GiB"}}),
        ('schema.dense=["age"]', {"schema": {"dense": ["age"]}}),
        ('features."user.id".max_length=3', {"features": {"user.id": {"max_length": 3}}}),
        ("train.max_wait_seconds=inf", {"train": {"max_wait_seconds": float("inf")}}),
    ],
)
def test_an_assignment_is_a_line_of_toml(text: str, document: dict) -> None:
    assert parse_assignment(text) == document


@pytest.mark.parametrize("text", ["train.batch_size", "=3", "train.batch_size=", "a b=3", "a.=3", "x=1\ny=2"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"SECTION\.KEY=VALUE"):
        parse_assignment(text)


def test_tables_are_merged_and_values_replaced() -> None:
    document = {"name": "a", "train": {"batch_size": 8, "optimizer": {"name": "sgd"}}}
    changes = [parse_assignment("train.optimizer.lr=0.5"), parse_assignment("name=b")]
    merged = merge_document(document, changes)
    assert merged == {"name": "b", "train": {"batch_size": 8, "optimizer": {"name": "sgd", "lr": 0.5}}}
    assert document["train"] == {"batch_size": 8, "optimizer": {"name": "sgd"}}
    with pytest.raises(UserError, match="not a table"):
        merge_document(document, [parse_assignment("train.batch_size.most=1")])


def test_assignments_change_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "springtide.toml"
    path.write_text(CONFIG)
    assert load_config(path, assignments=[parse_assignment("train.batch_size=64")]).train.batch_size == 64
    with pytest.raises(UserError, match="did you mean batch_size"):
        load_config(path, assignments=[parse_assignment("train.batchsize=64")])
    with pytest.raises(UserError, match=r"--set has an unknown key 'trian': did you mean train\?"):
        load_config(path, assignments=[parse_assignment("trian.batch_size=64")])


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_a_document_is_read_back_as_it_was(document: dict[str, Any]) -> None:
    assert tomllib.loads(format_toml(document)) == document


def test_sections_follow_plain_values() -> None:
    document = {"train": {"batch_size": 8, "optimizer": {"lr": 0.1}}, "name": "a", "features": {"x y": {"ttl": 1}}}
    assert format_toml(document) == (
        'name = "a"\n\n[train]\nbatch_size = 8\noptimizer = { lr = 0.1 }\n\n[features."x y"]\nttl = 1\n'
    )
