"""The verbs in plain Python, one key at a time: what every twin must equal. Slow, and short enough to be believed."""

# K keys of a batch, U unique keys, D dimension
from typing import Any

import numpy as np
from springtide_client.first_values import first_values
from springtide_client.keys import mix64

MASK = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN = 0x9E37_79B9_7F4A_7C15

Key = tuple[int, int]


def mixed(key: Key) -> int:
    return mix64((key[1] & MASK) ^ (key[0] * GOLDEN & MASK))


def unique(keys: list[Key], times: list[int]) -> tuple[list[Key], list[int], list[int], list[int]]:
    """Unique keys in order of first occurrence, inverse, occurrences, newest times."""
    found: dict[Key, int] = {}
    inverse = [found.setdefault(key, len(found)) for key in keys]
    occurrences = [inverse.count(u) for u in range(len(found))]
    newest = [max(t for t, v in zip(times, inverse, strict=True) if v == u) for u in range(len(found))]
    return list(found), inverse, occurrences, newest


class Index:
    """Buckets as lists of {key: [priority, tick]}; which keys stand where, and which must go."""

    def __init__(self, num_slots: int, width: int, num_overflow: int) -> None:
        self.width, self.num_overflow = width, num_overflow
        self.buckets: list[dict[Key, list[int]]] = [{} for _ in range(num_slots // width)]
        self.overflow: dict[Key, list[int]] = {}

    def bucket(self, key: Key) -> dict[Key, list[int]]:
        return self.buckets[(mixed(key) >> 32) * len(self.buckets) >> 32]

    def home(self, key: Key) -> dict[Key, list[int]] | None:
        """What holds the key now."""
        return next((home for home in (self.bucket(key), self.overflow) if key in home), None)

    def find_or_insert(self, keys: list[Key], tick: int, protect_from: int) -> tuple[list[Key], list[Key], list[Key]]:
        """New keys, victims, keys without any room."""
        missing = [key for key in keys if self.home(key) is None]
        for key in keys:
            if home := self.home(key):
                home[key][1] = tick
        new, victims, homeless = [], [], []
        for key in missing:
            bucket = self.bucket(key)
            weak = self.ordered(bucket, protect_from)
            if len(bucket) == self.width and weak:
                victims.append(weak[0])
                del bucket[weak[0]]
            if len(bucket) < self.width:
                bucket[key] = [0, tick]
            elif len(self.overflow) < self.num_overflow:
                self.overflow[key] = [0, tick]
            else:
                homeless.append(key)
                continue
            new.append(key)
        return new, victims, homeless

    def ordered(self, home: dict[Key, list[int]], protect_from: int) -> list[Key]:
        """The keys with a tick below protect_from, those that go first first."""
        weak = [(score, mixed(key), key) for key, score in home.items() if score[1] < protect_from]
        return [key for _, _, key in sorted(weak)]

    def lowest(self, feature: int, num: int, protect_from: int) -> list[Key]:
        everywhere = {key: score for bucket in self.buckets for key, score in bucket.items()}
        return [key for key in self.ordered(everywhere, protect_from) if feature in (-1, key[0])][:num]

    def set_priority(self, key: Key, priority: int) -> None:
        if home := self.home(key):
            home[key][0] = min(max(priority, -(2**23)), 2**23 - 1)

    def erase(self, key: Key) -> None:
        self.bucket(key).pop(key, None)
        self.overflow.pop(key, None)

    def keys(self) -> set[Key]:
        return {key for bucket in self.buckets for key in bucket} | set(self.overflow)


class Sketch:
    """Blocks as an age and 60 counters each."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks: list[tuple[int, list[int]]] = [(0, [0] * 60) for _ in range(num_blocks)]

    def block(self, word: int) -> int:
        return (word >> 32) * len(self.blocks) >> 32

    def at_age(self, word: int, age: int) -> tuple[int, list[int]]:
        own, counters = self.blocks[self.block(word)]
        return max(own, age), [counter >> max(0, age - own) for counter in counters]

    def counters(self, word: int) -> list[int]:
        return [(word >> 8 * i & 255) * 60 >> 8 for i in range(4)]

    def estimate(self, word: int, age: int) -> int:
        _, counters = self.at_age(word, age)
        return min(counters[at] for at in self.counters(word))

    def add(self, word: int, occurrences: int, age: int) -> int:
        estimate = min(255, self.estimate(word, age) + occurrences)
        own, counters = self.at_age(word, age)
        for at in self.counters(word):
            counters[at] = max(counters[at], estimate)
        self.blocks[self.block(word)] = (own, counters)
        return estimate

    def bytes(self, block: int) -> bytes:
        age, counters = self.blocks[block]
        return age.to_bytes(4, "little") + bytes(counters)


class Ghosts:
    """One place for each key, and the one that left last stands there."""

    def __init__(self, num: int) -> None:
        self.places: list[tuple[int, int] | None] = [None] * num

    def add(self, word: int, tick: int) -> None:
        self.places[(word >> 32) * len(self.places) >> 32] = (max(1, word & 0xFFFF_FFFF), tick)

    def count(self, word: int, since_tick: int) -> int:
        place = (word >> 32) * len(self.places) >> 32
        ghost = self.places[place]
        if ghost is None or ghost[0] != max(1, word & 0xFFFF_FFFF) or ghost[1] < since_tick:
            return 0
        self.places[place] = None
        return 1


class Row:
    """One row: its value, its state and what is known of it."""

    def __init__(self, key: Key, *, dim: int, seed: int, scale: float) -> None:
        features, ids = np.array([key[0]], np.uint16), np.array([key[1]], np.int64)
        self.value: Any = first_values(features, ids, dim=dim, seed=seed, scale=scale)[0]
        self.state, self.count, self.last_seen = np.float32(0), 0, 0

    def update(self, grads: list[Any], last_seen: int, lr: float, eps: float) -> None:
        """Sums the gradients in their order, then one step of row-wise Adagrad, in float32 all the way."""
        total = grads[0].copy()
        for grad in grads[1:]:
            total += grad
        self.count, self.last_seen = self.count + len(grads), max(self.last_seen, last_seen)
        squares = sum_of_squares(total)
        if np.isfinite(squares):
            self.state = np.float32(self.state + squares / np.float32(len(total)))
            self.value = self.value - np.float32(lr) / (np.sqrt(self.state) + np.float32(eps)) * total


def sum_of_squares(total: Any) -> np.float32:
    """In eight lanes, added pairwise."""
    lanes = [np.float32(0)] * 8
    with np.errstate(over="ignore", invalid="ignore"):
        for d, element in enumerate(total):
            lanes[d % 8] = np.float32(lanes[d % 8] + element * element)
        a, b, c, e = (np.float32(lanes[j] + lanes[j + 4]) for j in range(4))
        return np.float32((a + c) + (b + e))
