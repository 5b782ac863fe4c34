"""Requests to a retriever, from the bytes of a request to those of the response, and what they took."""

# Q queries, I items, M candidates
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from springtide.app.serving.retrieve.ranking import RetrievedItem, RetrieveResponse, find_items
from springtide.app.serving.retrieve.retriever import Retriever, recall
from springtide.app.serving.retrieve.routes import decode_retrieve_request
from springtide.app.serving.retrieve.served_items import MIN_CANDIDATES, ServedItems
from springtide.app.serving.retrieve.vector_index import InvertedFile, largest
from springtide_client.encode import encode_instances
from springtide_client.features import Features

K, NUM_IN_BATCH = 10, 32
User = dict[str, Any]


class Answer(NamedTuple):
    """The best items, and how many milliseconds they took."""

    ids: list[int]
    ms: float


def ask(retriever: Retriever, user: User, **more: Any) -> Answer:
    """Ask for a user's best items."""
    body = msgspec.json.encode({"user": user, "k": K, **more})
    began = time.perf_counter()
    request = decode_retrieve_request(body, max_k=1_000, max_excluded=1_000)
    served = retriever.require()
    items = [RetrievedItem(*pair) for pair in find_items(retriever, served, request).pairs()]
    msgspec.json.encode(RetrieveResponse(items, served.towers.view.version))
    took_ms = 1000 * (time.perf_counter() - began)
    return Answer([item.id for item in items], took_ms)


def features_of(retriever: Retriever, users: Sequence[User]) -> list[Features]:
    """Return the encoded users."""
    part = retriever.require().towers.template.user_part
    return [encode_instances(part, [user]) for user in users]


def percentiles(times_ms: Sequence[float]) -> dict[str, float]:
    """Return some."""
    return {f"p{p}": round(float(np.percentile(times_ms, p)), 3) for p in (50, 99)}


def compare(retriever: Retriever, users: Sequence[User]) -> dict[str, Any]:
    """Ask the index and exact search in turn: one user after the other, and in batches."""
    for user in users[:3]:
        ask(retriever, user), ask(retriever, user, exact=True)
    exact, found = [], []
    for user in users:
        exact.append(ask(retriever, user, exact=True))
    for user in users:
        found.append(ask(retriever, user))
    served, features = retriever.require(), features_of(retriever, users)
    same = statistics.mean(len({*a.ids} & {*b.ids}) / len(a.ids) for a, b in zip(exact, found, strict=True))
    result: dict[str, Any] = {
        "items": len(served.base),
        "recall_at_10": round(recall(served, [served.towers.user_inputs(user) for user in features]), 4),
        "same_ids_at_10": round(same, 4),  # of equally good items any may be found
        "exact_ms": percentiles([answer.ms for answer in exact]),
        "found_ms": percentiles([answer.ms for answer in found]),
    }
    result["times_faster"] = round(result["exact_ms"]["p50"] / result["found_ms"]["p50"], 1)
    if isinstance(served.base.index, InvertedFile):
        result["vectors_compared"] = served.base.index.num_to_scan
        exact_ms, found_ms = (in_batches(served, features, search) for search in (all_of_each, indexed_of_each))
        result |= {"exact_ms_a_user_in_batches": exact_ms, "found_ms_a_user_in_batches": found_ms}
        result["times_faster_in_batches"] = round(exact_ms / found_ms, 1)
    return result


Search = Callable[[ServedItems, np.ndarray], np.ndarray]


def all_of_each(served: ServedItems, queries_QO: np.ndarray) -> np.ndarray:
    """One matrix product for all, then the best of each, (Q, M)."""
    scores_QI = queries_QO @ served.base.vectors_IO.T
    return np.array([largest(scores_I, MIN_CANDIDATES) for scores_I in scores_QI])


def indexed_of_each(served: ServedItems, queries_QO: np.ndarray) -> np.ndarray:
    """Return the candidates of the index, (Q, M)."""
    index = served.base.index
    assert isinstance(index, InvertedFile)
    return index.nearest_of_each(queries_QO, MIN_CANDIDATES)


def in_batches(served: ServedItems, users: Sequence[Features], search: Search) -> float:
    """Return the median over batches of milliseconds a user, from features to ids and scores."""
    took = []
    for start in range(0, len(users) - NUM_IN_BATCH + 1, NUM_IN_BATCH):
        batch = Features.concatenate(users[start : start + NUM_IN_BATCH])
        began = time.perf_counter()
        queries_QO = served.towers.users(served.towers.user_inputs(batch))
        for query_O, places_M in zip(queries_QO, search(served, queries_QO), strict=True):
            scores_M, _ = served.towers.scores(served.base.columns, places_M, query_O)
            best = np.argsort(-scores_M)[:K]
            served.base.ids_I[places_M[best]].tolist()
        took.append(1000 * (time.perf_counter() - began) / NUM_IN_BATCH)
    return round(statistics.median(took), 4)
