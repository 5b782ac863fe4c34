"""Who learns a log in `quality.online`: the peers' settings, our ablations, and how a log is handed to the peers."""

# N samples, E elements of a sample
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.stream.columns import Batch
from tests.bench.quality.one_pass import OnePass, RunConfig, learn_and_serve, learn_once, num_ids, share_rows

DAY_MS = 86_400_000
BINS_PER_LOG = 4  # of a number's logarithm, as ids for the peers

# each with three learning rates around its default; `-q ::` crosses every field with every other
VW_RATES = {
    "adaptive": ("", "-l", (0.1, 0.5, 2.0)),
    "ftrl": ("--ftrl", "--ftrl_alpha", (0.005, 0.05, 0.5)),
    "coin": ("--coin", "--ftrl_alpha", (1.0, 4.0, 16.0)),
}
# factorized crosses of all pairs of fields, with the ranks and the rest of VW's demo/movielens: twice the rank with
# dropout, a little l2 without; and crosses of three fields. All adaptive: FTRL and coin do not keep first values.
LOW_RANK = {"lrq 2 dropout": (2, "--lrqdropout"), "lrq 7": (7, "--l2 1e-6"), "lrq 14 dropout": (14, "--lrqdropout")}
TRIPLES = "-q :: --interactions :::"
RIVER = [("LR FTRL", 0.05), ("LR FTRL", 0.3), ("LR Adagrad", 0.1), ("LR Adagrad", 0.3), ("FM Adagrad", 0.1)]


class VwSetting(NamedTuple):
    """One way to run Vowpal Wabbit; the same for every log."""

    name: str
    options: str


def vw_settings(num_fields: int, *, quick: bool) -> list[VwSetting]:
    """Return all variants for logs with this many fields, each with three learning rates; one of each if `quick`.

    With and without crosses of two fields, low-rank crosses, crosses of three fields.
    """
    settings = []
    for (name, (options, rate_option, rates)), crosses in product(VW_RATES.items(), ("", " -q ::")):
        for rate in rates[1:2] if quick else rates:
            setting = f"{options} {rate_option} {rate}{crosses}".strip()
            settings.append(VwSetting(f"VW {name}{crosses} {rate:g}", setting))
    pairs = list(combinations(ascii_letters[:num_fields], 2))
    variants = {
        name: " ".join([*(f"--lrq {left}{right}{rank}" for left, right in pairs), more])
        for name, (rank, more) in LOW_RANK.items()
    }
    _, rate_option, rates = VW_RATES["adaptive"]
    for name, options in (variants | {TRIPLES: TRIPLES}).items():
        for rate in rates[1:2] if quick else rates:
            settings.append(VwSetting(f"VW {name} {rate:g}", f"{options} {rate_option} {rate}"))
    return settings


@dataclass(frozen=True)
class Log:
    """A log to learn once."""

    name: str
    config: RunConfig
    samples: Batch
    versions_at: dict[str, npt.NDArray[np.int64]]  # publishing schedules by name: the samples before which versions are

    @property
    def num_fields(self) -> int:
        schema = self.config.schema
        return len(schema.features) + len(schema.dense)

    @property
    def clicked_N(self) -> npt.NDArray[np.bool_]:
        return self.samples.labels_NL[:, 0] > 0.5


class Result(NamedTuple):
    """A contender's pass, scored from the sample `first` on."""

    contender: str
    run: OnePass
    first: int = 0


def ablations(log: Log) -> Iterator[Result]:
    """Run what differs from the defaults in one thing."""
    config, samples = log.config, log.samples
    for size in (16, 256, 4096):
        yield Result(f"batches of {size}", learn_once(config.with_train(batch_size=size, min_batch_size=0), samples))
    yield Result("8 % of the ids share a row", learn_once(config, share_rows(samples)))
    total = num_ids(samples)
    for share in (50, 25, 10):
        run = learn_once(config, samples, num_rows=max(1, total * share // 100))
        yield Result(f"rows for {share} % of the ids, no spill", run)
    for name, versions_at in log.versions_at.items():
        if len(versions_at):
            yield Result(name, learn_and_serve(config, samples, versions_at.tolist()), int(versions_at[0]))


def wide_part_on_and_off(log: Log) -> Iterator[Result]:
    """Run the model with and without its wide part, and with it in batches of other sizes and without crosses."""
    config, wide = log.config, log.config.with_model(wide=True)
    others = {
        "wide = false": config.with_model(wide=False),
        "wide = true": wide,
        "wide = true, batches of 16": wide.with_train(batch_size=16, min_batch_size=0),
        "wide = true, batches of 4096": wide.with_train(min_batch_size=0),
        "wide = true, crosses = 0": wide.with_model(crosses=0),
    }
    for name, other in others.items():
        if other != config:
            yield Result(name, learn_once(other, log.samples))


def every(num_samples: int, total: int) -> npt.NDArray[np.int64]:
    """Return a schedule with a version every so many samples."""
    return np.arange(num_samples, total, num_samples)


def every_ms(interval_ms: int, event_ms_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a schedule with a version each time that so much event time has passed; days begin at midnight."""
    period_N = event_ms_N // interval_ms
    return np.flatnonzero(np.diff(period_N) != 0) + 1


def save_for_peers(log: Log, folder: Path) -> str:
    """Write the log as the arrays of `peers/online_peer.py`; numbers become ids of their logarithm's quarters too."""
    features = log.samples.features
    logs_NF = np.sign(features.dense_NF.astype(np.float64)) * np.log1p(np.abs(features.dense_NF.astype(np.float64)))
    columns: list[tuple[npt.NDArray[Any], npt.NDArray[Any], int]] = []
    for column_N in features.categorical_NC.T:
        columns.append((column_N, np.ones(len(column_N), bool), len({number for _, _, number in columns})))
    for ragged in features.lists:
        number, lengths_N = len({number for _, _, number in columns}), np.diff(ragged.offsets)
        for place in range(int(lengths_N.max(initial=0))):
            present_N = lengths_N > place
            ids_N = np.zeros(len(lengths_N), np.int64)
            ids_N[present_N] = ragged.ids_M[ragged.offsets[:-1][present_N] + place]
            columns.append((ids_N, present_N, number))
    values_NE = np.full((len(log.samples), len(columns) + logs_NF.shape[1]), np.nan)
    values_NE[:, len(columns) :] = logs_NF
    for log_N in logs_NF.T:
        number = len({number for _, _, number in columns})
        bins_N = np.nan_to_num(np.trunc(BINS_PER_LOG * log_N))
        ids_N = np.where(np.isnan(log_N), 1 << 40, bins_N).astype(np.int64)
        columns.append((ids_N, np.ones(len(ids_N), bool), number))
    arrays = {
        "values_NE": values_NE,
        "ids_NE": np.stack([column[0] for column in columns], axis=1),
        "present_NE": np.stack([column[1] for column in columns], axis=1),
        "fields_E": np.array([column[2] for column in columns], np.int64),
        "clicked_N": log.clicked_N,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)
