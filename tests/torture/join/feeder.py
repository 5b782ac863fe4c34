"""Sends a traffic's records to a broker as time goes on, and can hold a partition back."""

from collections.abc import Iterable

import confluent_kafka
import numpy as np

from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.config import KafkaConfig
from tests.torture.join.traffic import NUM_PARTITIONS, Place, Traffic

FLUSH_SECONDS = 120.0


class Feeder:
    """`frontier_ms`: records that arrive up to then are sent, except those of partitions that are held back."""

    def __init__(self, traffic: Traffic, address: str) -> None:
        self.traffic, self.frontier_ms = traffic, 0
        self.held: set[Place] = set()
        self.num_sent = dict.fromkeys(traffic.rows, 0)
        with Admin(KafkaConfig(bootstrap_servers=address), patient=True) as admin:
            for topic, count in NUM_PARTITIONS.items():
                admin.ensure_topic(topic, num_partitions=count)
        # one request at a time: what is sent again stays in its order
        settings = {
            "bootstrap.servers": address,
            "linger.ms": 2,
            "log_level": 0,
            "max.in.flight.requests.per.connection": 1,
        }
        self._producer = confluent_kafka.Producer(settings)

    @property
    def is_done(self) -> bool:
        """True if everything was sent but what is held back."""
        return self.frontier_ms >= self.traffic.last_arrival_ms

    def advance(self, ms: int) -> None:
        """Let time go on, and send what arrives."""
        self.frontier_ms = min(self.frontier_ms + ms, self.traffic.last_arrival_ms)
        for place in self.traffic.rows.keys() - self.held:
            self._send_until(place, self.frontier_ms)
        assert self._producer.flush(FLUSH_SECONDS) == 0

    def end(self) -> None:
        """Send the rest, and the last record of every partition."""
        self.held.clear()
        self.advance(self.traffic.last_arrival_ms)
        for place in self.traffic.rows:
            self._send(place, [self.traffic.end_message(place[0])])
        assert self._producer.flush(FLUSH_SECONDS) == 0

    def _send_until(self, place: Place, ms: int) -> None:
        start = self.num_sent[place]
        stop = int(np.searchsorted(self.traffic.arrivals(place), ms, side="right"))
        if stop > start:
            self._send(place, self.traffic.messages(place, start, stop))
            self.num_sent[place] = stop

    def _send(self, place: Place, messages: Iterable[bytes]) -> None:
        topic, number = place
        for message in messages:
            while True:
                try:
                    self._producer.produce(topic, message, partition=number)
                    break
                except BufferError:
                    self._producer.poll(0.05)
