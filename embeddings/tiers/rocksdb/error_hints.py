"""Hints for error messages: what to do about a failing disk."""

OTHER_PROCESS = "another process has it open: give every trainer a disk_path of its own"
RESTART = "restart the trainer: it reads the spilled rows back from the log"
HINTS = {
    "no space left": "free some space on its disk, or lower disk_bytes",
    "file too large": "raise the limit on the size of files, or lower disk_bytes",
    "lock hold": OTHER_PROCESS,
    "lock file": OTHER_PROCESS,
    "read-only file system": "make disk_path writable",
    "permission denied": "make disk_path writable",
    "vanished": RESTART,
    "a record of": RESTART,
    "corruption": f"check the disk, and {RESTART}",
    "no rocksdb": "install rocksdb-py, or configure no spill",
}


def with_hint(why: str) -> str:
    """The reason, with a hint if there is one for it."""
    return next((f"{why} - {hint}" for sign, hint in HINTS.items() if sign in why.lower()), why)
