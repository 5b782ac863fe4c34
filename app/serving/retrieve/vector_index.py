"""The nearest of many vectors: by comparing all of them, or by HNSW (Malkov and Yashunin 2016) of the usearch library.

Both are immutable once made. HNSW is approximate, and is worth its memory and time from some ten thousand vectors on.
"""

# I vectors, O dimension, M candidates
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]

# users are no items: a search starts far from its goal, and must look wider than among items
CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 64, 512
CHUNK_VECTORS = 512  # added at once: other work of the thread waits so long
MISSING_USEARCH = "usearch is not installed: pip install 'springtide[retrieval]'"


class VectorIndex(Protocol):
    """Vectors of length 1 that can be searched by dot product."""

    is_exact: bool

    def nearest(self, query_O: FloatArray, num: int) -> Places:
        """Return the places of the `num` vectors with the largest dot products, in any order; fewer if there are."""


class ExactIndex:
    """Compares all vectors."""

    is_exact = True

    def __init__(self, vectors_IO: FloatArray) -> None:
        self.vectors_IO = vectors_IO

    def nearest(self, query_O: FloatArray, num: int) -> Places:
        return largest(self.vectors_IO @ query_O, num)


class HnswIndex:
    """A graph in which close vectors are neighbors."""

    is_exact = False

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def nearest(self, query_O: FloatArray, num: int) -> Places:
        found: Places = self._graph.search(query_O, num).keys.astype(np.intp)
        return found


def has_usearch() -> bool:
    """Return True if the library of the extra `retrieval` is installed."""
    try:
        import usearch.index  # noqa: F401
    except ImportError:
        return False
    return True


def build_hnsw(vectors_IO: FloatArray, *, between: Callable[[], bool]) -> HnswIndex | None:
    """Build the graph of these vectors; `between` is called now and then and ends it by returning False: then None."""
    from usearch.index import Index

    graph = Index(
        ndim=vectors_IO.shape[1],
        metric="ip",
        dtype="f32",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
        expansion_search=EXPANSION_SEARCH,
    )
    for places in _chunks(len(vectors_IO)):
        graph.add(places, vectors_IO[places[0] : places[-1] + 1], threads=1)
        if not between():
            return None
    return HnswIndex(graph)


def largest(scores_I: FloatArray, num: int) -> Places:
    """Return the places of the largest scores, in any order."""
    if num >= len(scores_I):
        return np.arange(len(scores_I))
    return np.argpartition(scores_I, len(scores_I) - num)[len(scores_I) - num :]


def _chunks(num: int) -> Iterator[npt.NDArray[np.uint64]]:
    for start in range(0, num, CHUNK_VECTORS):
        yield np.arange(start, min(num, start + CHUNK_VECTORS), dtype=np.uint64)
