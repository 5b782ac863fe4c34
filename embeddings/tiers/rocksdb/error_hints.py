"""What to do about a failing disk, by what it says."""

ANOTHER = "another process has it open: give every trainer a disk_path of its own"
AGAIN = "start again: what was spilled is read back from the log"
HINTS = {
    "no space left": "free some space on its disk, or lower disk_bytes",
    "file too large": "raise the limit on the size of files, or lower disk_bytes",
    "lock hold": ANOTHER,
    "lock file": ANOTHER,
    "read-only file system": "make disk_path writable",
    "permission denied": "make disk_path writable",
    "vanished": AGAIN,
    "a record of": AGAIN,
    "corruption": f"check the disk, and {AGAIN}",
    "no rocksdb": "install rocksdb-py, or do without a spill",
}


def with_hint(why: str) -> str:
    """The reason, and what to do about it where that is known."""
    return next((f"{why} - {advice}" for sign, advice in HINTS.items() if sign in why.lower()), why)
