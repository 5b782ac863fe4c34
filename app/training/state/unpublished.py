"""Events since the previous version, which the next one records beside the state itself."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from springtide.app.version_log.items import ItemLayout
from springtide.app.version_log.read.replay_state import newest_items
from springtide.app.version_log.trainer_meta import SeekMeta
from springtide.stream.columns import Batch
from springtide_client.features import IdStrings
from springtide_client.format.records import CommandEntry
from springtide_client.format.tensors import Arrays

MAX_RECORD_TIMES = 64  # of a version
PENDING_ITEMS = 32  # batches whose items are merged at once


class Unpublished:
    """Gathers what happens between two versions; replaced by an empty one at each checkpoint."""

    def __init__(self, item_layout: ItemLayout | None = None) -> None:
        """`item_layout`: of a model with two towers, whose versions carry the items of their samples."""
        self.has_changes = False
        self._item_layout, self._items = item_layout, list[Arrays]()
        self.num_keys = 0  # of the batches, every occurrence, bins included
        self.num_crosses = 0  # that they looked up
        self.id_strings: list[IdStrings] = []
        self.commands: list[CommandEntry] = []
        self.seeks: dict[str, SeekMeta] = {}
        self._record_ms: list[npt.NDArray[np.int64]] = []

    def add_batch(self, batch: Batch, num_keys: int, num_crosses: int) -> None:
        """Note a learned batch, which may have no samples, and how many keys and crosses it looked up."""
        self.has_changes = True
        self.id_strings += batch.id_strings
        self.num_keys += num_keys
        self.num_crosses += num_crosses
        if self._item_layout is not None and len(batch):
            self._items.append(self._item_layout.encode(batch.features))
            if len(self._items) > PENDING_ITEMS:
                self._items = [newest_items(self._items)]
        if len(batch):
            self._record_ms.append(batch.record_ms_N)

    def items(self) -> Arrays | None:
        """Return the items of the batches, each as its newest sample has it; None if there are none."""
        items = [part for part in self._items if len(part["id"])]
        return newest_items(items) if items else None

    def add_command(self, entry: CommandEntry) -> None:
        """Note an executed command and its result."""
        self.has_changes = True
        self.commands.append(entry)

    def add_seek(self, partition: str, seek: SeekMeta) -> None:
        """Note a change of position that was requested on the command line."""
        self.has_changes = True
        self.seeks[partition] = seek

    def record_times(self) -> npt.NDArray[np.int64]:
        """Return the record times of the samples, ms."""
        return np.concatenate([np.zeros(0, np.int64), *self._record_ms])


def sample_times(parts: Sequence[npt.NDArray[np.int64]]) -> list[int]:
    """Return at most 64 of the times, picked evenly from the oldest to the newest."""
    if not parts:
        return []
    times = np.sort(np.concatenate(parts))
    picked = np.linspace(0, len(times) - 1, min(len(times), MAX_RECORD_TIMES)).round().astype(np.int64)
    return [int(time) for time in times[picked]]
