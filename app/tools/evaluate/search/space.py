"""The settings that a search tries: a few values each of the keys that matter most, beside what the file says."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

from springtide.app.config.assignments import merge_document
from springtide.app.config.load import Config
from springtide.app.training.config import DenseOptimizerConfig
from springtide.embeddings.optimizer import RowOptimizer

Change = dict[str, Any]  # as `parse_assignment` makes it

BATCH_SIZES = (64, 256, 1024, 4096)
DIMS = (8, 16, 32)
LR_FACTORS = (0.3, 1.0, 3.0)
CROSSES = (0, 64)
NETS = ("dlrm", "deepfm", "logistic")


def dimensions(config: Config) -> list[list[Change]]:
    """Return the choices for each setting that is varied.

    Learning rates are factors of the configuration's own. A net that is not in NETS stays; `crosses` are varied only
    where `[model] wide` is on.
    """
    rows_lr, dense_lr = RowOptimizer.of(config.table.optimizer).lr, DenseOptimizerConfig.of(config.train.optimizer).lr
    found: list[list[Change]] = [
        [{"train": {"batch_size": size}} for size in BATCH_SIZES],
        [{"table": {"dim": dim}} for dim in DIMS],
        [{"table": {"optimizer": {"lr": short(rows_lr * factor)}}} for factor in LR_FACTORS],
        [{"train": {"optimizer": {"lr": short(dense_lr * factor)}}} for factor in LR_FACTORS],
    ]
    if config.model.name in NETS:
        # options of one net mean nothing to another
        names = [config.model.name] if config.model.options else list(NETS)
        found.append([{"model": {"name": name}} for name in names])
    if config.model.has_wide_part:
        found.append([{"model": {"crosses": num}} for num in CROSSES])
    return found


def candidates(config: Config, num: int, seed: int) -> list[Change]:
    """Return different settings, the first being the configuration as it is; fewer if there are no more."""
    choices = dimensions(config)
    drawn: list[Change] = [{}]
    seen = {settings_of(config, {})}
    order = list(itertools.product(*choices))
    random.Random(seed).shuffle(order)
    for parts in order:
        if len(drawn) == num:
            break
        change = merge_document({}, parts)
        if (settings := settings_of(config, change)) not in seen:
            seen.add(settings)
            drawn.append(change)
    return drawn


def settings_of(config: Config, change: Mapping[str, Any]) -> str:
    """Return the values of all varied settings under a change, to tell equal ones."""
    rows, dense = RowOptimizer.of(config.table.optimizer), DenseOptimizerConfig.of(config.train.optimizer)
    now = {
        "train": {"batch_size": config.train.batch_size, "optimizer": {"lr": short(dense.lr)}},
        "table": {"dim": config.table.dim, "optimizer": {"lr": short(rows.lr)}},
        "model": {"name": config.model.name, "crosses": config.model.crosses},
    }
    return repr(merge_document(now, [change]))


def describe_change(change: Mapping[str, Any], prefix: str = "") -> str:
    """Return a change as `train.batch_size=64 table.dim=8`; "as it is" for none."""
    parts = [
        describe_change(value, f"{prefix}{key}.") if isinstance(value, Mapping) else f"{prefix}{key}={value}"
        for key, value in change.items()
    ]
    return " ".join(parts) or "as it is"


def short(value: float) -> float:
    """Return a number with three significant digits."""
    return float(f"{value:.3g}")
