"""The ops in plain Python, one key at a time: what every backend must equal. Slow and short."""

# K keys of a batch, U unique keys, D dimension
import math
from typing import Any

import numpy as np

from springtide.kernels.types import OptimizerStep
from springtide_client.keys import mix64
from springtide_client.rows.initial_values import initial_values

MASK = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN = 0x9E37_79B9_7F4A_7C15
LEARNED_SEED = 0x5EED_0001

Key = tuple[int, int]


def key_hash(key: Key) -> int:
    return mix64((key[1] & MASK) ^ (key[0] * GOLDEN & MASK))


def unique(keys: list[Key], times: list[int]) -> tuple[list[Key], list[int], list[int], list[int]]:
    """Unique keys in order of first occurrence, inverse, occurrences, newest times."""
    found: dict[Key, int] = {}
    inverse = [found.setdefault(key, len(found)) for key in keys]
    occurrences = [inverse.count(u) for u in range(len(found))]
    newest = [max(t for t, v in zip(times, inverse, strict=True) if v == u) for u in range(len(found))]
    return list(found), inverse, occurrences, newest


class Index:
    """Buckets as lists of {key: [priority, tick]}; which keys are where, and which are evicted."""

    def __init__(self, num_slots: int, width: int, num_overflow: int) -> None:
        self.width, self.num_overflow = width, num_overflow
        self.buckets: list[dict[Key, list[int]]] = [{} for _ in range(num_slots // width)]
        self.overflow: dict[Key, list[int]] = {}

    def bucket(self, key: Key) -> dict[Key, list[int]]:
        return self.buckets[(key_hash(key) >> 32) * len(self.buckets) >> 32]

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
        weak = [(score, key_hash(key), key) for key, score in home.items() if score[1] < protect_from]
        return [key for _, _, key in sorted(weak)]

    def lowest(self, feature: int, num: int, protect_from: int) -> list[Key]:
        everywhere = {key: score for bucket in self.buckets for key, score in bucket.items()}
        return [key for key in self.ordered(everywhere, protect_from) if feature in (-1, key[0])][:num]

    def set_priority(self, key: Key, priority: int) -> None:
        if home := self.home(key):
            home[key][0] = min(max(priority, -(2**23)), 2**23 - 1)

    def moved(self, num_slots: int) -> tuple["Index", list[Key]]:
        """The index with so many slots, and the keys that find no room there."""
        other, crowded = Index(num_slots, self.width, self.num_overflow), []
        other.overflow = self.overflow
        for bucket in self.buckets:
            for key, score in bucket.items():
                other.bucket(key)[key] = score
        for bucket in other.buckets:
            for key in self.ordered(bucket, 2**40)[: max(0, len(bucket) - self.width)]:
                crowded.append(key)
                del bucket[key]
        return other, crowded

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
    """One place per key; a newer entry replaces an older one."""

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
    """One row: its value, its state and what is known of it. All arithmetic is numpy's in float32."""

    def __init__(self, key: Key, *, dim: int, seed: int, scale: float, dtype: str = "float32", width: int = 1) -> None:
        """`width`: of the states, wide columns included."""
        features, ids = np.array([key[0]], np.uint16), np.array([key[1]], np.int64)
        first = initial_values(features, ids, dim=dim, seed=seed, scale=scale)[0]
        self.value: Any = first if dtype == "float32" else nearest(first)
        self.key, self.dtype, self.count, self.last_seen = key, dtype, 0, 0
        self.states = np.zeros(width, np.float32)

    @property
    def state(self) -> np.float32:
        return np.float32(self.states[0])

    def update(self, grads: list[Any], last_seen: int, step: OptimizerStep) -> None:
        """Sums the gradients in their order, then one step."""
        g = grads[0].copy()
        with np.errstate(over="ignore", invalid="ignore"):
            for grad in grads[1:]:
                g += grad
        self.count, self.last_seen = self.count + len(grads), max(self.last_seen, last_seen)
        squares = sum_of_squares(g)
        if not np.isfinite(squares):
            return
        if step.clip_norm > 0 and np.sqrt(squares) > np.float32(step.clip_norm):
            g = g * (np.float32(step.clip_norm) / np.sqrt(squares))
            squares = sum_of_squares(g)
        row = self.value * np.float32(1 - step.lr * step.weight_decay)
        value = self.moved(row, g, squares, step)
        if self.dtype == "bfloat16":
            value = stochastic(value, key_hash(self.key), step.seed, self.count)
        self.value = value

    def touch(self, occurrences: int, last_seen: int) -> None:
        """Seen, and nothing learned by an optimizer."""
        self.count, self.last_seen = self.count + occurrences, max(self.last_seen, last_seen)

    def write_learned(self, value: Any, states: Any, seed: int) -> None:
        """Take what was learned elsewhere."""
        if self.dtype == "bfloat16":
            value = stochastic(value, key_hash(self.key), seed + LEARNED_SEED, self.count)
        self.value, self.states = value, states.copy()

    def moved(self, row: Any, g: Any, squares: np.float32, step: OptimizerStep) -> Any:
        """The new value; the states take theirs."""
        f, dim = np.float32, len(row)
        lr, eps = f(step.lr), f(step.eps)
        if step.name == "sgd":
            return row - g * lr
        if step.name == "rowwise-adagrad":
            self.states[0] += squares / f(dim)
            return row - g * (lr / (np.sqrt(self.states[0]) + eps))
        if step.name == "adagrad":
            self.states[:dim] += g * g
            return row - g * lr / (np.sqrt(self.states[:dim]) + eps)
        first, second = self.states[:dim], self.states[dim : 2 * dim]
        if step.name == "adam":
            self.states[2 * dim] += f(1)
            t = float(self.states[2 * dim])
            first[:] = first * f(step.beta1) + g * f(1 - step.beta1)
            second[:] = second * f(step.beta2) + g * g * f(1 - step.beta2)
            correction1, correction2 = (f(1 / (1 - math.pow(beta, t))) for beta in (step.beta1, step.beta2))
            return row - first * (lr * correction1) / (np.sqrt(second * correction2) + eps)
        assert step.name == "ftrl"
        l1, per_lr = f(step.l1), f(1 / step.lr)
        if not second.any():
            first[:] = f(0) - row * (f(step.beta) * per_lr + f(step.l2)) - np.sign(row) * l1
        more = second + g * g
        first[:] = first + g - (np.sqrt(more) - np.sqrt(second)) * per_lr * row
        second[:] = more
        with np.errstate(invalid="ignore"):  # 0 / 0 where z is 0
            moved = (np.sign(first) * l1 - first) / ((np.sqrt(more) + f(step.beta)) * per_lr + f(step.l2))
        return np.where(np.abs(first) <= l1, f(0), moved)


def sum_of_squares(numbers: Any) -> np.float32:
    """In lanes, so many as the row has numbers, 8 to 64; the upper half is added to the lower until one is left."""
    num = next((num for num in (8, 16, 32) if len(numbers) <= num), 64)
    padded = np.zeros(-(-len(numbers) // num) * num, np.float32)
    padded[: len(numbers)] = numbers
    lanes = np.zeros(num, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in padded.reshape(-1, num):
            lanes = lanes + part * part
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.float32(lanes[0])


def nearest(numbers: Any) -> Any:
    """To bfloat16 and back, nearest, the even one of two; finite numbers."""
    bits = np.asarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF_0000).astype(np.uint32).view(np.float32)


def stochastic(numbers: Any, key_hash: int, seed: int, count: int) -> Any:
    """To bfloat16 and back: up with the probability of the part that is cut off."""
    bits = mix64(((key_hash ^ mix64(seed & MASK)) + GOLDEN * count) & MASK)
    rounded = np.array(numbers, np.float32).view(np.uint32)
    for d in range(len(rounded)):
        x = ((d * 0x9E37_79B9 + bits) & 0xFFFF_FFFF) ^ bits >> 32
        x = (x ^ x >> 16) * 0x7FEB_352D & 0xFFFF_FFFF
        x = (x ^ x >> 15) * 0x846C_A68B & 0xFFFF_FFFF
        rounded[d] = (int(rounded[d]) + (x >> 16)) & 0xFFFF_0000
    return rounded.view(np.float32)
