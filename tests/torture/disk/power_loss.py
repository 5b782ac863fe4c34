"""Makes a folder what a kill or a power loss at some instant may have left of it."""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.torture.disk.fsync_recorder import FsyncRecorder, SyncedState

Key = tuple[int, int]


@dataclass(frozen=True)
class KeptFile:
    """How much of a file is left, and what follows it."""

    number: int
    size: int
    tail: bytes = b""


Tree = dict[str, "KeptFile | Tree"]


@dataclass(frozen=True)
class LossProfile:
    """How likely what was not fsynced is kept: names, bytes; and how likely a cut file ends in rubbish."""

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
    """Planned at one instant, made later: all that happens in between is undone."""

    def __init__(self, recorder: FsyncRecorder, folder: Path, taste: LossProfile, draw: random.Random) -> None:
        self._root, self._folder, self._taste, self._draw = Path(recorder.root), folder, taste, draw
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
        for name, key in self._settle(synced, present).items():
            if key[1] < 0:
                tree[name] = self._cut(key, sizes.get(key))
            elif key in names_of:
                tree[name] = self._plan(folder / names_of[key])
            else:
                tree[name] = self._lost_folder(key)
        return tree

    def _settle(self, synced: dict[str, Key], present: dict[str, Key]) -> dict[str, Key]:
        """Each name made, renamed or removed since the folder's fsync is so on the disk, or is not yet."""
        result = dict(synced)
        old = {key: name for name, key in synced.items()}
        new = {key: name for name, key in present.items()}
        for key in sorted({*old, *new}):
            before, after = old.get(key), new.get(key)
            if before == after or self._draw.random() >= self._taste.names:
                continue
            if after is None and before in present:
                continue  # another was renamed over it: its own turn decides
            if before is not None and result.get(before) == key:
                del result[before]
            if after is not None:
                result[after] = key
        return result

    def _cut(self, key: Key, size: int | None) -> KeptFile:
        synced = self._synced.files.get(key[0], 0)
        size = synced if size is None else size
        if synced >= size or self._taste is KILL:
            return KeptFile(key[0], size)
        more = round((size - synced) * self._draw.random()) if self._draw.random() < self._taste.bytes else 0
        kept = synced + more
        rubbish = self._draw.random() < self._taste.garbage
        return KeptFile(key[0], kept, self._draw.choice([bytes, self._draw.randbytes])(size - kept) if rubbish else b"")

    def _lost_folder(self, key: Key) -> Tree:
        """One that was removed or renamed away since, as it was synced."""
        entries = self._synced.folders.get(key, {})
        return {
            name: self._cut(inner, None) if inner[1] < 0 else self._lost_folder(inner)
            for name, inner in entries.items()
        }

    def num_bytes_lost(self, pattern: str) -> int:
        """What files of such a name will lose. One that was unlinked and comes back gains nothing: it was not lost."""
        lost = 0
        for path in self._root.rglob(pattern):
            kept: KeptFile | Tree | None = self.tree
            for name in path.relative_to(self._root).parts:
                kept = kept.get(name) if isinstance(kept, dict) else None
            lost += max(0, path.stat().st_size - (kept.size if isinstance(kept, KeptFile) else 0))
        return lost

    def make(self) -> None:
        """The folder as planned, all of it on the disk; nobody may be at work in it."""
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
                path.touch()  # its name was synced, nothing of it ever was
                continue
            os.link(stored, path)
            if path.stat().st_size > kept.size or kept.tail:
                os.truncate(path, kept.size)
                with path.open("ab") as file:
                    file.write(kept.tail)
