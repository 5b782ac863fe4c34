"""models.sequences: nets that read a history film by film, beside nets that average it or have none, on MovieLens 100k.

`springtide bench models.sequences [--models din,hstu] [--seeds 2] [--wide]`. The log has no histories, so they are made
from it in order of time: of each rating's user the films that the user liked (rating at least 4) before, the newest
50, and for each the binary logarithm of the seconds since. One pass, each sample scored before it is learned; AUC and
logloss are means over the seeds, the errors DeLong's of one seed. Without the log it says so and ends.
"""

# N samples
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from springtide.app.scores.auc import click_auc
from springtide.app.tools.evaluate.scores import difference_error
from springtide.stream.columns import Batch
from springtide_client.features import Features, Ragged
from springtide_client.schema import Schema
from tests.bench.harness.report import DATA, argument_parser, describe_run, save
from tests.bench.quality.one_pass import RunConfig, learn_once, logloss
from tests.bench.quality.real_logs import SETS, read_batch
from tests.support.batches import cut

LOG = SETS["movielens-100k"]
LIKED, GAPS, LONGEST = "liked", "liked_gaps", 50
QUICK_SAMPLES = 1_500
WITHOUT, AVERAGED = "dlrm without a history", "dlrm, the history averaged"
MODELS = ("din", "sasrec", "hstu", "transformer")


def with_histories(samples: Batch, *, longest: int = LONGEST) -> Batch:
    """Return the samples with two more lists: the films that a user liked before, and how long ago."""
    columns = samples.features.categorical_NC.T
    users_N, items_N = (columns[LOG.categorical.index(name)].tolist() for name in ("user_id", "item_id"))
    liked: dict[int, list[tuple[int, int]]] = defaultdict(list)
    films: list[int] = []
    gaps: list[int] = []
    offsets = [0]
    labels_N = samples.labels_NL[:, 0].tolist()
    for user, film, ms, label in zip(users_N, items_N, samples.event_ms_N.tolist(), labels_N, strict=True):
        for other, other_ms in liked[user][-longest:]:
            films.append(other)
            gaps.append(time_gap(ms - other_ms))
        offsets.append(len(films))
        if label > 0.5:
            liked[user].append((film, ms))
    lists = [Ragged(np.array(ids, np.int64), np.array(offsets, np.int64)) for ids in (films, gaps)]
    features = samples.features
    return replace(samples, features=Features(features.categorical_NC, (*features.lists, *lists), features.dense_NF))


def time_gap(milliseconds: int) -> int:
    """Return the binary logarithm of 1 + seconds, rounded down: 0 below a second, 11 at an hour, 16 at a day."""
    return (milliseconds // 1000 + 1).bit_length() - 1


def schema_with_histories() -> Schema:
    """Return the log's schema with the two lists of `with_histories`."""
    return replace(
        LOG.schema,
        sequence=(LIKED, GAPS),
        share={LIKED: "item_id"},
        max_length={LIKED: LONGEST, GAPS: LONGEST},
    )


def contenders(models: list[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return names and options of models by contender."""
    found: dict[str, tuple[str, dict[str, Any]]] = {WITHOUT: ("dlrm", {}), AVERAGED: ("dlrm", {})}
    for name in models:
        found[name] = (name, {})
        found[f"{name}, time gaps"] = (name, {"time_gaps": GAPS})
    return found


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=100_000, help="of the log, at most")
    parser.add_argument("--wide", action="store_true", help="beside a wide part")
    options = parser.parse_args()
    if not (DATA / f"{LOG.file}.parquet").is_file():
        print(f"skipped: {DATA} does not have {LOG.file}")
        return
    torch.set_num_threads(1)
    run = describe_run("models.sequences", options, packages=("numpy", "torch"))
    plain = cut(read_batch(DATA, LOG), 0, QUICK_SAMPLES if options.quick else options.samples)
    histories = with_histories(plain)
    clicked_N = plain.labels_NL[:, 0] > 0.5
    positive_N, negative_N = clicked_N.astype(np.float64), (~clicked_N).astype(np.float64)
    cases, averaged_N = [], None
    for contender, (name, model_options) in contenders(options.models.split(",")).items():
        schema, samples = (LOG.schema, plain) if contender == WITHOUT else (schema_with_histories(), histories)
        config = RunConfig(schema=schema).with_model(name=name, options=model_options, wide=options.wide)
        passes = [learn_once(config.with_train(seed=seed), samples) for seed in range(options.seeds)]
        first_N = passes[0].logits_N
        averaged_N = first_N if contender == AVERAGED else averaged_N
        case = {
            "contender": contender,
            "wide": options.wide,
            "samples": len(samples),
            "auc": [click_auc(each.logits_N, clicked_N) for each in passes],
            "logloss": [logloss(each.logits_N, clicked_N) for each in passes],
            "auc_difference_error": difference_error(
                first_N, first_N if averaged_N is None else averaged_N, positive_N, negative_N
            ),
            "samples_per_second": [len(samples) / each.seconds for each in passes],
        }
        cases.append(case)
        print(
            f"{contender:28} AUC {np.mean(case['auc']):.4f}  logloss {np.mean(case['logloss']):.4f}  "
            f"(s.e. of the AUC's difference from averaging {case['auc_difference_error'] or 0:.4f})  "
            f"{np.mean(case['samples_per_second']):,.0f} samples/s",
            flush=True,
        )
    save(options, run | {"cases": cases})
