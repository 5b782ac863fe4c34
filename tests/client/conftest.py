"""A small exported model, the schema it was exported for, and hand-written logs."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from springtide_client.schema import Schema
from tests.support import toy_model
from tests.support.logs import HandWrittenLog


@pytest.fixture(scope="session")
def toy_program() -> torch.export.ExportedProgram:
    return toy_model.toy_program()


@pytest.fixture(scope="session")
def toy_archive() -> bytes:
    return toy_model.toy_archive()


@pytest.fixture(scope="session")
def toy_schema() -> Schema:
    return toy_model.TOY_SCHEMA


@pytest.fixture
def make_log(tmp_path: Path, toy_schema: Schema, toy_archive: bytes) -> Callable[..., HandWrittenLog]:
    """Make a new log, with its first base, at each call."""
    numbers = itertools.count()
    return lambda **options: HandWrittenLog(tmp_path / f"log-{next(numbers)}", toy_schema, toy_archive, **options)


@pytest.fixture
def log(make_log: Callable[..., HandWrittenLog]) -> HandWrittenLog:
    """Return a log of one table, with its first base."""
    return make_log()
