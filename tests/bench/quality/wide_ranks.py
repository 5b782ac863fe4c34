"""quality.wide_ranks: one pass over a log with the defaults, wide part included, on 1, 2 and 4 ranks.

The batches of all ranks together are those of one process. A log's samples are dealt by the first id field, as a topic
with that key does, or evenly. Ranks are threads: what they learn is the same as that of processes.
"""

# N samples
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import click_auc
from springtide.embeddings.sharding.row_format import Precision
from springtide.stream.columns import Batch
from springtide_client.features import Features, Ragged
from tests.bench.harness.report import DATA, argument_parser, describe_run, fail, save
from tests.bench.quality.one_pass import Floats, RunConfig, logloss, make_learner
from tests.bench.quality.online import defaults
from tests.bench.quality.real_logs import SETS, read_batch
from tests.support.batches import batch_of, cut
from tests.support.thread_ranks import ThreadExchange, on_ranks

Rows = npt.NDArray[np.intp]
LOGS = ("movielens-100k", "talkingdata-100k")
RANKS = (1, 2, 4)


def taken(batch: Batch, rows: Rows) -> Batch:
    """Return some samples of a batch."""
    lists = []
    for ragged in batch.features.lists:
        lengths = np.diff(ragged.offsets)[rows]
        places = np.repeat(ragged.offsets[:-1][rows] - (np.cumsum(lengths) - lengths), lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        lists.append(Ragged(ragged.ids_M[places + np.arange(len(places))], offsets))
    features = batch.features
    features = Features(features.categorical_NC[rows], tuple(lists), features.dense_NF[rows])
    return batch_of(features, batch.labels_NL[rows], batch.event_ms_N[rows])


def dealt(samples: Batch, start: int, stop: int, num_ranks: int, *, by_key: bool) -> list[Rows]:
    """Return each rank's samples of a batch."""
    places = np.arange(start, stop)
    if not by_key:
        return np.array_split(places, num_ranks)
    ranks = (samples.features.categorical_NC[start:stop, 0].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> 32
    return [places[ranks % np.uint64(num_ranks) == rank] for rank in range(num_ranks)]


def learn(
    config: RunConfig, samples: Batch, num_ranks: int, *, by_key: bool = True, precision: Precision | None = None
) -> tuple[Floats, dict[str, int]]:
    """Return the logit of each sample from before it was learned, and the bytes that rank 0 sent."""

    def work(exchange: ThreadExchange) -> tuple[Floats, dict[str, int]]:
        learner = make_learner(config, exchange=exchange, precision=precision)
        logits_N, start = np.zeros(len(samples)), 0
        while start < len(samples):
            stop = min(len(samples), start + config.batch_size.after(start))
            parts = dealt(samples, start, stop, num_ranks, by_key=by_key)
            report = learner.step(taken(samples, parts[exchange.rank]))
            logits_N[np.concatenate(parts)] = report.logits_NL[:, 0]
            start = stop
        learner.require_same_net()
        learner.table.close()
        return logits_N, dict(exchange.bytes_sent)

    return on_ranks(num_ranks, work)[0]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--logs", nargs="+", default=LOGS, choices=sorted(SETS))
    parser.add_argument("--most", type=int, default=100_000, help="samples of a log")
    options = parser.parse_args()
    run = describe_run("quality.wide_ranks", options, packages=("torch", "numba", "numpy"))
    cases: list[dict[str, Any]] = []
    for name in options.logs:
        real = SETS[name]
        if not (DATA / f"{real.file}.parquet").is_file():
            fail(f"{name} is not in {DATA}: set SPRINGTIDE_BENCH_DATA")
        samples = cut(read_batch(DATA, real), 0, 2_000 if options.quick else options.most)
        clicked_N = samples.labels_NL[:, 0] > 0.5
        narrow = Precision(rows="int8", gradients="int8")
        settings = [(num, True, None) for num in RANKS] + [(2, False, None), (2, True, narrow)]
        for num_ranks, by_key, precision in settings:
            began = time.perf_counter()
            config = defaults(real.schema)
            logits_N, sent = learn(config, samples, num_ranks, by_key=by_key, precision=precision)
            case = {
                "log": name,
                "ranks": num_ranks,
                "dealt": "by key" if by_key else "evenly",
                "precision": "float32" if precision is None else precision.rows,
                "auc": click_auc(logits_N, clicked_N),
                "logloss": logloss(logits_N, clicked_N),
                "bytes_a_sample": num_ranks * sum(sent.values()) / len(samples),
            }
            cases.append(case)
            print(
                f"{name}, {num_ranks} ranks, {case['dealt']}, {case['precision']}: AUC {case['auc']:.4f}, log loss "
                f"{case['logloss']:.4f}, {case['bytes_a_sample']:.0f} bytes a sample on the wire "
                f"({time.perf_counter() - began:.0f} s)",
                flush=True,
            )
    save(options, run | {"results": cases})
