"""Which offsets to commit to Kafka: those of the newest version that is durable."""

from collections import deque
from collections.abc import Mapping

from springtide.stream.positions import Partition, Position


class CommittedOffsets:
    """Remembers the positions of each version until that version, or a later one, is durable."""

    def __init__(self, positions: Mapping[Partition, Position]) -> None:
        """`positions`: those of the end of the log when learning began."""
        self.offsets = _offsets(positions)
        self._pending: deque[tuple[int, dict[Partition, int]]] = deque()

    def on_published(self, version: int, positions: Mapping[Partition, Position]) -> None:
        """Note the positions that a version holds."""
        self._pending.append((version, _offsets(positions)))

    def advance(self, durable: int) -> bool:
        """Versions up to this one are durable. Returns True if `offsets` may have changed."""
        has_moved = False
        while self._pending and self._pending[0][0] <= durable:
            self.offsets, has_moved = self._pending.popleft()[1], True
        return has_moved


def _offsets(positions: Mapping[Partition, Position]) -> dict[Partition, int]:
    return {partition: position.offset for partition, position in positions.items()}
