"""The spill of a table that has none: an evicted row is forgotten, and only that is remembered."""

# U unique keys, N rows
import numpy as np

from embeddings.rows import Int64Array, Rows, UInt16Array
from embeddings.spill import ABSENT, MARK, SpilledRows

MAX_MARKS = 1_000_000
MARK_BYTES = 200  # a tuple of two integers in a dictionary, nearly


class NoSpill:
    """Keeps the marks of forgotten keys, the newest million, so that a base below does not bring them back."""

    keeps_rows = False

    def __init__(self, dim: int, state_width: int) -> None:
        self.dim, self.state_width = dim, state_width
        self.generation = 0
        self._marks: dict[tuple[int, int], int] = {}  # key -> generation, oldest first

    def write(self, rows: Rows, num_new: int) -> None:
        self.mark(rows.features, rows.ids)

    def mark(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        for key in zip(features_N.tolist(), ids_N.tolist(), strict=True):
            self._marks.pop(key, None)
            self._marks[key] = self.generation
        while len(self._marks) > MAX_MARKS:
            del self._marks[next(iter(self._marks))]

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> SpilledRows:
        kinds = np.full(len(ids_U), ABSENT, np.uint8)
        if self._marks:
            keys = zip(features_U.tolist(), ids_U.tolist(), strict=True)
            kinds[[u for u, key in enumerate(keys) if key in self._marks]] = MARK
        return SpilledRows(kinds, Rows.empty(len(ids_U), self.dim, self.state_width))

    def read_all(self) -> Rows:
        return Rows.empty(0, self.dim, self.state_width)

    def open_generation(self) -> int:
        self.generation += 1
        return self.generation - 1

    def destroy_generations(self, upto: int) -> None:
        self._marks = {key: generation for key, generation in self._marks.items() if generation > upto}

    def purge(self, horizons: dict[int, int]) -> None:
        """There is nothing to purge: marks go with their generation."""

    def purging(self) -> bool:
        return False

    def coldest(self, fraction: float) -> int | None:
        return None

    def num_rows(self) -> int:
        return 0

    def num_bytes(self) -> int:
        return 0

    def memory_bytes(self) -> int:
        return MARK_BYTES * len(self._marks)

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._marks.clear()
