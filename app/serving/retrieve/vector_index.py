"""The nearest of many vectors by comparing all of them."""

# I vectors, O dimension, M candidates
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]


class ExactIndex:
    """Compares all vectors: one matrix product, and a partition of its results."""

    is_exact = True

    def __init__(self, vectors_IO: FloatArray) -> None:
        self.vectors_IO = vectors_IO

    def nearest(self, query_O: FloatArray, num: int) -> Places:
        """Return the places of the `num` vectors with the largest dot products, in any order; fewer if there are."""
        return largest(self.vectors_IO @ query_O, num)


def largest(scores_I: FloatArray, num: int) -> Places:
    """Return the places of the largest scores, in any order."""
    if num >= len(scores_I):
        return np.arange(len(scores_I))
    return np.argpartition(scores_I, len(scores_I) - num)[len(scores_I) - num :]
