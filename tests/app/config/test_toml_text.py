"""TOML that is written is read back as it was."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from springtide.app.config.toml_text import format_toml

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
