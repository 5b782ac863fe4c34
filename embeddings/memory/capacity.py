"""How many rows fit into a number of bytes."""

from dataclasses import dataclass, replace

from springtide.embeddings.config import Admission, TableConfig
from springtide.embeddings.memory.eviction import MIN_GHOSTS
from springtide.kernels.ops import Ops
from springtide_client.system.settings import format_size

PART = 16  # the overflow area has a sixteenth of the slots, the evicted dirty rows a sixteenth of its bytes
OVERFLOW_KEY_BYTES = 64  # key, score, free list and hash places of an overflow row, at most
DIRTY_LIST_BYTES, GHOST_BYTES = 8, 2


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Numbers of rows that a table holds in memory. The overflow area grows while one batch needs more."""

    num_slots: int
    num_overflow: int
    num_evicted_dirty: int

    @staticmethod
    def of_rows(num_rows: int, *, num_evicted_dirty: int | None = None) -> "Capacity":
        """This many rows, and room for as many evicted dirty rows unless given."""
        if num_rows < 1:
            raise ValueError(f"a table needs at least 1 row, not {num_rows}")
        evicted_dirty = num_rows if num_evicted_dirty is None else num_evicted_dirty
        return Capacity(num_slots=num_rows, num_overflow=num_rows // PART, num_evicted_dirty=evicted_dirty)

    def in_buckets_of(self, width: int) -> "Capacity":
        """At least as many rows, in whole buckets of `width` slots; at least one bucket in the overflow area."""
        num_slots = -(-self.num_slots // width) * width
        return replace(self, num_slots=num_slots, num_overflow=max(width, self.num_overflow))

    @staticmethod
    def of_bytes(config: TableConfig, ops: Ops, *, tracked: bool = True) -> "Capacity":
        """The most rows that fit into `device_bytes` with all they need. ValueError if not even one bucket fits."""
        sketch = sketch_bytes(config)
        total = max(0, config.device_bytes - sketch)
        row_bytes = 2 + 8 + 4 * (config.dim + config.layout.state_width) + 16
        num_evicted_dirty = total // PART // row_bytes if tracked else 0
        slot_bytes = ops.slot_bytes(config.layout)
        each = (slot_bytes + DIRTY_LIST_BYTES + GHOST_BYTES) + -(-(slot_bytes + OVERFLOW_KEY_BYTES) // PART)
        width = ops.width
        fixed = width * (slot_bytes + OVERFLOW_KEY_BYTES) + 8 * MIN_GHOSTS
        num_slots = (total - num_evicted_dirty * row_bytes - fixed) // each // width * width
        if num_slots < width:
            raise ValueError(
                f"device_bytes = {format_size(config.device_bytes)} is too small for a bucket of {width} rows "
                f"of {each} bytes" + (f" and the admission sketch of {format_size(sketch)}" if sketch else "")
            )
        return Capacity(
            num_slots=num_slots,
            num_overflow=max(width, num_slots // PART),
            num_evicted_dirty=max(1, num_evicted_dirty),
        )


def sketch_bytes(config: TableConfig) -> int:
    """The bytes of the admission sketch that a table begins with; 0 if every id is admitted at once."""
    admission = Admission.of(config.admission)
    counts = [policy.min_count or 1 for policy in config.features.values()]
    return admission.sketch_bytes if max([admission.min_count, *counts]) > 1 else 0
