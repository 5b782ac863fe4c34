"""The folder for what a server may lose: rows moved out of memory, and snapshots."""

import shutil
import tempfile
from pathlib import Path

from app.errors import UserError


class CacheFolder:
    """A given folder, kept for the next process, or one of this process's own, removed by `close`."""

    def __init__(self, path: str | None) -> None:
        """UserError where the given one is none."""
        self._is_own = path is None
        self.path = Path(tempfile.mkdtemp(prefix="springtide-serve-")) if path is None else Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"[serve] cache_path = {path!r} cannot be used: {error.strerror}"
            raise UserError(f"{why}; give a folder, or leave it out for a temporary one") from None

    def remove_drafts(self, pid: int) -> None:
        """A process that shares the folder is gone: what it was writing is nobody's."""
        for path in self.path.glob(f".tmp-*-{pid}"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove an own folder; a file that is still read stays readable."""
        if self._is_own:
            shutil.rmtree(self.path, ignore_errors=True)
