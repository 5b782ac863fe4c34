"""What the demo's children say, one bounded file a child."""

import threading
from pathlib import Path

MAX_BYTES = 4 << 20


class OutputFiles:
    """`say` appends a line to <folder>/<name>.txt; a full file is moved to <name>.old.txt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Where a child's words are."""
        return self.folder / f"{name}.txt"

    def append(self, name: str, line: str) -> None:
        """Keep a line."""
        with self._lock:
            path = self.path(name)
            if path.exists() and path.stat().st_size > MAX_BYTES:
                path.replace(self.folder / f"{name}.old.txt")
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
