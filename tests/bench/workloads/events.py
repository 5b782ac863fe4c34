"""Events of about 200 bytes of JSON: a time, two ids of 32 to 40 bits, six smaller ids, six numbers, a label."""

import json
import random

import confluent_kafka

from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from springtide_client.schema import Schema

TOPIC = "events"
CATEGORICAL = ("user", "item", *(f"c{number}" for number in range(6)))
DENSE = tuple(f"f{number}" for number in range(6))
SCHEMA = Schema(labels=("click",), timestamp="ts", categorical=CATEGORICAL, dense=DENSE)
FIRST_MS = 1_700_000_000_000
NUM_DISTINCT = 50_000  # a topic repeats them


def make_events(number: int, *, seed: int = 0) -> list[bytes]:
    """Return messages as a producer's JSON encoder writes them, without spaces."""
    rng = random.Random(seed)
    events = []
    for n in range(number):
        large = {"user": rng.randrange(2**32, 2**40), "item": rng.randrange(2**32, 2**40)}
        small = {name: rng.randrange(100_000) for name in CATEGORICAL[2:]}
        numbers = {name: round(rng.random(), 3) for name in DENSE}
        event = {"ts": FIRST_MS + n, **large, **small, **numbers, "click": rng.randrange(2)}
        events.append(json.dumps(event, separators=(",", ":")).encode())
    return events


def fill_events(address: str, number: int) -> None:
    """Create the topic with one partition and produce `number` events, in the batches that librdkafka makes."""
    with Admin(KafkaConfig(bootstrap_servers=address), patient=True) as admin:
        admin.ensure_topic(TOPIC)
    events = make_events(min(number, NUM_DISTINCT))
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 2_000_000, "log_level": 0}
    )
    for n in range(number):
        producer.produce(TOPIC, events[n % len(events)], partition=0)
        if n % 10_000 == 0:
            producer.poll(0)
    if producer.flush(60.0):
        raise RuntimeError(f"the broker at {address} did not take all events")
