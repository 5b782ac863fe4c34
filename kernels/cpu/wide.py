"""The two verbs that move whole batches of rows, gather and update, compiled for one dimension each.

With the dimension a constant the compiler unrolls and vectorizes the inner loops: an update of 16 numbers takes half
the time. Values, gradients, meta and states come ravelled; unsigned flat indices keep the wrap-around branch out.
"""

# K keys of the batch, U unique ones, N some rows, D dimension
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.bits import prefetch
from kernels.cpu.rows import CHANGED, FLAGS, LAST_SEEN, STATE, TOUCHED

LINE = 16  # float32 numbers of a cache line
AHEAD = 24  # rows asked for before their turn
U0, U1, U2, U3, U4 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
U5, U6, U7, U8 = np.uint64(5), np.uint64(6), np.uint64(7), np.uint64(8)
AHEAD_U = np.uint64(AHEAD)
LAST_SEEN_U, FLAGS_U, STATE_U = np.uint64(LAST_SEEN), np.uint64(FLAGS), np.uint64(STATE)


@cache
def gather_of(dim: int) -> Any:
    """The gather for this dimension: rows slots_U[inverse_K] of values into out, NaN where the slot is negative."""
    width, num_lines = np.uint64(dim), -(-dim // LINE)

    @njit(nogil=True, cache=True)
    def gather(values: Any, slots_U: Any, inverse_K: Any, out: Any) -> None:
        num_keys = len(inverse_K)
        for k in range(num_keys):
            if k + AHEAD < num_keys:
                slot = slots_U[np.uint64(inverse_K[k + AHEAD])]
                if slot >= 0:
                    for line in range(num_lines):
                        prefetch(values, np.uint64(slot) * width + np.uint64(line * LINE))
            slot = slots_U[np.uint64(inverse_K[k])]
            to = np.uint64(k) * width
            if slot >= 0:
                at = np.uint64(slot) * width
                for d in range(width):
                    out[to + np.uint64(d)] = values[at + np.uint64(d)]
            else:
                for d in range(width):
                    out[to + np.uint64(d)] = np.float32(np.nan)

    return gather


@njit(nogil=True, cache=True)
def sum_of_squares(numbers: Any, at: Any, width: Any) -> Any:
    """In eight lanes, element d in lane d % 8, added pairwise: an order of its own, the same on every machine."""
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = np.float32(0)
    whole = width - width % U8
    for block in range(U0, whole, U8):
        i = at + np.uint64(block)
        x0, x1, x2, x3 = numbers[i], numbers[i + U1], numbers[i + U2], numbers[i + U3]
        x4, x5, x6, x7 = numbers[i + U4], numbers[i + U5], numbers[i + U6], numbers[i + U7]
        a0, a1, a2, a3 = a0 + x0 * x0, a1 + x1 * x1, a2 + x2 * x2, a3 + x3 * x3
        a4, a5, a6, a7 = a4 + x4 * x4, a5 + x5 * x5, a6 + x6 * x6, a7 + x7 * x7
    if whole < width:  # a constant: where the dimension is a multiple of 8 nothing of this is left
        i = at + whole
        rest = width - whole
        a0 += numbers[i] * numbers[i]
        a1 += numbers[i + U1] * numbers[i + U1] if rest > U1 else np.float32(0)
        a2 += numbers[i + U2] * numbers[i + U2] if rest > U2 else np.float32(0)
        a3 += numbers[i + U3] * numbers[i + U3] if rest > U3 else np.float32(0)
        a4 += numbers[i + U4] * numbers[i + U4] if rest > U4 else np.float32(0)
        a5 += numbers[i + U5] * numbers[i + U5] if rest > U5 else np.float32(0)
        a6 += numbers[i + U6] * numbers[i + U6] if rest > U6 else np.float32(0)
    return ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))


@cache
def update_of(dim: int) -> Any:
    """The update for this dimension: see kernels/spec.py."""
    width, num_lines = np.uint64(dim), -(-dim // LINE)
    divisor = np.float32(dim)

    @njit(nogil=True, cache=True)
    def update(
        values: Any,
        meta: Any,
        states: Any,
        slots_U: Any,
        order_K: Any,
        offsets_U1: Any,
        grads: Any,
        last_seen_U: Any,
        lr: Any,
        eps: Any,
        start: Any,
        stop: Any,
    ) -> Any:
        fresh_N = np.empty(stop - start, np.int64)
        num_fresh, num_refused = 0, 0
        sum_D = np.empty(width, np.float32)
        num_occurrences = np.uint64(len(order_K))
        for u in range(start, stop):
            if u + AHEAD < stop:
                slot = slots_U[u + AHEAD]
                if slot >= 0:
                    prefetch(meta, np.uint64(slot) * U4)
                    for line in range(num_lines):
                        prefetch(values, np.uint64(slot) * width + np.uint64(line * LINE))
            slot = slots_U[u]
            if slot < 0:
                continue
            at, about = np.uint64(slot) * width, np.uint64(slot) * U4
            first, last = np.uint64(offsets_U1[u]), np.uint64(offsets_U1[u + 1])
            source = np.uint64(order_K[first]) * width
            if first + AHEAD_U < num_occurrences:
                ahead = np.uint64(order_K[first + AHEAD_U]) * width
                for line in range(num_lines):
                    prefetch(grads, ahead + np.uint64(line * LINE))
            alone = last - first == U1
            if alone:
                squares = sum_of_squares(grads, source, width)
            else:
                for d in range(width):
                    sum_D[d] = grads[source + np.uint64(d)]
                for k in range(first + U1, last):
                    other = np.uint64(order_K[k]) * width
                    if k + AHEAD_U < num_occurrences:
                        ahead = np.uint64(order_K[k + AHEAD_U]) * width
                        for line in range(num_lines):
                            prefetch(grads, ahead + np.uint64(line * LINE))
                    for d in range(width):
                        sum_D[d] += grads[other + np.uint64(d)]
                squares = sum_of_squares(sum_D, U0, width)
            if np.isfinite(squares):
                state_at = np.uint64(slot) * U8 + STATE_U
                state = states[state_at] + squares / divisor
                states[state_at] = state
                step = lr / (np.sqrt(state) + eps)
                if alone:
                    for d in range(width):
                        values[at + np.uint64(d)] -= step * grads[source + np.uint64(d)]
                else:
                    for d in range(width):
                        values[at + np.uint64(d)] -= step * sum_D[d]
            else:
                num_refused += 1
            meta[about] += np.int64(last - first)
            meta[about + LAST_SEEN_U] = max(meta[about + LAST_SEEN_U], last_seen_U[u])
            flags = meta[about + FLAGS_U]
            if flags & TOUCHED == 0:
                fresh_N[num_fresh] = slot
                num_fresh += 1
            meta[about + FLAGS_U] = flags | TOUCHED | CHANGED
        return fresh_N[:num_fresh], num_refused

    return update
