"""Compiles the formats' fast paths and the record batch parser into Numba's cache: `-m springtide.stream.compile`."""

from pathlib import Path

import numpy as np

from springtide.kernels.compile import remove_stale_cache
from springtide.stream.decode.decoder import compile_parsers
from springtide.stream.kafka.record_batches import parse_batches


def main() -> None:
    """Compile everything that the first start would otherwise wait for."""
    remove_stale_cache(Path(__file__).parent)
    compile_parsers()
    # without any batch; the buffer of a fetch is read-only, which is a type of its own for the compiler
    parse_batches(np.frombuffer(b"-", np.uint8), np.zeros((0, 2), np.int64), 0, np.zeros((6, 0), np.int64))


if __name__ == "__main__":
    main()
