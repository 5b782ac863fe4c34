"""A schema, and a log by the real writer."""

from pathlib import Path

import pytest

from springtide_client.schema import Schema
from tests.support.writer_log import SCHEMA, TABLES, WriterLog


@pytest.fixture
def schema() -> Schema:
    return SCHEMA


@pytest.fixture
def log(tmp_path: Path, request: pytest.FixtureRequest) -> WriterLog:
    """A log of one table, or of "three tables" where a test is parametrized with that."""
    has_tables = getattr(request, "param", "") == "three tables"
    return WriterLog(tmp_path / "log", tables=TABLES if has_tables else {})
