"""Which field a name in a message is: first the one that stood there in the record before, then by hash."""

from typing import Any

import numpy as np

from kernels.cpu.hashing import mix64
from stream.decode.json_parser.byte_ops import byte_at, partial_word
from stream.decode.json_parser.jit import compiled, inlined
from stream.decode.json_parser.strings import QUOTE

S7, S57 = np.uint64(7), np.uint64(57)


@inlined
def is_name(buffer: Any, at: Any, end: Any, plan: Any, field: Any) -> Any:
    """Whether the field's name and a closing quote stand at `at`."""
    length = plan.name_length_J[field]
    if byte_at(buffer, at + length, end) != QUOTE:
        return False
    done, word = 0, 0
    while done < length:
        num_bytes = min(8, length - done)
        if partial_word(buffer, at + done, num_bytes) != plan.name_words_JW[field, word]:
            return False
        done += 8
        word += 1
    return True


@compiled
def find_field(buffer: Any, at: Any, close: Any, end: Any, plan: Any) -> Any:
    """The number of the field whose name stands between `at` and `close`; -1 where the schema has none."""
    length = close - at
    first = partial_word(buffer, at, min(8, length))
    last = partial_word(buffer, close - min(8, length), min(8, length))
    mask = np.uint64(len(plan.buckets_H) - 1)
    place = mix64(first ^ (last << S7 | last >> S57) ^ np.uint64(length)) & mask
    while plan.buckets_H[place] >= 0:
        field = plan.buckets_H[place]
        if plan.name_length_J[field] == length and is_name(buffer, at, end, plan, field):
            return field
        place = (place + np.uint64(1)) & mask
    return np.int64(-1)
