"""The joined stream over a real broker: impressions of one topic, clicks and dwell times of others."""

import dataclasses
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.config import SourceConfig
from springtide.stream.join.config import JoinConfig, JoinPlan, LabelSource
from springtide.stream.join.source import JoinSource
from springtide.stream.join_state import JoinState
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.producer import Producer
from springtide.stream.negatives import NegativeSampling, NegativesConfig
from springtide.stream.positions import Partition
from springtide_client.keys import encode_id
from springtide_client.schema import Schema
from tests.stream.join.batch_join import Label, Log, Record, batch_join
from tests.support.waiting import wait_until

SCHEMA = Schema(
    labels=("click", "dwell"),
    links={"dwell": "identity"},
    timestamp="ts",
    categorical=("user_id", "item_id"),
    multi_value=("tags",),
)
LABELS = {
    "click": LabelSource(topic="actions", window_seconds=60, where={"action": "click"}),
    "dwell": LabelSource(topic="dwell", window_seconds=60, value="sum", field="seconds"),
}
JOIN = JoinConfig(key=("request", "item_id"), lateness_seconds=1, early_seconds=1, idle_seconds=0.2)
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("log")) as broker:
        yield broker


class Topics:
    """The three topics of a test, two partitions each."""

    def __init__(self, broker: EmbeddedBroker, prefix: str) -> None:
        self.kafka, self.prefix = KafkaConfig(bootstrap_servers=broker.address), prefix
        with Admin(self.kafka) as admin:
            for name in ("impressions", "actions", "dwell"):
                admin.ensure_topic(f"{prefix}-{name}", num_partitions=2)

    def send(self, name: str, partition: int, *records: dict[str, Any] | bytes) -> None:
        with Producer(self.kafka) as producer:
            for record in records:
                value = record if isinstance(record, bytes) else json.dumps(record).encode()
                producer.send(f"{self.prefix}-{name}", value, partition=partition)
            producer.flush()

    def show(self, n: int, ms: int, partition: int = 0) -> None:
        item = {"request": f"r{n}", "item_id": n, "user_id": f"u{n}", "tags": ["a", n], "ts": NOW_MS + ms}
        self.send("impressions", partition, item)

    def act(self, n: int, ms: int, action: str = "click", partition: int = 1) -> None:
        self.send("actions", partition, {"request": f"r{n}", "item_id": str(n), "action": action, "ts": NOW_MS + ms})

    def dwell(self, n: int, ms: int, seconds: float) -> None:
        self.send("dwell", 0, {"request": f"r{n}", "item_id": n, "seconds": seconds, "ts": NOW_MS + ms})

    def pass_time(self, ms: int) -> None:
        """Records of an unknown key in every partition: time goes on everywhere."""
        for partition in (0, 1):
            self.show(999, ms, partition)
            self.act(998, ms, "view", partition)
            self.send("dwell", partition, {"request": "none", "item_id": 0, "seconds": 0, "ts": NOW_MS + ms})

    def source(
        self,
        state: JoinState | None = None,
        *,
        join: JoinConfig = JOIN,
        of_labels: Mapping[str, LabelSource] = LABELS,
        scratch: Path | None = None,
        schema: Schema = SCHEMA,
        **settings: Any,
    ) -> JoinSource:
        labels = {
            name: LabelSource(**{**vars_of(source), "topic": f"{self.prefix}-{source.topic}"})
            for name, source in of_labels.items()
        }
        servers = self.kafka.bootstrap_servers
        config = SourceConfig(topic=f"{self.prefix}-impressions", bootstrap_servers=servers, **settings)
        plan = JoinPlan.of(join, labels, schema)
        assert plan is not None
        return JoinSource(config, plan, schema, state, scratch=scratch)


def vars_of(source: LabelSource) -> dict[str, Any]:
    return {name: getattr(source, name) for name in source.__struct_fields__}


@pytest.fixture
def topics(broker: EmbeddedBroker, request: pytest.FixtureRequest, tmp_path: Path) -> Topics:
    return Topics(broker, f"t{abs(hash(request.node.name)) % 10**8}")


