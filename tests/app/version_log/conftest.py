"""A schema, and a log by the real writer."""

from pathlib import Path

import pytest

from springtide_client.schema import Schema
from tests.support.writer_log import SCHEMA, WriterLog


@pytest.fixture
def schema() -> Schema:
    return SCHEMA


@pytest.fixture
def log(tmp_path: Path, request: pytest.FixtureRequest) -> WriterLog:
    """A log of one table, or of the class that a test is parametrized with."""
    kind: type[WriterLog] = getattr(request, "param", WriterLog)
    return kind(tmp_path / "log")
