"""A spill that can be made to fail, like a full or vanished disk."""

from typing import Any

from springtide.embeddings.errors import SpillError
from springtide.embeddings.tiers.interface import Spill


class FlakySpill:
    """Forwards calls to `spill`; while `broken`, those that concern rows raise SpillError and change nothing."""

    keeps_rows = True

    def __init__(self, spill: Spill) -> None:
        self.spill, self.broken = spill, False

    def write(self, *arguments: Any) -> None:
        self._fail()
        self.spill.write(*arguments)

    def has_room(self, *arguments: Any) -> bool:
        return not self.broken and self.spill.has_room(*arguments)

    def add_tombstones(self, *arguments: Any) -> None:
        self._fail()
        self.spill.add_tombstones(*arguments)

    def find(self, *arguments: Any) -> Any:
        self._fail()
        return self.spill.find(*arguments)

    def read_all(self) -> Any:
        self._fail()
        return self.spill.read_all()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spill, name)

    def _fail(self) -> None:
        if self.broken:
            raise SpillError("the disk is gone")