def read(
    source: JoinSource, num: int, note: Callable[[], object] = list
) -> tuple[list[tuple[int, list[float]]], list[str], JoinState | None]:
    """The item and labels of the next samples, the reasons of dead letters, and the state after them.

    `note` is called after each poll.
    """
    samples, reasons, state = [], [], None

    def has_all() -> bool:
        nonlocal state
        for columns in source.poll(0.05):
            items = columns.features.categorical_NC[:, 1].tolist()
            samples.extend(zip(items, np.round(columns.labels_NL, 3).tolist(), strict=True))
            reasons.extend(letter.reason for letter in columns.dead_letters)
            state = columns.joined.state_after(len(columns))
        note()
        return len(samples) >= num

    wait_until(has_all, lambda: f"{num} samples, not {samples}")
    return samples, reasons, state


def test_impressions_come_with_the_labels_that_their_events_make(topics: Topics) -> None:
    topics.act(2, -500)  # before its impression, by another clock
    topics.show(1, 0)
    topics.show(2, 0, partition=1)
    topics.show(3, 10)
    topics.show(4, 20)
    topics.act(1, 30_000)
    topics.act(3, 40_000, "view")
    topics.dwell(1, 31_000, 2.5)
    topics.dwell(1, 50_000, 4)
    topics.act(4, 60_021)  # a millisecond too late
    topics.pass_time(90_000)
    with topics.source() as source:
        samples, reasons, _ = read(source, 4)
    assert sorted(samples) == [(1, [1, 6.5]), (2, [1, 0]), (3, [0, 0]), (4, [0, 0])]
    assert reasons == []


def test_events_without_an_impression_are_counted_when_their_time_is_over(topics: Topics) -> None:
    topics.show(1, 0)
    topics.act(1, 500)
    topics.act(2, 1_000)
    topics.act(3, 1_500, "view")  # no click
    topics.dwell(4, 2_000, 3.5)
    topics.dwell(5, 150_000, 3.5)
    topics.pass_time(200_000)

    def counted() -> list[int]:
        return [label.num_unmatched for label in source.join_report().labels.values()]

    with topics.source() as source:
        wait_until(lambda: source.poll(0.05) is not None and any(counted()), "the count")
        assert list(source.join_report().labels) == ["click", "dwell"]
        assert counted() == [1, 1]


def test_records_without_a_key_and_late_ones_are_dead_letters(topics: Topics) -> None:
    topics.show(1, 5_000)
    topics.show(2, 3_999)
    topics.send("impressions", 0, {"request": None, "item_id": 1, "user_id": 1, "ts": NOW_MS + 5_000}, b"{")
    topics.send("actions", 0, {"item_id": 1, "action": "click", "ts": NOW_MS + 6_000})
    topics.pass_time(90_000)
    with topics.source() as source:
        samples, reasons, _ = read(source, 1)
    assert samples == [(1, [0, 0])]
    assert sorted(reasons) == ["bad_json", "late", "no_key", "no_key"]


def test_a_restart_goes_on_behind_the_last_sample_that_was_learned(topics: Topics) -> None:
    for n in range(10):
        topics.show(n, n * 1000, partition=n % 2)
        topics.act(n, n * 1000 + 500)
    topics.pass_time(65_500)
    with topics.source() as source:
        first, _, state = read(source, 5)
    assert [item for item, _ in first] == [0, 1, 2, 3, 4]
    topics.pass_time(100_000)
    with topics.source(state) as source:
        rest, _, _ = read(source, 5)
    assert rest == [(n, [1, 0]) for n in range(5, 10)]


