"""Finds what keeps a join from running: records deleted too early, a key in several partitions, little space."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from springtide.app.config.load import Config
from springtide.stream.columns import NO_KEY, Columns
from springtide.stream.decode.decoder import Decoder
from springtide.stream.errors import StreamError
from springtide.stream.join.config import JoinPlan
from springtide.stream.join.held_impressions import columns_arrays
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.range_reader import read_range
from springtide.stream.positions import Partition, Position
from springtide_client.system.clock import wall_ms

SAMPLE_RECORDS = 10_000  # the newest of each partition that are looked at
INDEX_BYTES = 40  # by which an event finds an impression that is held, with room to grow

Found = Iterator[tuple[Literal["ok", "note", "problem"], str]]


def check_joined_topic(config: Config, plan: JoinPlan, address: str, topic: str) -> Found:
    """Check one topic of a join: the state and the text of each finding."""
    kafka = KafkaConfig(bootstrap_servers=address, options=config.source.kafka)
    yield from check_retention(plan, kafka, topic)
    if topic != config.source.topic:
        return
    if plan.config.partitioned_by_key or plan.held_ms:
        try:
            columns = newest_impressions(config, plan, kafka)
        except StreamError as error:
            yield "note", f"broker: impressions cannot be read: {error}"
            return
        if plan.config.partitioned_by_key:
            yield check_partitioning(topic, columns)
        if plan.held_ms:
            yield from check_held(plan, columns)


def newest_impressions(config: Config, plan: JoinPlan, kafka: KafkaConfig) -> dict[Partition, list[Columns]]:
    """Read the newest impressions of each partition."""
    decoder = Decoder(config.schema, config.source, key=plan.config.key)
    with Admin(kafka) as admin:
        ends = admin.end_offsets(topic := admin.require_topic(config.source.topic))
    end = {partition: Position(topic.id, offset) for partition, offset in ends.items()}
    begin = {partition: at._replace(offset=max(0, at.offset - SAMPLE_RECORDS)) for partition, at in end.items()}
    found: dict[Partition, list[Columns]] = {}
    for raw in read_range(kafka, begin, end):
        found.setdefault(raw.partition, []).append(decoder.decode(raw, wall_ms()))
    return found


def check_partitioning(topic: str, found: dict[Partition, list[Columns]]) -> tuple[Literal["ok", "problem"], str]:
    """Look for keys of impressions that are in more than one partition."""
    keys = [set().union(*map(_key_hashes, columns)) for columns in found.values()]
    num_keys, num_different = sum(map(len, keys)), len(set().union(*keys))
    if num_different < num_keys:
        return "problem", (
            f"broker: {num_keys - num_different:,} of {num_different:,} keys are in several partitions of {topic!r}: "
            "[join] partitioned_by_key = true is wrong"
        )
    return "ok", f"broker: none of {num_keys:,} keys is in several partitions of {topic!r}"


def _key_hashes(columns: Columns) -> list[int]:
    assert columns.key_hash_N is not None
    hashes: list[int] = columns.key_hash_N[columns.key_hash_N != NO_KEY].tolist()
    return hashes


def check_held(plan: JoinPlan, found: dict[Partition, list[Columns]]) -> Found:
    """Compare what is held of impressions, at the rate and size of the newest ones, with the room for it."""
    per_ms = num_bytes = num = 0.0
    for columns in found.values():
        times = [int(ms) for part in columns if len(part) for ms in (part.event_ms_N.min(), part.event_ms_N.max())]
        num_here = sum(map(len, columns))
        if times and max(times) > min(times):
            per_ms += num_here / (max(times) - min(times))
        num += num_here
        num_bytes += sum(array.nbytes for part in columns for array in columns_arrays(part).values())
    if not num or not per_ms:
        yield "note", "broker: too few impressions to say how many are held"
        return
    room = plan.config.memory_bytes + plan.config.disk_bytes
    needed = plan.held_ms * per_ms * (num_bytes / num + INDEX_BYTES)
    text = (
        f"broker: impressions are held for {plan.held_ms / 1000:g} s, at {1000 * per_ms:,.0f} a second some "
        f"{_gib(needed)}; [join] memory_bytes and disk_bytes have room for {_gib(room)}"
    )
    if needed > room:
        remedy = "a shorter window_seconds" if plan.config.release == "event" else 'until_seconds or late = "settle"'
        yield "problem", f"{text}: raise disk_bytes, or set {remedy}"
    else:
        yield "ok", text


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2g} GiB"


def check_retention(plan: JoinPlan, kafka: KafkaConfig, topic: str) -> Found:
    """Compare how long a topic keeps its records with what a restart reads of it again."""
    needed_ms = max(label.horizon_ms for label in plan.labels)
    needed_ms += round(1000 * (plan.config.lateness_seconds + plan.config.early_seconds))
    reads = f"a restart of the join reads the last {needed_ms / 1000:g} s again"
    settings: dict[str, str] = {}
    with suppress(StreamError), Admin(kafka) as admin:  # not every broker says
        settings = admin.topic_settings(topic)
    retention_ms = int(settings.get("retention.ms") or -1)
    if 0 <= retention_ms < needed_ms:
        kept = f"broker: topic {topic!r} keeps its records for {retention_ms / 1000:g} s, and {reads}"
        yield "problem", f"{kept}: raise its retention.ms, to that and the longest time that the trainer may be away"
    if "compact" in settings.get("cleanup.policy", ""):
        lost = "of records with equal Kafka keys all but the newest are lost, and with them impressions or events"
        yield "note", f"broker: topic {topic!r} is compacted: {lost}: set its cleanup.policy to delete"
    with suppress(StreamError):
        kept_ms = kept_time_ms(kafka, topic)
        if kept_ms is not None and kept_ms < needed_ms:
            lost = f"broker: topic {topic!r} has lost its records from before the last {kept_ms / 1000:g} s"
            yield "problem", f"{lost}, and {reads}: raise its retention.bytes"


def kept_time_ms(kafka: KafkaConfig, topic: str) -> int | None:
    """How old the oldest record of a topic is, in the partition where it is youngest; None if none was deleted."""
    with Admin(kafka) as admin:
        found = admin.require_topic(topic)
        begins, ends = admin.beginning_offsets(found), admin.end_offsets(found)
    first = {
        partition: Position(found.id, begin + 1) for partition, begin in begins.items() if 0 < begin < ends[partition]
    }
    oldest_ms = [int(raw.record_ms_N[0]) for raw in read_range(kafka, {}, first) if len(raw)] if first else []
    return wall_ms() - max(oldest_ms) if oldest_ms else None
