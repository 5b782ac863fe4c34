"""The log's base as the table sees it: where rows are found that have left memory."""

import numpy as np
import numpy.typing as npt
from springtide_client.base import Base

from embeddings.source import FoundRows


class BaseRows:
    """A RowSource over a mapped base."""

    def __init__(self, base: Base) -> None:
        self.base = base

    def find(self, features_U: npt.NDArray[np.uint16], ids_U: npt.NDArray[np.int64]) -> FoundRows:
        found = self.base.find_states(features_U, ids_U)
        return FoundRows(found.found, found.values, found.states, found.counts, found.last_seen)
