from collections import Counter, OrderedDict

import numpy as np
import pytest

from tests.bench.table.exact_caches import exact_hits, numbered


def lru_hits(stream: list[int], capacity: int) -> int:
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for key in stream:
        if key in held:
            hits += 1
            held.move_to_end(key)
            continue
        if len(held) == capacity:
            held.popitem(last=False)
        held[key] = None
    return hits


def lfu_hits(stream: list[int], capacity: int) -> int:
    counts: Counter[int] = Counter()
    last: dict[int, int] = {}
    held: set[int] = set()
    hits = 0
    for now, key in enumerate(stream):
        counts[key] += 1
        if key in held:
            hits += 1
        else:
            if len(held) == capacity:
                held.remove(min(held, key=lambda other: (counts[other], last[other])))
            held.add(key)
        last[key] = now
    return hits


@pytest.mark.parametrize("capacity", [1, 3, 10, 100])
def test_exact_hits_are_those_of_plain_python(capacity: int) -> None:
    stream = np.random.default_rng(capacity).zipf(1.3, 4000) % 60
    numbers = numbered(stream)
    assert exact_hits("lru", numbers, capacity) == lru_hits(stream.tolist(), capacity)
    assert exact_hits("lfu", numbers, capacity) == lfu_hits(stream.tolist(), capacity)


def test_an_empty_stream_has_no_hits() -> None:
    assert exact_hits("lru", np.empty(0, np.int64), 4) == 0
