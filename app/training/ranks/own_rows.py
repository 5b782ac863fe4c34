"""Which rows of a log are in the range of this rank."""

# N rows
import numpy as np
import numpy.typing as npt

from springtide.app.training.ranks.ranks import Ranks
from springtide.embeddings.rows import TableDelta
from springtide.embeddings.sharding.key_ranges import are_of_rank


def is_own(features_N: npt.NDArray[np.uint16], ids_N: npt.NDArray[np.int64], ranks: Ranks) -> npt.NDArray[np.bool_]:
    """Return which keys are in this rank's range."""
    return are_of_rank(features_N, ids_N, ranks.rank, ranks.num_ranks)


def own_part(delta: TableDelta, ranks: Ranks) -> TableDelta:
    """Return what a version changes in this rank's range."""
    if ranks.is_alone:
        return delta
    rows = delta.where(is_own(delta.features, delta.ids, ranks))
    own_F = is_own(delta.forgotten_features, delta.forgotten_ids, ranks)
    return TableDelta.of(rows, delta.forgotten_features[own_F], delta.forgotten_ids[own_F])
