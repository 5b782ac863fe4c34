"""Turn a folder into what a kill or a power loss at some instant may have left of it."""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.torture.disk.fsync_recorder import FsyncRecorder, SyncedState

Key = tuple[int, int]


@dataclass(frozen=True)
class KeptFile:
    """A file after the loss: its inode number, how many bytes are left, and what follows them."""

    number: int
    size: int
    tail: bytes = b""


Tree = dict[str, "KeptFile | Tree"]


@dataclass(frozen=True)
class LossProfile:
    """Probabilities that names and bytes without fsync are kept, and that a truncated file ends in garbage."""

    names: float
    bytes: float
    garbage: float = 0.0


KILL = LossProfile(1.0, 1.0)
LOSS_PROFILES = (
    LossProfile(0.0, 0.0),
    LossProfile(1.0, 0.0),
    LossProfile(0.0, 1.0),
    LossProfile(0.5, 0.5, 0.3),
    LossProfile(0.8, 0.8, 0.5),
)


class CrashedDisk:
    """A disk after a crash: planned at one instant, made later; everything in between is undone."""

    def __init__(self, recorder: FsyncRecorder, folder: Path, profile: LossProfile, draw: random.Random) -> None:
        self._root, self._folder, self._taste, self._draw = Path(recorder.root), folder, profile, draw
        self._synced = SyncedState(folder)
        self._recorder = recorder
        self.tree = self._plan(self._root)

    def _plan(self, folder: Path) -> Tree:
        present: dict[str, Key] = {}
        sizes: dict[Key, int] = {}
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                present[entry.name] = self._synced.key(entry.stat(follow_symlinks=False).st_ino, True)
            else:
                number, size = self._recorder.pin(entry.path)
                present[entry.name] = key = self._synced.key(number, False)
                sizes[key] = size
        synced = self._synced.folders.get(self._synced.key(folder.stat().st_ino, True), {})
        names_of = {key: name for name, key in present.items()}
        tree: Tree = {}
        for name, key in self._surviving_names(synced, present).items():
            if key[1] < 0:
                tree[name] = self._truncate(key, sizes.get(key))
            elif key in names_of:
                tree[name] = self._plan(folder / names_of[key])
            else:
                tree[name] = self._lost_folder(key)
        return tree

    def _surviving_names(self, synced: dict[str, Key], present: dict[str, Key]) -> dict[str, Key]:
        """Choose for each name made, renamed or removed since the folder's fsync whether the change is on the disk."""
        result = dict(synced)
        old = {key: name for name, key in synced.items()}
        new = {key: name for name, key in present.items()}
        for key in sorted({*old, *new}):
            before, after = old.get(key), new.get(key)
            if before == after or self._draw.random() >= self._taste.names:
                continue
            if after is None and before in present:
                continue  # another file was renamed over it: that file's own choice decides
            if before is not None and result.get(before) == key:
                del result[before]
            if after is not None:
                result[after] = key
        return result

    def _truncate(self, key: Key, size: int | None) -> KeptFile:
        synced = self._synced.files.get(key[0], 0)
        size = synced if size is None else size
        if synced >= size or self._taste is KILL:
            return KeptFile(key[0], size)
        more = round((size - synced) * self._draw.random()) if self._draw.random() < self._taste.bytes else 0
        kept = synced + more
        garbage = self._draw.random() < self._taste.garbage
        return KeptFile(key[0], kept, self._draw.choice([bytes, self._draw.randbytes])(size - kept) if garbage else b"")

    def _lost_folder(self, key: Key) -> Tree:
        """Return a folder that was removed or renamed since its fsync, as it was then."""
        entries = self._synced.folders.get(key, {})
        return {
            name: self._truncate(inner, None) if inner[1] < 0 else self._lost_folder(inner)
            for name, inner in entries.items()
        }

    def num_bytes_lost(self, pattern: str) -> int:
        """Return how many bytes files of such names will lose; an unlinked file that is restored counts as 0."""
        lost = 0
        for path in self._root.rglob(pattern):
            kept: KeptFile | Tree | None = self.tree
            for name in path.relative_to(self._root).parts:
                kept = kept.get(name) if isinstance(kept, dict) else None
            lost += max(0, path.stat().st_size - (kept.size if isinstance(kept, KeptFile) else 0))
        return lost

    def make(self) -> None:
        """Make the folder as planned, all of it fsynced; no process may use it meanwhile."""
        trash = self._folder / "trash"
        trash.mkdir()
        for path in list(self._root.iterdir()):
            path.rename(trash / path.name)
        self._build(self._root, self.tree)
        shutil.rmtree(trash)
        (self._folder / "journal").write_bytes(b"")
        shutil.rmtree(self._folder / "store")
        (self._folder / "store").mkdir()
        self._recorder.record_all()

    def _build(self, folder: Path, tree: Tree) -> None:
        for name, kept in tree.items():
            path = folder / name
            if not isinstance(kept, KeptFile):
                path.mkdir()
                self._build(path, kept)
                continue
            stored = self._folder / "store" / str(kept.number)
            if not stored.exists():
                path.touch()  # its name was fsynced, its content never was
                continue
            os.link(stored, path)
            if path.stat().st_size > kept.size or kept.tail:
                os.truncate(path, kept.size)
                with path.open("ab") as file:
                    file.write(kept.tail)