def test_impressions_that_wait_for_late_events_are_in_files_and_read_again_after_a_restart(
    topics: Topics, tmp_path: Path
) -> None:
    """Every fourth one has a click some minutes after its window: it is learned once more, at that time."""
    join = msgspec.structs.replace(JOIN, memory_bytes=1 << 16)
    click = msgspec.structs.replace(LABELS["click"], until_seconds=600.0, late="importance_weighted")
    settings: dict[str, Any] = {"join": join, "of_labels": {**LABELS, "click": click}, "scratch": tmp_path}
    shown = [{"request": f"r{n}", "item_id": n, "user_id": n, "tags": [], "ts": NOW_MS + 100 * n} for n in range(2000)]
    for partition in (0, 1):
        topics.send("impressions", partition, *shown[partition::2])
    clicks = [{**item, "action": "click", "ts": item["ts"] + 300_000} for item in shown[::4]]
    topics.send("actions", 0, *clicks)
    topics.pass_time(400_000)
    with topics.source(**settings) as source:
        first, _, state = read(source, 2200)  # the windows are over at 260 s, the clicks begin at 300 s
        held = source.join.held.disk_used
    assert held > 1 << 16
    assert first[:2000] == [(n, [0, 0]) for n in range(2000)]
    topics.pass_time(900_000)
    with topics.source(state, **settings) as source:
        rest, reasons, _ = read(source, 2500 - len(first))
        # counted once they are `until_seconds` old: none of these came within the window
        wait_until(lambda: source.poll(0.05) == [] and source.join_report().labels["click"].on_time_share == 0.0, "F")
    samples = [item for item, _ in (*first, *rest)]
    assert [item for item in samples[2000:] if item != 999] == list(range(0, 2000, 4))
    assert reasons == []


@pytest.mark.parametrize("memory_bytes", [1 << 16, 1 << 30])
def test_impressions_keep_how_they_were_presented_until_their_windows_are_over(
    topics: Topics, tmp_path: Path, memory_bytes: int
) -> None:
    shown: list[dict[str, Any]] = []
    for n in range(2000):
        row = {"request": f"r{n}", "item_id": n, "user_id": n, "tags": [n], "ts": NOW_MS + n}
        shown.append({**row, "position": n % 7, "layout": "grid" if n % 2 else None})
    for partition in (0, 1):
        topics.send("impressions", partition, *shown[partition::2])
    topics.act(7, 1000)
    topics.pass_time(90_000)
    schema = dataclasses.replace(SCHEMA, bias=("position", "layout"))
    join = msgspec.structs.replace(JOIN, memory_bytes=memory_bytes)
    found: dict[int, list[int]] = {}
    clicks: list[int] = []
    with topics.source(join=join, scratch=tmp_path, schema=schema, bias_fields=schema.bias) as source:

        def has_all() -> bool:
            for columns in source.poll(0.05):
                assert columns.features.bias_NB is not None
                items = columns.features.categorical_NC[:, 1]
                found.update(zip(items.tolist(), columns.features.bias_NB.tolist(), strict=True))
                clicks.extend(items[columns.labels_NL[:, 0] > 0].tolist())
            return len(found) >= len(shown)

        wait_until(has_all)
    layouts = [encode_id(value)[0] for value in (None, "grid")]
    assert [found[n] for n in range(2000)] == [[n % 7, layouts[n % 2]] for n in range(2000)]
    assert clicks == [7]


def test_silent_events_end_no_window_before_its_time(topics: Topics) -> None:
    topics.show(1, 0)
    topics.show(2, 60_900)
    with topics.source() as source:
        wait_until(lambda: source.poll(0.05) == [] and source.join.num_pending == 2 and source.join.is_idle, "silence")
        # what is newest is not a lateness past the first window's end
        topics.show(3, 62_000)
        samples, _, _ = read(source, 1)
        assert samples == [(1, [0, 0])]
        topics.act(2, 90_000)
        topics.pass_time(130_000)
        samples, reasons, _ = read(source, 2)
    assert samples == [(2, [1, 0]), (3, [0, 0])]
    assert reasons == []


def test_a_partition_whose_last_records_wait_for_room_in_the_queue_is_not_idle(topics: Topics) -> None:
    impressions = [{"request": f"r{n}", "item_id": n, "user_id": n, "ts": NOW_MS + 500 * n} for n in range(400)]
    for partition in (0, 1):
        topics.send("impressions", partition, *impressions[partition::2])
        topics.send("actions", partition, *({**i, "action": "click"} for i in impressions[partition::2]))
        topics.send("dwell", partition, *({**i, "seconds": 1} for i in impressions[partition::2]))
    topics.pass_time(400_000)
    with topics.source(join=msgspec.structs.replace(JOIN, idle_seconds=0.0), queue_bytes=1) as source:
        samples, reasons, state = read(source, 400)
    assert [item for item, _ in samples] == list(range(400))
    assert reasons == []
    assert state is not None
    assert [mark.floors for cursor in state.cursors.values() for mark in cursor.values()] == [[]] * 6


