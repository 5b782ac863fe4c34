"""The texts of the values by which scores are split, as far as the stream has delivered them."""

from collections.abc import Iterable

from springtide_client.features import IdStrings
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

MAX_NAMES = 50_000  # of all features; others are shown by their ids


class SegmentNames:
    """Texts by feature and id. After a restart they come again as their values do."""

    def __init__(self, schema: Schema, by: Iterable[str] = ()) -> None:
        self._numbers = {name: schema.number(name) for name in by}
        self._names: dict[tuple[int, int], str] = {}

    def add(self, parts: Iterable[IdStrings]) -> None:
        """Keep the strings of the features that scores are split by."""
        if not self._numbers:
            return
        wanted = set(self._numbers.values())
        for part in parts:
            for number, row_id, text in zip(part.features.tolist(), part.ids.tolist(), part.strings, strict=True):
                if number in wanted and len(self._names) < MAX_NAMES:
                    self._names[number, row_id] = text

    def name_of(self, feature: str, row_id: int) -> str:
        """Return the text of a value; a number's digits, also of one whose text is not known."""
        if row_id == MISSING_ID:
            return "(missing)"
        return self._names.get((self._numbers[feature], row_id), str(row_id))

    def clear(self) -> None:
        """Forget all texts."""
        self._names.clear()
