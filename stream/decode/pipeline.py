"""From raw records to the columns that a source delivers: decode, drop erased ids, label with the topic's id."""

import threading
from dataclasses import replace

from springtide.stream.columns import Columns
from springtide.stream.decode.decoder import Decoder
from springtide.stream.decode.erasure_filter import ErasureFilter
from springtide.stream.records import RawRecords
from springtide_client.system.clock import wall_ms


class DecodePipeline:
    """Decodes the records of one source. decode() runs in one thread; reset_emitted_strings() may be called by any."""

    def __init__(self, decoder: Decoder, erasure_filter: ErasureFilter | None = None) -> None:
        self._decoder = decoder
        self._erasure_filter = erasure_filter
        self._is_reset_requested = threading.Event()

    def reset_emitted_strings(self) -> None:
        """Emit the string of every id again at its next sight in the records decoded from now on."""
        self._is_reset_requested.set()

    def decode(self, raw: RawRecords, topic_id: str) -> Columns:
        """The records as columns without erased ids; never raises for what a record holds."""
        erasures = self._erasure_filter
        is_replay_needed = erasures is not None and erasures.needs_string_replay(raw.partition, raw.end)
        if is_replay_needed or self._is_reset_requested.is_set():
            self._is_reset_requested.clear()
            self._decoder.seen_strings.clear()
        columns = self._decoder.decode(raw, wall_ms())
        if erasures is not None:
            if is_replay_needed:
                erasures.on_string_replay()
            columns = erasures.apply(columns, raw.partition, topic_id)
        return replace(columns, topic_ids={raw.partition: topic_id})
