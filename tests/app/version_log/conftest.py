"""A schema, a log, and the path to this folder's own modules."""

import sys
from pathlib import Path

import pytest
from springtide_client.schema import Schema

# pytest's importlib mode leaves this folder off the path
sys.path.append(str(Path(__file__).parent))

from small_log import SCHEMA, SmallLog


@pytest.fixture
def schema() -> Schema:
    return SCHEMA


@pytest.fixture
def log(tmp_path) -> SmallLog:
    return SmallLog(tmp_path / "log")
