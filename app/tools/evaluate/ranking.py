"""Ranking metrics of an evaluation, of every request and every user's day; and how two evaluations differ in them.

Nothing is sampled here, and a request is all samples of its id. Errors of differences are of paired groups, clustered
by user where `[scores] group` names one: a user's requests are alike.
"""

# N samples, G groups, M metrics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.app.scores.auc import Float64Array
from springtide.app.scores.ranking import EVENT_MS, KINDS, NAMES, ranking_document
from springtide.app.tools.evaluate.scores import EvaluatedSamples, clustered_error
from springtide.app.tools.status_text import format_number
from springtide.kernels.cpu.open_groups import DAY_MS
from springtide.kernels.cpu.ranking_metrics import group_values
from springtide_client.keys import MISSING_ID

TITLES = {"request": "by request", "group": "by group and day"}


@dataclass(frozen=True)
class GroupValues:
    """The metrics of each group, NaN where one is undefined, and how many samples it has."""

    values_GM: Float64Array  # as `RankingScores` has them
    num_G: npt.NDArray[np.int64]
    cluster_G: npt.NDArray[np.int64]  # equal for groups of one user; each group's own where no user is known


def values_by_group(samples: EvaluatedSamples, kind: str, at: tuple[int, ...], *, label: int = 0) -> GroupValues | None:
    """Return the metrics by one of KINDS; None where samples have no such groups, or the label is a value."""
    id_N = samples.groups.get(f"ranking.{kind}")
    if id_N is None or label in samples.values:
        return None
    scores_N, positive_N, negative_N = samples.of_label(label)
    rows = np.flatnonzero((id_N != MISSING_ID) & (positive_N + negative_N > 0))
    id_N, keys = id_N[rows], [id_N[rows]]
    if kind == "group":
        keys.insert(0, samples.groups[EVENT_MS][rows] // DAY_MS)
    order = np.lexsort(keys)
    is_first_N = np.zeros(len(order), np.bool_)
    for key in keys:
        is_first_N |= np.diff(key[order], prepend=key[order][:1] - 1) != 0
    starts_G1 = np.append(np.flatnonzero(is_first_N), len(order)).astype(np.int64)
    rows, users_N = rows[order], samples.users_N
    labels_N = samples.labels_NL[rows, label].astype(np.float64)
    values_GM = group_values(scores_N[rows], labels_N, starts_G1, np.array(at, np.int64))
    first_G = rows[starts_G1[:-1]]
    cluster_G = np.arange(len(first_G)) if users_N is None else users_N[first_G]
    return GroupValues(np.concatenate([values_GM[:, :1], values_GM], axis=1), np.diff(starts_G1), cluster_G)


def ranking_documents(
    samples: EvaluatedSamples, at: tuple[int, ...], *, label: int = 0, is_sampled: bool = False
) -> dict[str, Any]:
    """Return the metrics of one label by kind of group, as a trainer's status has them for the whole run.

    `is_sampled`: negatives are, so nothing is said of places.
    """
    found = {}
    for kind in KINDS:
        if (each := values_by_group(samples, kind, at, label=label)) is None:
            continue
        sums_M6 = np.zeros((each.values_GM.shape[1], 6))
        for m, (x_G, w_G) in enumerate(_by_metric(each)):
            sums_M6[m] = [len(x_G), *((w_G**i * x_G**j).sum() for i, j in ((1, 0), (1, 1), (2, 0), (2, 1), (2, 2)))]
        totals_2 = np.array([len(each.num_G), each.num_G.sum()], np.float64)
        found[kind] = ranking_document(sums_M6, totals_2, at, is_sampled=is_sampled)
    return found


def ranking_differences(
    first: EvaluatedSamples, second: EvaluatedSamples, at: tuple[int, ...], *, label: int = 0
) -> dict[str, Any]:
    """Return what the second has more than the first on the same samples, by kind and metric, with its error.

    Groups and labels are those of the first; users, where it names none, those of the second.
    """
    groups = {**second.groups, **first.groups} if first.groups else {}
    first = replace(first, groups=groups)
    second = replace(first, logits_NL=second.logits_NL)
    names = [*NAMES, *(f"ndcg@{k}" for k in at), *(f"recall@{k}" for k in at)]
    found: dict[str, Any] = {}
    for kind in KINDS:
        one, other = (values_by_group(each, kind, at, label=label) for each in (first, second))
        if one is None or other is None:
            continue
        gained = GroupValues(other.values_GM - one.values_GM, one.num_G, one.cluster_G)
        found[kind] = {}
        for m, (name, (d_G, w_G)) in enumerate(zip(names, _by_metric(gained), strict=True)):
            if not len(d_G):
                found[kind][name] = {"value": None, "standard_error": None}
                continue
            total = float(w_G.sum())
            mean = float((w_G * d_G).sum()) / total
            cluster_G = gained.cluster_G[~np.isnan(gained.values_GM[:, m])]
            error = clustered_error(w_G * (d_G - mean), cluster_G)
            found[kind][name] = {"value": mean, "standard_error": None if error is None else error / total}
    return found


def ranking_lines(documents: Mapping[str, Any]) -> list[str]:
    """Return `ranking_documents` for people."""
    lines = []
    for kind, document in documents.items():
        figures = {"GAUC": document["gauc"], "AUC": document["auc"], "MRR": document["mrr"]}
        figures |= {f"NDCG@{k}": each for k, each in document["ndcg"].items()}
        figures |= {f"recall@{k}": each for k, each in document["recall"].items()}
        lines.append(f"{TITLES[kind]}, {document['groups']:,.0f} with {document['samples']:,.0f} samples:")
        known = {name: each for name, each in figures.items() if each["value"] is not None}
        lines.append("  " + ("  ".join(f"{name} {_metric_text(each, '.4f')}" for name, each in known.items()) or "-"))
    return lines


def difference_lines(differences: Mapping[str, Any]) -> list[str]:
    """Return `ranking_differences` for people."""
    return [
        f"2 minus 1, {TITLES[kind]}: "
        + ", ".join(
            f"{_title(name)} {_metric_text(each, '+.4f')}"
            for name, each in metrics.items()
            if each["value"] is not None
        )
        for kind, metrics in differences.items()
    ]


def _title(name: str) -> str:
    return name if name.startswith("recall") else name.upper()


def _metric_text(metric: Mapping[str, float | None], form: str) -> str:
    return f"{format_number(metric['value'], form)} +- {format_number(metric['standard_error'], '.4f')}"


def _by_metric(each: GroupValues) -> list[tuple[Float64Array, Float64Array]]:
    """Return values and weights of the groups that have each metric; of the first, GAUC, groups weigh by samples."""
    found = []
    for m, x_G in enumerate(each.values_GM.T):
        known_G = ~np.isnan(x_G)
        w_G = each.num_G[known_G].astype(np.float64) if m == 0 else np.ones(int(known_G.sum()))
        found.append((x_G[known_G], w_G))
    return found
