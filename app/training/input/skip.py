"""Samples that are passed over instead of learned: sent to the dead letters once more as they came, and counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from springtide_client.system.clock import wall_ms

from stream.columns import DeadLetter
from stream.decode.decoder import Decoder
from stream.flow.dead_letter_producer import DeadLetterProducer
from stream.kafka.range_reader import read_range
from stream.positions import Partition, Position

if TYPE_CHECKING:
    from app.config.load import Config
    from app.training.state.training_state import TrainingState

REASON = "gate"
FLUSH_BYTES, FLUSH_SECONDS = 8 << 20, 30.0


@dataclass(frozen=True)
class Progress:
    """How far a stream was learned, and what of it could not be."""

    positions: Mapping[Partition, Position]
    samples: int
    dead_letters: Mapping[str, int]

    @staticmethod
    def of(state: "TrainingState") -> "Progress":
        return Progress(dict(state.positions), state.samples_trained, dict(state.dead_letters))

    def skipped_since(self, samples: int) -> dict[str, int]:
        """The counts of dead letters once everything learned since so many samples is one."""
        num_skipped = max(0, self.samples - samples)
        return {**self.dead_letters, REASON: self.dead_letters.get(REASON, 0) + num_skipped}


def send_to_dead_letters(
    config: "Config", letters: DeadLetterProducer, begin: Mapping[Partition, Position], stand: Progress, detail: str
) -> int:
    """Every sample between `begin` and the stand as a dead letter that the broker has; returns how many.

    Those that could not be read are there already, with reasons of their own. StreamError.
    """
    source, num_sent = config.source, 0
    decoder = Decoder(
        config.schema, max_message_bytes=source.max_message_bytes, max_future_seconds=source.max_future_seconds
    )
    for raw in read_range(source.kafka_config(), begin, stand.positions):
        unreadable = {letter.offset for letter in decoder.decode(raw, wall_ms()).dead_letters}
        samples = [n for n, offset in enumerate(raw.offset_N.tolist()) if offset not in unreadable]
        for n in samples:
            fields = int(raw.offset_N[n]), REASON, detail, raw.key(n), raw.value(n), int(raw.record_ms_N[n])
            letters.send([DeadLetter(raw.partition, *fields)])
            if letters.unacknowledged_bytes > FLUSH_BYTES:
                letters.flush(FLUSH_SECONDS)
        num_sent += len(samples)
    letters.flush(FLUSH_SECONDS)
    return num_sent
