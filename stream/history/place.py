"""Where in a history a position is: the topic id of such a position is a text that names the file and the seam."""

import zlib
from typing import NamedTuple

from springtide.stream.errors import HistoryError
from springtide.stream.history.files import HistoryFile
from springtide.stream.positions import FINISHED


class HistoryPlace(NamedTuple):
    """A file of a history, and what is the same in all of them: which history it is, and its seam."""

    until_ms: int | None  # the seam; None: the files' rows are learned whatever their time
    history: str  # tells this history from others
    number: int = 0  # of the file, in the files' order
    first_row: int = 0  # of the file: as many as the files before it have
    fingerprint: str = ""
    name: str = ""
    is_finished: bool = False  # behind all files

    def topic_id(self) -> str:
        """Return the text; `parse` inverts it."""
        history = f"files-{self.history}-{'all' if self.until_ms is None else self.until_ms}"
        if self.is_finished:
            return f"{history}/{FINISHED}"
        return f"{history}/{self.number}/{self.first_row}/{self.fingerprint}/{self.name}"

    @staticmethod
    def parse(topic_id: str) -> "HistoryPlace":
        """Return the place that a topic id names; HistoryError if it names none."""
        try:
            history, _, where = topic_id.partition("/")
            _, name, until = history.split("-")
            until_ms = None if until == "all" else int(until)
            if where == FINISHED:
                return HistoryPlace(until_ms, name, is_finished=True)
            number, first_row, fingerprint, file = where.split("/", 3)
            return HistoryPlace(until_ms, name, int(number), int(first_row), fingerprint, file)
        except ValueError:
            raise HistoryError(f"{topic_id!r} is no place in a history: another program has written it") from None

    @staticmethod
    def first(file: HistoryFile, until_ms: int | None) -> "HistoryPlace":
        """Return the place of the first row of all."""
        fingerprint = file.fingerprint()
        history = f"{zlib.crc32(f'{file.name} {fingerprint}'.encode()):08x}"
        return HistoryPlace(until_ms, history, fingerprint=fingerprint, name=file.name)
