"""How far the stream is learned for good: the positions of the newest version that is known to be durable."""

from collections import deque
from collections.abc import Mapping

from stream.positions import Partition, Position


class CommittedOffsets:
    """Remembers each version's positions until a durable one is at or behind it."""

    def __init__(self, positions: Mapping[Partition, Position]) -> None:
        """`positions`: those of the log's end when learning began."""
        self.offsets = _offsets(positions)
        self._awaited: deque[tuple[int, dict[Partition, int]]] = deque()

    def on_published(self, version: int, positions: Mapping[Partition, Position]) -> None:
        """The version stands there in the stream."""
        self._awaited.append((version, _offsets(positions)))

    def advance(self, durable: int) -> bool:
        """Versions up to this one are durable; whether `newest` is another by that."""
        has_moved = False
        while self._awaited and self._awaited[0][0] <= durable:
            self.offsets, has_moved = self._awaited.popleft()[1], True
        return has_moved


def _offsets(positions: Mapping[Partition, Position]) -> dict[Partition, int]:
    return {partition: position.offset for partition, position in positions.items()}
