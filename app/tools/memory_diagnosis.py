"""Compares `[memory] delay_seconds` with how long after their event time the records of the topic came."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from springtide.app.config.load import Config
from springtide.stream.decode.decoder import Decoder
from springtide.stream.errors import StreamError
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide.stream.kafka.range_reader import read_range
from springtide.stream.positions import Position
from springtide_client.array_types import Int64Array
from springtide_client.memory import least_tick_ms
from springtide_client.system.clock import wall_ms

SAMPLE_RECORDS = 10_000  # the newest of each partition that are looked at
FEWEST_RECORDS = 100  # of which a percentile says anything

Found = Iterator[tuple[Literal["ok", "note", "problem"], str]]


def check_delay(config: Config, address: str) -> Found:
    """Compare the delay with that of 99 % of the newest records, and say what to set: the state and the text."""
    remembered = config.schema.remembered
    if not remembered or config.join is not None:  # a join's impressions are known when their window ends
        return
    try:
        delay_ms_N = newest_delays(config, KafkaConfig(bootstrap_servers=address, options=config.source.kafka))
    except StreamError as error:
        yield "note", f"memory: how late records come cannot be said: {error}"
        return
    if len(delay_ms_N) < FEWEST_RECORDS:
        yield "note", "memory: too few records to say how long after their event time they come"
        return
    half_ms, most_ms = np.percentile(delay_ms_N, [50, 99])
    text = f"memory: records come {half_ms / 1000:,.1f} s after their event time, 99 % within {most_ms / 1000:,.1f} s"
    given_ms, knows_records = remembered[0].delay_ms, remembered[0].known == "record"
    if most_ms <= given_ms:
        yield "ok", f"{text}; [memory] delay_seconds is {given_ms / 1000:g}"
        return
    what = (
        "later ones find that what their sample should read is gone"
        if knows_records
        else "training reads in others' records what no server knew yet"
    )
    # within a tick only servers that are nearly a tick behind have not what training reads
    state: Literal["note", "problem"] = "note" if most_ms <= given_ms + remembered[0].tick_ms else "problem"
    yield state, f"{text}, and [memory] delay_seconds is {given_ms / 1000:g}: {what}; {advice(config, most_ms)}"


def advice(config: Config, delay_ms: float) -> str:
    """Return what to set so that such a delay is kept to."""
    one = config.schema.remembered[0]
    seconds = int(-(-delay_ms // 1000))
    tick_ms = least_tick_ms(1000 * seconds, one.lateness_ms)
    if one.tick_ms >= tick_ms:
        return f"set it to {seconds} or more"
    return f"set it to {seconds} or more, and tick_seconds to {tick_ms / 1000:g} or more"


def newest_delays(config: Config, kafka: KafkaConfig) -> Int64Array:
    """Return how long after its event time each of the newest records was appended, in ms; none without a time."""
    decoder = Decoder(config.schema.recorded, config.source)
    with Admin(kafka) as admin:
        ends = admin.end_offsets(topic := admin.require_topic(config.source.topic))
    end = {partition: Position(topic.id, offset) for partition, offset in ends.items()}
    begin = {partition: at._replace(offset=max(0, at.offset - SAMPLE_RECORDS)) for partition, at in end.items()}
    found = [np.zeros(0, np.int64)]
    for raw in read_range(kafka, begin, end):
        columns = decoder.decode(raw, wall_ms())
        has_time_N = columns.record_ms_N > 0
        found.append((columns.record_ms_N - columns.event_ms_N)[has_time_N])
    return np.maximum(np.concatenate(found), 0)
