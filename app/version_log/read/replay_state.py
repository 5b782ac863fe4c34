"""What a run of versions changes in a base, in memory: the merger's and the tests' idea of replaying."""

import numpy as np
from springtide_client.format.records import Record
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import Base
from springtide_client.rows.layers import RowLayer, flatten_layers, push_layer, record_layer

from app.version_log.read.id_strings import id_strings_of
from app.version_log.read.model_replay_state import ModelReplayState


class ReplayState(ModelReplayState):
    """Versions applied one after the other over a base that stays as it is, rows and texts included."""

    def __init__(self, base: Base, *, window_samples: int) -> None:
        super().__init__(base, window_samples=window_samples)
        self.id_strings: list[Arrays] = []
        self.num_bytes = 0
        self._dim, self._state_width = base.manifest.table.dim, base.manifest.table.state_width
        self._layers: tuple[RowLayer, ...] = ()

    def apply(self, record: Record) -> None:
        """Count in the next version; its arrays are copied where they are kept, so that the record may go."""
        super().apply(record)
        tensors = record.tensors()
        self._layers = push_layer(self._layers, record_layer(tensors, self._dim, self._state_width))
        if (texts := id_strings_of(tensors)) is not None:
            self.id_strings.append({name: np.array(array) for name, array in texts.items()})
        self.num_bytes += record.num_bytes

    def changed_rows(self) -> RowLayer:
        """The changed rows and the marks of forgotten ones, as one layer with states."""
        flat = flatten_layers(self._layers, self._dim, self._state_width)
        self._layers = (flat,)
        return flat
