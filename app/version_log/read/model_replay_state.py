"""What a run of versions says beside rows and texts: dense net, optimizer, scores, admission sketch, orders, meta."""

from copy import deepcopy

import msgspec
import numpy as np
from springtide_client.format.records import Record, Tip, VersionMeta
from springtide_client.format.tensors import Array, Arrays
from springtide_client.log.base import Base

from app.scores.progressive import ProgressiveScores

MAX_COMMANDS = 10_000  # a base remembers so many executed orders: their files are long gone when more have come
SCORES = "state.scores."


class ModelReplayState:
    """Versions applied one after the other over a base that stays as it is."""

    def __init__(self, base: Base, *, window_samples: int) -> None:
        self.base = base
        self.tip: Tip = base.tip
        self._meta = base.manifest.meta
        self._orders = list(self._meta.executed_commands)
        self._sketch = base.sketch
        arrays = {**base.dense, **base.trainer_state}
        self._arrays = {name: array for name, array in arrays.items() if not name.startswith(SCORES)}
        self._scores = ProgressiveScores(base.manifest.decode_schema().labels, window_samples)
        self._scores.restore(_scores_of(arrays))

    def apply(self, record: Record) -> None:
        """Count in the next version; its arrays are copied where they are kept, so that the record may go."""
        tensors = record.tensors()
        if record.meta.restores:
            self._arrays = {}
            self._scores.restore(_scores_of(tensors))
        else:
            self._scores.apply(_scores_of(tensors))
        for name, array in tensors.items():
            if name.startswith(("dense.", "state.")) and not name.startswith(SCORES):
                self._arrays[name] = np.array(array)
        self.apply_sketch_and_meta(record)

    def apply_sketch_and_meta(self, record: Record) -> None:
        """Of the next version only what it counted and its meta: all else stays as it was."""
        self._count_in(record.tensors(), record.meta.sketch_blocks)
        self._meta = record.meta
        self._orders += record.meta.executed_commands
        self.tip = record.tip

    def copy(self) -> "ModelReplayState":
        """The same, to go its own way; arrays are not copied, for none is written into."""
        twin = ModelReplayState.__new__(ModelReplayState)
        twin.__dict__.update(self.__dict__)
        twin._arrays, twin._orders = dict(self._arrays), list(self._orders)
        twin._scores = deepcopy(self._scores)
        twin._sketch = None if self._sketch is None else np.array(self._sketch)
        return twin

    @property
    def meta(self) -> VersionMeta:
        """The last version's, with the orders of all: what was executed must not be executed again."""
        return msgspec.structs.replace(self._meta, executed_commands=self._orders[-MAX_COMMANDS:])

    @property
    def arrays(self) -> Arrays:
        """`dense.*` and `state.*` as a base holds them."""
        return self._arrays | {f"{SCORES}{name}": array for name, array in self._scores.state().items()}

    @property
    def sketch(self) -> Array | None:
        """The admission sketch; None where nothing was ever counted."""
        return self._sketch

    def _count_in(self, tensors: Arrays, num_blocks: int) -> None:
        if num_blocks != self._meta.sketch_blocks:
            self._sketch = None  # another sketch, begun anew
        if not len(tensors.get("sketch.block", ())):
            return
        if self._sketch is None:
            self._sketch = np.zeros((num_blocks, tensors["sketch.bytes"].shape[1]), np.uint8)
        elif not self._sketch.flags.writeable:
            self._sketch = np.array(self._sketch)  # it was the base's
        self._sketch[tensors["sketch.block"]] = tensors["sketch.bytes"]


def _scores_of(arrays: Arrays) -> Arrays:
    return {name.removeprefix(SCORES): array for name, array in arrays.items() if name.startswith(SCORES)}
