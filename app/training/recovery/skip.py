"""Skips samples instead of learning them: they are sent to the dead letters as they came, and counted."""

from collections.abc import Mapping
from dataclasses import dataclass

from springtide.app.training.state.training_state import TrainingState
from springtide.stream.columns import DeadLetter
from springtide.stream.config import SourceConfig
from springtide.stream.dead_letter_producer import DeadLetterProducer
from springtide.stream.decode.decoder import Decoder
from springtide.stream.kafka.range_reader import read_range
from springtide.stream.positions import Partition, Position
from springtide_client.schema import Schema
from springtide_client.system.clock import wall_ms

REASON = "gate"
FLUSH_BYTES, FLUSH_SECONDS = 8 << 20, 30.0


@dataclass(frozen=True)
class Progress:
    """How far a stream was learned, and its dead letters so far by reason."""

    positions: Mapping[Partition, Position]
    samples: int
    dead_letters: Mapping[str, int]

    @staticmethod
    def of(state: TrainingState) -> "Progress":
        return Progress(dict(state.stream.positions), state.samples_trained, dict(state.stream.dead_letters))

    def dead_letters_after_skip(self, samples: int) -> dict[str, int]:
        """Return the counts once everything learned since that many samples is a dead letter."""
        num_skipped = max(0, self.samples - samples)
        return {**self.dead_letters, REASON: self.dead_letters.get(REASON, 0) + num_skipped}


def send_to_dead_letters(
    source: SourceConfig,
    schema: Schema,
    letters: DeadLetterProducer,
    begin: Mapping[Partition, Position],
    progress: Progress,
    detail: str,
) -> int:
    """Send every sample from `begin` up to `progress` as a dead letter that the broker has; returns their number.

    Records that cannot be decoded are left out: they are dead letters already. Raises StreamError.
    """
    num_sent = 0
    decoder = Decoder(schema, source)
    for raw in read_range(source.kafka_config(), begin, progress.positions):
        undecodable = {letter.offset for letter in decoder.decode(raw, wall_ms()).dead_letters}
        samples = [n for n, offset in enumerate(raw.offset_N.tolist()) if offset not in undecodable]
        for n in samples:
            fields = int(raw.offset_N[n]), REASON, detail, raw.key(n), raw.value(n), int(raw.record_ms_N[n])
            letters.send([DeadLetter(raw.partition, *fields)])
            if letters.unacknowledged_bytes > FLUSH_BYTES:
                letters.flush(FLUSH_SECONDS)
        num_sent += len(samples)
    letters.flush(FLUSH_SECONDS)
    return num_sent
