"""What a run of versions changes in a base, in memory: the merger's and the tests' idea of replaying."""

import msgspec
import numpy as np
from springtide_client.base import Base
from springtide_client.layers import RowLayer, flatten_layers, push_layer, record_layer
from springtide_client.records import Record, Tip, VersionMeta
from springtide_client.tensors import Array, Arrays

from app.training.scores import Scores
from app.versions.texts import record_texts

MAX_ORDERS = 10_000  # a base remembers so many executed orders: their files are long gone when more have come
SCORES = "state.scores."


class Overlay:
    """Versions applied one after the other over a base that stays as it is."""

    def __init__(self, base: Base, *, window_samples: int) -> None:
        self.base = base
        self.tip: Tip = base.tip
        self.texts: list[Arrays] = []
        self.num_bytes = 0
        self._dim, self._state_width = base.manifest.table.dim, base.manifest.table.state_width
        self._meta = base.manifest.meta
        self._orders = list(self._meta.orders)
        self._sketch = base.sketch
        self._layers: tuple[RowLayer, ...] = ()
        arrays = {**base.dense, **base.trainer_state}
        self._arrays = {name: array for name, array in arrays.items() if not name.startswith(SCORES)}
        self._scores = Scores(base.manifest.read_schema().labels, window_samples)
        self._scores.restore(_scores_of(arrays))

    def apply(self, record: Record) -> None:
        """Count in the next version; its arrays are copied where they are kept, so that the record may go."""
        tensors = record.tensors()
        self._layers = push_layer(self._layers, record_layer(tensors, self._dim, self._state_width))
        for name, array in tensors.items():
            if name.startswith(("dense.", "state.")) and not name.startswith(SCORES):
                self._arrays[name] = np.array(array)
        self._scores.apply(_scores_of(tensors))
        self._count_in(tensors, record.meta.sketch_blocks)
        if (texts := record_texts(tensors)) is not None:
            self.texts.append({name: np.array(array) for name, array in texts.items()})
        self._meta = record.meta
        self._orders += record.meta.orders
        self.tip = record.tip
        self.num_bytes += record.num_bytes

    @property
    def meta(self) -> VersionMeta:
        """The last version's, with the orders of all: what was executed must not be executed again."""
        return msgspec.structs.replace(self._meta, orders=self._orders[-MAX_ORDERS:])

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

    def flat(self) -> RowLayer:
        """The changed rows and the marks of forgotten ones, as one layer with states."""
        flat = flatten_layers(self._layers, self._dim, self._state_width)
        self._layers = (flat,)
        return flat


def _scores_of(arrays: Arrays) -> Arrays:
    return {name.removeprefix(SCORES): array for name, array in arrays.items() if name.startswith(SCORES)}
