"""Numba's cache on disk misses changes in functions called from another file: stale caches are deleted here."""

from pathlib import Path


def remove_stale_cache(*folders: Path) -> int:
    """Delete the compiled functions under these folders if any source there is newer; return how many files."""
    sources = [path.stat().st_mtime for folder in folders for path in folder.rglob("*.py")]
    compiled = [path for folder in folders for path in folder.rglob("__pycache__/*.nb[ic]")]
    if not sources or not compiled or max(sources) <= min(path.stat().st_mtime for path in compiled):
        return 0
    for path in compiled:
        path.unlink(missing_ok=True)
    return len(compiled)
