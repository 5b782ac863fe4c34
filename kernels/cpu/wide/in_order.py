"""The in-order pass: each sample is scored by the rows that the samples before it have changed, then learned.

`chunk` samples are scored and learned as one: 1 on the CPU. Formulas: deploy/docs/decisions/wide.md.
"""

from typing import Any

from springtide.kernels.cpu.wide.apply import apply_chunk, count_sample
from springtide.kernels.cpu.wide.arrays import CrossBatch, WideArrays, WideBatch, in_place, new_scratch
from springtide.kernels.cpu.wide.distinct import is_distinct, learn_distinct, new_lines
from springtide.kernels.cpu.wide.learn import add_sample
from springtide.kernels.cpu.wide.score import fetch_rows, find_rows, score_sample, strengths_of


def in_order_pass(
    batch: WideBatch,
    crosses: CrossBatch,
    arrays: WideArrays,
    chunk: int,
    lr: float,
    eps: float,
    logits_NL: Any,
    errors_NL: Any,
) -> None:
    """Score and learn samples crosses.start to crosses.stop; write logits and dloss/dnet, both float32 (N, L).

    `lr`, `eps`: of the factorization machine's steps, row-wise Adagrad.
    """
    scratch, lines = new_scratch(batch, crosses, arrays, chunk), new_lines(batch, crosses, arrays)
    _pass(batch, crosses, arrays, scratch, lines, chunk, lr, eps, logits_NL, errors_NL)


@in_place
def _pass(
    batch: Any,
    crosses: Any,
    arrays: Any,
    scratch: Any,
    lines: Any,
    chunk: Any,
    lr: Any,
    eps: Any,
    logits_NL: Any,
    errors_NL: Any,
) -> None:
    num_live, live_P = 0, arrays.pair_is_live_P
    for p in range(len(live_P)):
        num_live += live_P[p]
    for start in range(crosses.start, crosses.stop, chunk):
        stop = min(crosses.stop, start + chunk)
        fetch_rows(batch, crosses, scratch, stop, min(crosses.stop, stop + chunk))
        strengths = strengths_of(arrays, num_live)
        if chunk == 1 and is_distinct(batch, crosses, start):
            learn_distinct(batch, crosses, arrays, scratch, lines, strengths, start, lr, eps, logits_NL, errors_NL)
            continue
        find_rows(batch, crosses, scratch, start, stop)
        for n in range(start, stop):
            score_sample(batch, crosses, arrays, scratch, strengths, n, start, stop, logits_NL)
        for n in range(start, stop):
            add_sample(batch, crosses, arrays, scratch, strengths, n, start, stop - start, errors_NL)
        for n in range(start, stop):
            count_sample(batch, crosses, arrays, n)
        apply_chunk(batch, crosses, arrays, scratch, strengths, start, stop, lr, eps)
