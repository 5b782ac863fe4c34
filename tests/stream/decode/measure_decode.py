"""How fast the decoder is: `PYTHONPATH=deploy/package:deploy/client:. python tests/stream/decode/measure_decode.py`."""

import json
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from springtide.stream.columns import RawRecords
from springtide.stream.decode.decoder import Decoder
from springtide.stream.positions import Partition
from springtide_client.schema import Schema

NOW_MS = 1_700_000_000_000
REPEATS = 15
rng = random.Random(1)
vocabulary = [[f"{rng.randrange(2**32):08x}" for _ in range(2000)] for _ in range(26)]


def ids_and_numbers() -> dict[str, Any]:
    large = {"user": rng.randrange(2**32, 2**40), "item": rng.randrange(2**32, 2**40)}
    small = {f"c{i}": rng.randrange(100_000) for i in range(6)}
    return {**large, **small, **{f"f{i}": round(rng.random(), 4) for i in range(6)}}


def strings_and_integers() -> dict[str, Any]:
    return {f"C{i}": rng.choice(vocabulary[i]) for i in range(26)} | {f"I{i}": rng.randrange(1000) for i in range(13)}


def strings_and_floats() -> dict[str, Any]:
    return {f"C{i}": rng.choice(vocabulary[i]) for i in range(26)} | {f"I{i}": rng.random() for i in range(13)}


def lists_and_unknown() -> dict[str, Any]:
    known = {"u": f"u{rng.randrange(5000)}", "g": [f"genre{rng.randrange(20)}" for _ in range(3)]}
    last = {"s": [f"item-{rng.randrange(5000)}" for _ in range(20)]}
    return {**known, **last, "comment": "日本語 \n x", "meta": {"a": [1, 2.5, None]}}


def measure(make: Callable[[], dict[str, Any]], num_records: int, **fields: tuple[str, ...]) -> None:
    records = [{"ts": NOW_MS, **make(), "click": rng.randrange(2)} for _ in range(num_records)]
    separators = (",", ":") if make is ids_and_numbers else None
    values = [json.dumps(record, separators=separators).encode() for record in records]
    raw = RawRecords.from_messages(Partition("clicks", 0), values)
    schema = Schema(labels=("click",), timestamp="ts", **fields)  # type: ignore[arg-type]
    decoder = Decoder(schema)
    decoder.decode(raw, NOW_MS)
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        assert len(decoder.decode(raw, NOW_MS)) == num_records
        rates.append(num_records / (time.perf_counter() - start) / 1e6)
    slow = Decoder(schema)
    slow.fast_path = None
    start = time.perf_counter()
    slow.decode(raw, NOW_MS)
    reference = num_records / (time.perf_counter() - start) / 1e6
    size = len(raw.buffer) // num_records
    print(f"{make.__name__}: {size} bytes, {median(rates):.2f} M/s, best {max(rates):.2f}, reference {reference:.3f}")


if __name__ == "__main__":
    measure(
        ids_and_numbers,
        20_000,
        categorical=("user", "item", *[f"c{i}" for i in range(6)]),
        dense=tuple(f"f{i}" for i in range(6)),
    )
    columns = {"categorical": tuple(f"C{i}" for i in range(26)), "dense": tuple(f"I{i}" for i in range(13))}
    measure(strings_and_integers, 10_000, **columns)
    measure(strings_and_floats, 10_000, **columns)
    measure(lists_and_unknown, 10_000, categorical=("u",), multi_value=("g",), sequence=("s",))
