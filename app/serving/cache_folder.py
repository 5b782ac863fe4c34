"""The folder for files that a server can recreate: rows moved out of memory, and snapshots."""

import shutil
import tempfile
from pathlib import Path

from springtide.app.errors import UserError


class CacheFolder:
    """The configured folder, kept for the next process, or a temporary one, removed by `close`."""

    def __init__(self, path: str | None) -> None:
        """Raises UserError if the configured path is not usable as a folder."""
        self._is_temporary = path is None
        self.path = Path(tempfile.mkdtemp(prefix="springtide-serve-")) if path is None else Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"[serve] cache_path = {path!r} cannot be used: {error.strerror}"
            raise UserError(f"{why}; set it to a folder, or leave it out to use a temporary one") from None

    def remove_drafts(self, pid: int) -> None:
        """Remove the unfinished files of a worker that has exited."""
        for path in self.path.glob(f".tmp-*-{pid}"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove a temporary folder; a file that is open stays readable."""
        if self._is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)
