"""When batches are taken, full or partial; without a broker, the batcher is filled by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from springtide.app.training.batches import BatchStream, FeatureValues, without_values
from springtide.stream.batcher import GROWTH, BatchSize
from springtide.stream.columns import Batch, Columns, RawRecords
from springtide.stream.config import SourceConfig
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.formats import DecodeConfig
from springtide.stream.positions import Partition, Position
from springtide_client.encode import encode_instances
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema
from tests.app.training.random_clicks import RANDOM_CLICKS, SCHEMA
from tests.app.training.trainer_env import TrainerEnv
from tests.support.config import config_in
from tests.support.waiting import DEADLINE_SECONDS

NOW_MS = 1_700_000_000_000


def clicks(number: int) -> Columns:
    values = [json.dumps({"click": n % 2, "user_id": n, "ts": NOW_MS, "w": 1}).encode() for n in range(number)]
    return Decoder(SCHEMA).decode(RawRecords.from_messages(Partition("clicks", 0), values), NOW_MS)


def make_batches(folder: Path, wait: float) -> BatchStream:
    config = config_in(folder, RANDOM_CLICKS, {"train": {"max_wait_seconds": wait}})
    return BatchStream(config, {}, until_end=False, samples_trained=10_000)


def test_what_is_there_is_a_batch_up_to_a_full_one(tmp_path) -> None:
    batches = make_batches(tmp_path, 0.0)
    batches.batcher.add(clicks(3))
    assert len(batches.take()) == 3
    batches.batcher.add(clicks(37))
    assert [len(batches.take()), len(batches.take()), batches.take()] == [32, 5, None]


def test_without_an_end_of_the_wait_only_full_batches_are_taken(tmp_path) -> None:
    batches = make_batches(tmp_path, float("inf"))
    batches.batcher.add(clicks(33))
    assert [len(batches.take()), batches.take()] == [32, None]
    assert len(batches.batcher.flush()) == 1


def test_batches_grow_to_full_ones_while_the_stream_is_behind(env: TrainerEnv) -> None:
    env.produce(1000)  # 15 batches of 64, and 40 samples
    train = structs.replace(env.config.train, min_batch_size=1, max_wait_seconds=0.0)
    source = structs.replace(env.config.source, queue_bytes=1)  # one fetch at a time
    config = replace(env.config, train=train, source=source)
    batches = BatchStream(config, {}, until_end=False, samples_trained=64 * GROWTH)
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


def use(env: TrainerEnv, **settings: float) -> None:
    env.config = replace(env.config, train=structs.replace(env.config.train, **settings))


def learn_all(env: TrainerEnv, positions: dict[Partition, Position], learned: int, most: int = 10**9) -> list[Batch]:
    """Return up to `most` batches from these positions to the end; each peeked batch is the one that is taken next."""
    batches = BatchStream(env.config, positions, until_end=True, samples_trained=learned)
    batches.start()
    taken: list[Batch] = []
    try:
        while not batches.finished and len(taken) < most:
            batches.poll(DEADLINE_SECONDS)
            peeked = batches.peek()
            batch = batches.take()
            assert peeked is None or peeked is batch
            if batch is not None and len(batch):
                taken.append(batch)
    finally:
        batches.close()
    return taken


def positions_after(batches: list[Batch]) -> dict[Partition, Position]:
    return {
        partition: Position(batch.topic_ids[partition], offset)
        for batch in batches
        for partition, offset in batch.positions.items()
    }


def test_batches_grow_alike_after_a_restart_at_any_point(env: TrainerEnv) -> None:
    use(env, min_batch_size=2, max_wait_seconds=float("inf"))
    env.produce(1500)
    whole = learn_all(env, {}, 0)
    sizes = [len(batch) for batch in whole]
    assert sizes[:-1] == [BatchSize(64, 2).after(sum(sizes[:n])) for n in range(len(sizes) - 1)]
    assert (sum(sizes), set(sizes[:-1])) == (1500, {2, 4, 8})
    for num_before in (1, 100, len(whole) - 1):
        before = whole[:num_before]
        after = learn_all(env, positions_after(before), sum(map(len, before)))
        assert [len(batch) for batch in before + after] == sizes
        assert [batch.positions for batch in before + after] == [batch.positions for batch in whole]


def test_batches_of_several_partitions_grow_with_all_their_samples(env: TrainerEnv) -> None:
    use(env, min_batch_size=2, max_wait_seconds=float("inf"))
    env.create(partitions=3)
    for partition in range(3):
        env.produce(500, partition=partition)
    batches = learn_all(env, {}, 0)
    sizes = [len(batch) for batch in batches]
    assert sizes[:-1] == [BatchSize(64, 2).after(sum(sizes[:n])) for n in range(len(sizes) - 1)]
    assert {p.number: position.offset for p, position in positions_after(batches).items()} == {0: 500, 1: 500, 2: 500}


VALUES_SCHEMA = Schema(
    labels=("click",), categorical=("user", "country"), multi_value=("tags", "words"), dense=("age", "price")
)


def batch_of(instances: list[dict], **columns) -> Batch:
    return replace(Batch.empty(VALUES_SCHEMA), features=encode_instances(VALUES_SCHEMA, instances), **columns)


def test_fields_by_which_scores_are_grouped_are_named_too():
    source = SourceConfig(topic="clicks", log_path=Path("log"), request_field="request", group_field="country")
    values = FeatureValues(VALUES_SCHEMA, source)
    missing_N = np.full(1, MISSING_ID)
    values.add(batch_of([{"user": 1}], request_N=missing_N, group_N=missing_N))
    assert values.without == ["country", "tags", "words", "age", "price", "request"]
    values.add(batch_of([{"user": 1}], request_N=np.array([5]), group_N=missing_N))
    assert values.without == ["country", "tags", "words", "age", "price"]


def test_features_without_any_value_are_named_until_there_were_enough_samples():
    values = FeatureValues(VALUES_SCHEMA, enough=3)
    values.add(batch_of([]))
    values.add(batch_of([{"user": 1, "words": []}, {"tags": ["a"], "price": 0}]))
    assert values.without == ["country", "words", "age"]
    values.add(batch_of([{"age": 3}, {}]))
    values.add(batch_of([{"country": "is"}]))
    assert (values.num_samples, values.without) == (4, ["country", "words"])


def test_bias_fields_without_any_value_are_named_too():
    schema = Schema(labels=("click",), categorical=("user",), bias=("position", "layout"))
    values = FeatureValues(schema)
    decoder = Decoder(schema, DecodeConfig(bias_fields=schema.bias))
    records = [json.dumps({"click": 1, "user": 1, "position": 2}).encode()]
    values.add(decoder.decode(RawRecords.from_messages(Partition("clicks", 0), records), NOW_MS))
    assert values.without == ["layout"]


def test_of_several_ranks_only_what_no_rank_has_seen_is_without_a_value():
    assert without_values([["country", "words", "age"], ["words", "age", "user"], ["user", "age"]]) == ["age"]
    assert without_values([["country"]]) == ["country"]