def test_nothing_is_learned_while_a_topic_of_events_cannot_be_read(topics: Topics) -> None:
    topics.show(1, 0)
    topics.act(1, 1_000)
    topics.pass_time(10_000)
    with topics.source() as source:
        wait_until(lambda: source.poll(0.05) == [] and source.join.is_idle, "silence")
        with Admin(topics.kafka) as admin:
            admin.delete_topic(f"{topics.prefix}-actions")
        wait_until(lambda: source.poll(0.05) == [] and source.status.state == "waiting", "the loss")
        topics.show(2, 200_000)
        for _ in range(20):
            assert source.poll(0.05) == []
        assert source.join_report().waits_for == f"{topics.prefix}-actions"
        assert "no topic" in source.join_report().reason
        assert source.complete_until_ms({}) is None or source.complete_until_ms({}) < NOW_MS + 200_000


HOUR_MS = 3_600_000


def stop_reading(monkeypatch: pytest.MonkeyPatch, source: JoinSource, topic: str) -> None:
    """Let the records of a topic stay where they are, as where its leader does not answer."""
    for name, reader in source._readers.items():
        if name.partition("+")[0] == topic:
            monkeypatch.setattr(reader, "poll_while", lambda has_room: iter(()))


def wait_for_slowest(source: JoinSource, cursor: str) -> None:
    wait_until(lambda: source.poll(0.05) == [] and source.join.slowest_cursor() == cursor, "the slowest")


