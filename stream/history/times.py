"""The event times of files: when each begins, which orders them, and when the last one ends."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from springtide.stream.history.config import HistoryConfig
from springtide.stream.history.files import HistoryFile, find_files
from springtide_client.errors import EncodeError
from springtide_client.schema import Schema
from springtide_client.targets import parse_event_ms


def ordered_files(config: HistoryConfig, schema: Schema) -> list[HistoryFile]:
    """Return the files in the order in which they are learned. Raises HistoryError, InputFileError."""
    files = find_files(config)
    if config.order == "time":
        return sorted(files, key=lambda file: (first_event_ms(file, schema), file.name))
    return files


def first_event_ms(file: HistoryFile, schema: Schema) -> int:
    """Return the event time of the file's first row that has one; 0 where none has."""
    return next((min(times[:1]) for times in event_times(file, schema) if times), 0)


def last_event_ms(files: Sequence[HistoryFile], schema: Schema) -> int:
    """Return the latest event time of the last file that has one; 0 where none has. Reads all of that file."""
    for file in reversed(files):
        if newest := max((max(times) for times in event_times(file, schema) if times), default=0):
            return newest
    return 0


def event_times(file: HistoryFile, schema: Schema) -> Iterator[list[int]]:
    """Yield the event times of the rows that have one, in ms, some thousands at a time."""
    name = schema.timestamp
    if name is None:
        return
    row = msgspec.defstruct("Row", [("time", Any, None)], rename={"time": name})
    decode = msgspec.json.Decoder(row).decode
    for messages in file.open().messages(columns=[name]):
        times: list[int] = []
        for message in messages:
            try:
                time_ms = parse_event_ms(name, decode(message).time)  # type: ignore[attr-defined]
            except (EncodeError, msgspec.MsgspecError, ValueError, RecursionError):
                continue
            if time_ms:
                times.append(time_ms)
        yield times
