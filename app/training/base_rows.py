"""The log's base as the table sees it: where rows are found that have left memory."""

# U unique keys
import numpy as np
import numpy.typing as npt
from springtide_client.base import Base
from springtide_client.keys import mix_keys

from embeddings.source import FoundRows
from kernels.cpu import image


class BaseRows:
    """A RowSource over a mapped base; searched and read without the GIL, for recalls run beside the learning."""

    def __init__(self, base: Base) -> None:
        self.base = base
        base.expect_finds()

    def find(self, features_U: npt.NDArray[np.uint16], ids_U: npt.NDArray[np.int64]) -> FoundRows:
        rows, states = self.base.rows, self.base.states
        rows_U = image.find_rows(rows.mixed, rows.feature, mix_keys(features_U, ids_U), features_U)
        found = FoundRows(
            rows_U >= 0,
            np.zeros((len(ids_U), rows.value.shape[1]), np.float32),
            np.zeros((len(ids_U), states.shape[1]), np.float32),
            np.zeros(len(ids_U), np.int64),
            np.zeros(len(ids_U), np.int64),
        )
        columns = rows.value, states, rows.count, rows.last_seen
        image.copy_rows(*columns, rows_U, found.values, found.states, found.counts, found.last_seen)
        return found
