"""The tier under memory: what a table asks of it."""

# U unique keys, N rows
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from embeddings.rows import Int64Array, Rows, UInt16Array

ABSENT, ROW, TOMBSTONE = 0, 1, 2  # nothing is known of the key; its row; it was forgotten, whatever lies below


@dataclass(frozen=True)
class SpilledRows:
    """An answer row by row; `rows` means something only where the kind is ROW."""

    kinds: npt.NDArray[np.uint8]
    rows: Rows


class Spill(Protocol):
    """Rows that left memory. A find sees every write made before it, also those still on their way to the disk.

    Finds may be called from any threads, beside each other and beside one writer. SpillError where the disk fails for
    longer than the spill's patience; what waits is kept, and a later call succeeds once the disk does.
    """

    keeps_rows: bool  # False: what is written is forgotten

    def write(self, rows: Rows, num_new: int) -> None:
        """Keeps copies of these rows, so many of them not known to be here, in the newest generation.

        May wait for room.
        """
        ...

    def add_tombstones(self, features_N: UInt16Array, ids_N: Int64Array) -> None:
        """Keeps in the newest generation that these keys were forgotten."""
        ...

    def find(self, features_U: UInt16Array, ids_U: Int64Array) -> SpilledRows: ...

    def read_all(self) -> Rows:
        """Every row that a find would give, once."""
        ...

    def open_generation(self) -> int:
        """Begins a new generation; the number of the one that it closes."""
        ...

    def destroy_generations(self, upto: int) -> None:
        """Lets go of the generations up to this number, as soon as no find needs them: a mapped base covers them."""
        ...

    def purge(self, horizons: dict[int, int]) -> None:
        """Rows of these features last seen before their horizon may go, in the background.

        A find may give them until then. A generation is cleared once a tenth of what was written to it lies below.
        """
        ...

    def stall_reason(self) -> str:
        """Why somebody has been waiting for it for a while; empty where nobody has. For any thread, at once."""
        ...

    def is_purging(self) -> bool:
        """Whether a purge is still under way."""
        ...

    def last_seen_quantile(self, fraction: float) -> int | None:
        """A last-seen below which about this fraction of the stored rows lies; None where there are none."""
        ...

    def num_rows(self) -> int:
        """Rows kept, nearly: one that is forgotten still counts until its generation goes."""
        ...

    def num_bytes(self) -> int:
        """Bytes on disk, and on their way there. Looks at every file: not for every batch."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of memory that are not on their way to the disk."""
        ...

    def counters(self) -> dict[str, int]:
        """What happened so far, by name."""
        ...

    def close(self) -> None: ...
