"""Starts at another position than the end of the log, and idle partitions; with a real broker."""

import threading
from collections import Counter

import pytest

from springtide.app.errors import UserError
from springtide.app.training.start_position import StartPosition
from springtide.app.training.trainer import Trainer
from springtide.stream.positions import Partition
from tests.app.training.trainer_env import expected_counts, records
from tests.support.waiting import wait_until


@pytest.mark.parametrize("text", ["20260501", "1800000000", "9" * 30, "-5", "yesterday"])
def test_an_implausible_timestamp_is_rejected(text):
    with pytest.raises(UserError, match="--from-timestamp"):
        StartPosition.parse([], text)


def test_a_time_before_1970_is_0():
    assert StartPosition.parse([], "1969-12-31T23:59:59.999Z") == StartPosition(place=0)


CLICKS = Partition("clicks", 0)


@pytest.mark.parametrize(
    ("wish", "learned"),
    [(["clicks/0=123"], 377), (["earliest"], 500), (["latest"], 0), (["clicks/0=500"], 0)],
)
def test_a_first_start_may_begin_at_another_position(env, wish, learned):
    env.produce(500)
    status = Trainer(env.config, until_end=True, start=StartPosition.parse(wish, None)).run()
    assert status.samples_trained == learned
    assert status.positions["clicks/0"].learned == 500


def test_a_seek_is_recorded_in_the_next_version_only(env):
    env.produce(300)
    Trainer(env.config, until_end=True).run()
    Trainer(env.config, until_end=True, start=StartPosition.parse(["clicks/0=100"], None)).run()
    seeks = [record.meta.trainer["seeks"] for record in records(env) if "seeks" in record.meta.trainer]
    assert seeks == [{"clicks/0": {"from_offset": 300, "to_offset": 100}}]
    assert Counter(env.counts()) == Counter(expected_counts(300)) + Counter(n % 37 for n in range(100, 300))
    env.produce(50)
    assert Trainer(env.config, until_end=True).run().samples_trained == 550


def test_a_start_at_a_time_begins_with_the_first_record_that_is_not_older(env):
    env.produce(200, record_ms=1_800_000_000_000)
    env.produce(200, record_ms=1_800_000_010_000)
    for text, learned in [
        ("1800000000000", 400),
        ("1800000000001", 200),
        ("2027-01-15T08:00:05Z", 200),
        ("1800000010001", 0),
    ]:
        start = StartPosition.parse([], text)
        positions = start.resolve(env.config.source, {})
        assert 400 - positions[CLICKS].offset == learned, text


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ("clicks/0=101", "the partition holds the offsets 0 to 99"),
        ("clicks/1=0", "no such partition, only clicks/0"),
        ("others/0=0", "no such partition"),
    ],
)
def test_an_offset_outside_the_partition_is_rejected_and_nothing_changes(env, wish, says):
    env.produce(100)
    with pytest.raises(UserError, match=says):
        Trainer(env.config, until_end=True, start=StartPosition.parse([wish], None))
    assert Trainer(env.config, until_end=True).run().samples_trained == 100


def test_an_idle_partition_releases_the_event_clock_also_after_a_restart(env, trainer):
    env.create(partitions=2)
    env.produce(64, partition=0)
    env.produce(64, partition=1)
    running = trainer()
    wait_until(lambda: running.state.samples_trained == 128, "learning")
    both = running.state.stream.clock.now_ms

    quiet = Partition("clicks", 1)
    feeding = threading.Event()

    def speak() -> bool:
        env.produce(64, partition=0)
        feeding.wait(0.2)
        return quiet in running.state.stream.clock.idle and running.state.stream.clock.now_ms > both + 64

    wait_until(speak, "the clock")
    wait_until(lambda: not running.state.changed, "a version")
    now_ms = running.state.stream.clock.now_ms
    assert now_ms > running.state.stream.clock.watermarks[quiet]
    running.stop()
    wait_until(lambda: env.status().clean_shutdown, "the end")
    assert records(env)[-1].meta.trainer["idle"] == ["clicks/1"] or quiet in running.state.stream.clock.idle
    again = Trainer(env.config)
    assert quiet in again.state.stream.clock.idle
    assert again.state.stream.clock.now_ms >= now_ms
    again.close()
