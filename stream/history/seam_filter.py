"""Which side of the seam a record is on: its own event time decides, wherever it was found."""

# N samples
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.stream.columns import Columns, DeadLetter
from springtide.stream.decode.formats import DecodeConfig
from springtide_client.errors import EncodeError
from springtide_client.schema import Schema
from springtide_client.targets import parse_event_ms


class SeamFilter:
    """Keeps the records of one side, and counts the others.

    A record without a time (0) is on both sides: the files' rows are learned, and the topic's records from the offsets
    on at which reading begins.
    """

    def __init__(self, schema: Schema, config: DecodeConfig, until_ms: int | None) -> None:
        """`until_ms`: the seam; None keeps everything."""
        self.until_ms = until_ms
        self.num_left_out = 0
        self._schema, self._format, self._codec = schema, config.message_format, config.open_codec()

    def before(self, columns: Columns) -> Columns:
        """The samples and dead letters from before the seam: those of the files."""
        return self._side(columns, is_before=True)

    def after(self, columns: Columns) -> Columns:
        """The samples and dead letters from the seam on: those of the topic."""
        return self._side(columns, is_before=False)

    def _side(self, columns: Columns, *, is_before: bool) -> Columns:
        if self.until_ms is None:
            return columns
        letters = columns.dead_letters
        is_kept_N = self._keeps(columns.event_ms_N, is_before)
        if letters:
            is_kept_letter = self._keeps(np.array(list(map(self._event_ms, letters)), np.int64), is_before)
            letters = tuple(letter for letter, is_kept in zip(letters, is_kept_letter, strict=True) if is_kept)
        self.num_left_out += int(np.count_nonzero(~is_kept_N)) + len(columns.dead_letters) - len(letters)
        kept = columns if is_kept_N.all() else columns.take(np.flatnonzero(is_kept_N))
        return replace(
            kept,
            dead_letters=letters,
            end_offsets=columns.end_offsets,
            id_strings=columns.id_strings,
            raw=columns.raw,
        )

    def _keeps(self, event_ms: npt.NDArray[np.int64], is_before: bool) -> Any:
        assert self.until_ms is not None
        return (event_ms == 0) | ((event_ms < self.until_ms) == is_before)

    def _event_ms(self, letter: DeadLetter) -> int:
        """Return the event time where it can be read, else the record's; 0 where there is neither."""
        name = self._schema.timestamp
        try:
            record = self._format.load_object(self._codec, letter.value or b"")
            return letter.record_ms if name is None else parse_event_ms(name, record.get(name))
        except EncodeError:
            return letter.record_ms
