"""What the intake hands out, and when: without a broker, its batcher filled by hand."""

import json
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from app.training.input.batches import BatchStream
from stream.columns import Columns
from stream.decode.decoder import Decoder
from stream.positions import Partition
from stream.records import RawRecords
from tests.app.training.configs import make_config
from tests.app.training.random_clicks import SCHEMA

NOW_MS = 1_700_000_000_000


def clicks(number: int) -> Columns:
    values = [json.dumps({"click": n % 2, "user_id": n, "ts": NOW_MS, "w": 1}).encode() for n in range(number)]
    return Decoder(SCHEMA).decode(RawRecords.from_messages(Partition("clicks", 0), values), NOW_MS)


def make_intake(folder: Path, wait: float) -> BatchStream:
    config = make_config(folder)
    return BatchStream(replace(config, train=structs.replace(config.train, max_wait_seconds=wait)), {}, until_end=False)


def test_a_version_that_is_due_takes_what_waits_where_batches_do_not_fill(tmp_path) -> None:
    intake = make_intake(tmp_path / "slow", 0.0)
    intake.batcher.add(clicks(3))
    assert len(intake.take()) == 3
    intake.batcher.max_wait_seconds = 60.0
    intake.batcher.add(clicks(5))
    assert intake.take() is None
    assert len(intake.take(allow_partial=True)) == 5
    assert intake.take(allow_partial=True) is None


def test_where_batches_fill_no_version_cuts_one_short(tmp_path) -> None:
    for wait in (60.0, float("inf")):
        intake = make_intake(tmp_path / str(wait), wait)
        intake.batcher.add(clicks(33))
        assert len(intake.take(allow_partial=True)) == 32
        assert intake.take(allow_partial=True) is None


def test_batches_by_size_alone_are_never_cut_short(tmp_path) -> None:
    intake = make_intake(tmp_path, float("inf"))
    intake.batcher.add(clicks(3))
    assert intake.take(allow_partial=True) is None
    assert len(intake.batcher.flush()) == 3
    intake.batcher.add(clicks(3))
    assert intake.take(allow_partial=True) is None
