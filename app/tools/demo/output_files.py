"""The output of the demo's children, in one bounded file per child."""

import threading
from pathlib import Path

MAX_BYTES = 4 << 20


class OutputFiles:
    """Appends lines to <folder>/<name>.txt; a full file is renamed to <name>.old.txt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Return the file of a child."""
        return self.folder / f"{name}.txt"

    def append(self, name: str, line: str) -> None:
        """Append a line to the file of a child."""
        with self._lock:
            path = self.path(name)
            if path.exists() and path.stat().st_size > MAX_BYTES:
                path.replace(self.folder / f"{name}.old.txt")
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
