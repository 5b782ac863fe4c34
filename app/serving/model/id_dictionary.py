"""The texts behind hashed ids: those of the base, found in its file, and those of the versions since."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from springtide_client.follow.follower import LogSource, RecordCursor
from springtide_client.format.records import Record, Tip
from springtide_client.log.base import Base


class TextTap:
    """A log whose records' texts are noted on their way to the follower, for views do not keep them."""

    def __init__(self, source: LogSource, on_record: Callable[[Record], None] | None = None) -> None:
        """`on_record` hears of each record too."""
        self._source = source
        self._on_record = on_record
        self.has_base = False  # when it was last looked for
        self._lock = threading.Lock()
        self._texts: dict[tuple[int, int], str] = {}
        self._by_version: deque[tuple[int, list[tuple[int, int]]]] = deque()
        self._features: set[int] = set()

    def newest_base(self) -> Path | None:
        """The source's."""
        found = self._source.newest_base()
        self.has_base = found is not None
        return found

    def bases_before(self, than: Path) -> list[Path]:
        """The source's."""
        return self._source.bases_before(than)

    def local_base(self) -> Path | None:
        """The source's."""
        return self._source.local_base()

    def follow(self, after: Tip | None) -> RecordCursor:
        """The source's cursor, its records noted."""
        return _TapCursor(self._source.follow(after), self.note)

    def let_go(self, base_number: int) -> None:
        """Drop what a mapped base has: every text of a version up to it."""
        with self._lock:
            while self._by_version and self._by_version[0][0] <= base_number:
                for key in self._by_version.popleft()[1]:
                    self._texts.pop(key, None)

    def has_texts(self, base: Base, number: int) -> bool:
        """Whether any id of the feature is the hash of a text."""
        if number in self._features:
            return True
        texts = base.id_strings
        if texts is None:
            return False
        first, end = np.searchsorted(texts["feature"], np.array([number, number + 1]))
        return bool(first < end)

    def find(self, base: Base, number: int, row_id: int) -> str | None:
        """The text of an id; None where the id is a number."""
        text = self._texts.get((number, row_id))
        return text if text is not None else find_string_in_base(base, number, row_id)

    def note(self, record: Record) -> None:
        """Keep the record's texts."""
        if self._on_record is not None:
            self._on_record(record)
        tensors = record.tensors()
        if "texts.id" not in tensors:
            return
        texts = decode_strings(tensors["texts.offsets"], tensors["texts.bytes"])
        keys = list(zip(tensors["texts.feature"].tolist(), tensors["texts.id"].tolist(), strict=True))
        with self._lock:
            new = [key for key in keys if key not in self._texts]
            self._texts.update(zip(keys, texts, strict=True))
            self._features.update(feature for feature, _ in keys)
            if new:
                self._by_version.append((record.number, new))


class _TapCursor:
    def __init__(self, inner: RecordCursor, note: Callable[[Record], None]) -> None:
        self._inner = inner
        self._note = note

    def read(self) -> Sequence[Record]:
        records = self._inner.read()
        for record in records:
            self._note(record)
        return records

    def close(self) -> None:
        self._inner.close()


def find_string_in_base(base: Base, number: int, row_id: int) -> str | None:
    """The text of an id in the base's file, which is sorted by (feature, id)."""
    texts = base.id_strings
    if texts is None:
        return None
    first, end = np.searchsorted(texts["feature"], np.array([number, number + 1])).tolist()
    place = first + int(np.searchsorted(texts["id"][first:end], row_id))
    if place >= end or texts["id"][place] != row_id:
        return None
    start, stop = texts["offsets"][place : place + 2].tolist()
    return str(texts["bytes"][start:stop].tobytes(), "utf-8")


def decode_strings(offsets: npt.NDArray[np.int64], content: npt.NDArray[np.uint8]) -> list[str]:
    """The texts that one tensor of bytes holds end to end."""
    joined = content.tobytes()
    return [joined[start:end].decode() for start, end in pairwise(offsets.tolist())]
