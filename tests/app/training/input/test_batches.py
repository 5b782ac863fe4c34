"""When batches are taken, full or partial; without a broker, the batcher is filled by hand."""

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
from tests.app.training.trainer_env import TrainerEnv
from tests.support.waiting import DEADLINE_SECONDS

NOW_MS = 1_700_000_000_000


def clicks(number: int) -> Columns:
    values = [json.dumps({"click": n % 2, "user_id": n, "ts": NOW_MS, "w": 1}).encode() for n in range(number)]
    return Decoder(SCHEMA).decode(RawRecords.from_messages(Partition("clicks", 0), values), NOW_MS)


def make_batches(folder: Path, wait: float) -> BatchStream:
    config = make_config(folder)
    return BatchStream(replace(config, train=structs.replace(config.train, max_wait_seconds=wait)), {}, until_end=False)


def test_a_partial_batch_is_taken_for_a_due_version_if_the_stream_is_slow(tmp_path) -> None:
    batches = make_batches(tmp_path / "slow", 0.0)
    batches.batcher.add(clicks(3))
    assert len(batches.take()) == 3
    batches.batcher.max_wait_seconds = 60.0
    batches.batcher.add(clicks(5))
    assert batches.take() is None
    assert len(batches.take(allow_partial=True)) == 5
    assert batches.take(allow_partial=True) is None


def test_full_batches_are_not_cut_short_for_a_due_version(tmp_path) -> None:
    for wait in (60.0, float("inf")):
        batches = make_batches(tmp_path / str(wait), wait)
        batches.batcher.add(clicks(33))
        assert len(batches.take(allow_partial=True)) == 32
        assert batches.take(allow_partial=True) is None


def test_without_a_waiting_time_only_full_batches_are_taken(tmp_path) -> None:
    batches = make_batches(tmp_path, float("inf"))
    batches.batcher.add(clicks(3))
    assert batches.take(allow_partial=True) is None
    assert len(batches.batcher.flush()) == 3
    batches.batcher.add(clicks(3))
    assert batches.take(allow_partial=True) is None


def test_batches_grow_to_full_ones_while_the_stream_is_behind(env: TrainerEnv) -> None:
    env.produce(1000)  # 15 batches of 64, and 40 samples
    train = structs.replace(env.config.train, min_batch_size=1, max_wait_seconds=60.0)
    source = structs.replace(env.config.source, queue_bytes=1)  # one fetch at a time
    batches = BatchStream(replace(env.config, train=train, source=source), {}, until_end=False)
    sizes: list[int] = []
    try:
        while sum(sizes) < 1000:
            batches.poll(DEADLINE_SECONDS)
            while batch := batches.take():
                sizes.append(len(batch))
                assert batches.is_behind == (1000 - sum(sizes) >= 64)
    finally:
        batches.close()
    assert sizes == [64] * 15 + [40]