def test_a_silent_topic_is_named_long_before_its_partitions_are_idle(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("springtide.stream.join.source.LONGEST_SILENCE_SECONDS", 0.1)
    topics.pass_time(0)
    with topics.source(join=msgspec.structs.replace(JOIN, idle_seconds=3600.0)) as source:
        wait_until(lambda: source.poll(0.05) == [] and source.join.num_pending == 2, "the first impressions")
        topics.show(1, 200_000)
        wait_until(lambda: source.poll(0.05) == [] and source.join_report().waits_for != "", "the status")
        assert source.join_report().waits_for == f"{topics.prefix}-actions"


def test_impressions_are_lag_only_while_events_wait_for_longer_than_a_moment(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.pass_time(0)
    shown = [{"request": f"r{n}", "item_id": n, "user_id": n, "tags": [], "ts": NOW_MS + n} for n in range(20)]
    topics.send("impressions", 0, *shown)
    topics.pass_time(100_000)
    click = msgspec.structs.replace(LABELS["click"], until_seconds=600.0)
    with topics.source(of_labels={**LABELS, "click": click}) as source:
        read(source, 21)  # one of pass_time is a duplicate
        topics.pass_time(200_000)
        read(source, 1)
        stop_reading(monkeypatch, source, f"{topics.prefix}-actions")
        topics.act(7, 200_001)  # there, and not read
        wait_until(lambda: source.poll(0.05) == [] and source.num_waiting > 0, "an event that waits")
        partition = Partition(f"{topics.prefix}-impressions", 0)
        first, second = (source.join.positions(source.join.cursor_name(look))[partition] for look in source.join.looks)
        monkeypatch.setattr("springtide.stream.join.source.BEHIND_SECONDS", 3600.0)
        assert source.positions_read({})[partition].offset == source.end_offsets()[partition]
        monkeypatch.setattr("springtide.stream.join.source.BEHIND_SECONDS", 0.0)
        # of the two readings the one that samples come from
        assert source.positions_read({})[partition] == first
        assert first.offset > second.offset


def test_clicks_that_stand_still_for_an_hour_stop_learning_and_cost_no_memory(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.pass_time(0)
    with topics.source() as source:
        wait_until(lambda: source.poll(0.05) == [] and source.join.num_pending == 2, "the first impressions")
        stop_reading(monkeypatch, source, f"{topics.prefix}-actions")
        topics.act(7, 1000)  # there, and not read
        wait_for_slowest(source, f"{topics.prefix}-actions")
        hour = range(1000, HOUR_MS, 1000)
        items = [{"request": f"r{ms}", "item_id": ms, "user_id": 1, "tags": [], "ts": NOW_MS + ms} for ms in hour]
        topics.send("impressions", 0, *items[::2])
        topics.send("impressions", 1, *items[1::2])
        wait_until(lambda: source.poll(0.05) == [] and source.join_report().waits_for != "", "the status")
        report = source.join_report()
    assert report.waits_for == f"{topics.prefix}-actions"
    assert "stands still" in report.reason
    assert report.num_impressions < 2000
    assert report.memory_bytes < 1_000_000


def test_impressions_that_stand_still_for_an_hour_cost_a_window_of_events(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.pass_time(0)
    with topics.source() as source:
        wait_until(lambda: source.poll(0.05) == [] and source.join.num_pending == 2, "the first impressions")
        stop_reading(monkeypatch, source, f"{topics.prefix}-impressions")
        topics.show(7, 1000)
        wait_for_slowest(source, f"{topics.prefix}-impressions+60000")
        hour = range(1000, HOUR_MS, 1000)
        clicks = [{"request": f"r{ms}", "item_id": ms, "action": "click", "ts": NOW_MS + ms} for ms in hour]
        for partition in (0, 1):
            topics.send("actions", partition, *clicks)
            topics.send("dwell", partition, *({**click, "seconds": 1} for click in clicks))
        wait_until(lambda: source.poll(0.05) == [] and source.join_report().waits_for != "", "the status")
        report = source.join_report()
    assert report.waits_for == f"{topics.prefix}-impressions"
    assert report.num_impressions == 2
    assert report.memory_bytes < 1_000_000


def test_over_the_cap_of_memory_files_hold_what_is_held(topics: Topics, tmp_path: Path) -> None:
    """Samples and labels are those of the definition."""
    rng, logs = random.Random(3), defaultdict(list)
    for n in range(1500):
        ms = 40 * n
        logs["impressions", n % 2].append((n, ms, {"user_id": f"u{n}", "tags": [1, 2]}))
        for _ in range(rng.randrange(4)):
            logs["actions", n % 2].append((n, ms + rng.randrange(900), {"action": "click"}))
            logs["dwell", n % 2].append((n, logs["actions", n % 2][-1][1] + 5, {"seconds": rng.randrange(9)}))
    definition: Log = {}
    kinds = {"impressions": "impression", "actions": "click", "dwell": "dwell"}
    for (topic, partition), records in logs.items():
        records.append((5000 + partition, 200_000, {"action": "view", "seconds": 0, "user_id": "", "tags": []}))
        definition["imp" if topic == "impressions" else topic, partition] = [
            Record(
                "view" if fields.get("action") == "view" else kinds[topic], n + 1, NOW_MS + ms, fields.get("seconds", 0)
            )
            for n, ms, fields in records
        ]
        topics.send(
            topic, partition, *({"request": f"r{n}", "item_id": n, "ts": NOW_MS + ms, **f} for n, ms, f in records)
        )
    labels = {"click": Label("click", 60_000), "dwell": Label("dwell", 60_000, "sum")}
    wanted, refused = batch_join(definition, labels, lateness_ms=1000, early_ms=1000, dedupe_ms=0)
    wanted = [(key - 1, list(values)) for _, key, *_, values, _ in wanted if key <= 5000]
    most = Counter[str]()
    with topics.source(scratch=tmp_path, join=msgspec.structs.replace(JOIN, memory_bytes=1 << 16)) as source:

        def note() -> None:
            held = source.join.held
            most.update(
                {"memory": max(0, held.memory_used - most["memory"]), "disk": max(0, held.disk_used - most["disk"])}
            )

        samples, reasons, _ = read(source, 1500, note)
    assert refused["late"] == reasons == []
    assert sorted(samples) == sorted(wanted)
    assert most["memory"] <= 1 << 16
    assert most["disk"] > 1 << 16
    assert list(tmp_path.iterdir()) == []
    assert (source.join.held.memory_used, source.join.held.disk_used) == (0, 0)


def test_where_nothing_has_room_nothing_more_is_read_and_the_status_says_so(topics: Topics, tmp_path: Path) -> None:
    topics.pass_time(0)
    for partition in (0, 1):
        topics.send(
            "actions",
            partition,
            *({"request": "r1", "item_id": n, "action": "click", "ts": NOW_MS} for n in range(9000)),
        )
    topics.pass_time(90_000)
    with topics.source(
        scratch=tmp_path, join=msgspec.structs.replace(JOIN, memory_bytes=1 << 16, disk_bytes=1 << 16)
    ) as source:
        wait_until(lambda: source.poll(0.05) == [] and source.join_report().waits_for == "join", "the lack of room")
        report = source.join_report()
    assert report.memory_bytes + report.disk_bytes <= 2 << 16
    assert "raise [join] memory_bytes" in report.reason
    with topics.source(
        scratch=tmp_path, join=msgspec.structs.replace(JOIN, memory_bytes=1 << 16, disk_bytes=1 << 23)
    ) as source:
        assert read(source, 1)[0] == [(999, [0, 0])]  # the other one has the same time: a duplicate


def test_the_end_leaves_impressions_whose_windows_are_not_over(topics: Topics) -> None:
    topics.show(1, 0)
    topics.show(2, 30_000)
    topics.pass_time(70_000)
    with topics.source() as source:
        source.stop_at_end()
        source.start()
        parts: list[int] = []

        def read_on() -> bool:
            parts.extend(id_ for part in source.poll(0.05) for id_ in part.features.categorical_NC[:, 1].tolist())
            topics.show(4, 80_000)  # goes on while the end is read
            return source.finished

        wait_until(read_on, "the end")
    assert parts == [1]


def test_a_topic_that_is_missing_is_waited_for(broker: EmbeddedBroker) -> None:
    config = SourceConfig(topic="nothing", bootstrap_servers=broker.address)
    plan = JoinPlan.of(JOIN, LABELS, SCHEMA)
    assert plan is not None
    with JoinSource(config, plan, SCHEMA) as source:
        wait_until(
            lambda: source.poll(0.01) == [] and source.status.state == "waiting" and "nothing" in source.status.reason
        )
        assert source.poll(0.05) == []


def test_negatives_are_dropped_when_their_window_is_over(topics: Topics) -> None:
    config = NegativesConfig(rate=0.3, label="click")
    sampling = NegativeSampling.of(config, SCHEMA, JOIN.key)
    assert sampling is not None
    for n in range(60):
        topics.show(n, n, partition=n % 2)
    for n in range(0, 60, 10):
        topics.act(n, 30_000 + n)
    topics.pass_time(120_000)

    def learned(state: JoinState | None, last: int | None = None) -> tuple[list[int], int, list[JoinState]]:
        """The items of samples, all 60 or up to one of them, how many were dropped, and the state after each sample."""
        items, num_dropped, states = [], 0, []

        def has_all() -> bool:
            nonlocal num_dropped
            for columns in source.poll(0.05):
                kept = sampling.drop(columns)
                items.extend(kept.features.categorical_NC[:, 1].tolist())
                num_dropped += kept.sampled.num_dropped
                states.extend(kept.slice(0, n + 1).joined.state_after(n + 1) for n in range(len(kept)))
            return last in items or len(items) + num_dropped >= 60

        with topics.source(state, sample_by=sampling.by) as source:
            wait_until(has_all, lambda: f"more samples than {items}")
        return items, num_dropped, states

    items, num_dropped, states = learned(None)
    assert set(range(0, 60, 10)) <= set(items)
    assert 12 < num_dropped == 60 - len(items)
    at = len(items) // 2
    again, _, _ = learned(states[at - 1], items[-1])
    assert again == items[at:]
