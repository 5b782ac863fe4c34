"""A status document as people read it: the demo's one line, and the last lines of a run."""

from collections.abc import Iterator, Mapping
from typing import Any

from springtide_client.format.records import version_name


def status_line(status: Mapping[str, Any]) -> str:
    """Return the demo's line."""
    best_auc = (status.get("simulator") or {}).get("best_auc")
    window = (status.get("scores") or {}).get("window") or {}
    freshness = status.get("freshness_ms") or {}
    lags = [position.get("lag") for position in (status.get("positions") or {}).values()]
    lag = sum(each for each in lags if each is not None)
    parts = [
        f"{status.get('samples_trained') or 0:,} samples",
        f"{status.get('samples_per_second') or 0:,.0f}/s",
        f"AUC {format_number(window.get('auc'), '.3f')} of {format_number(best_auc, '.3f')}",
        f"logloss {format_number(window.get('logloss'), '.3f')}",
        f"fresh {format_number(freshness.get('p50'), '.0f')}/{format_number(freshness.get('p99'), '.0f')} ms",
        f"lag {lag:,}",
    ]
    drift = (status.get("scores") or {}).get("drift") or {}
    if drift.get("level") == "large":
        parts.append(f"drift: {drift_reason(drift)}")
    if status.get("trainer") not in ("running", None):
        parts.append(f"{status['trainer']}: {status.get('reason') or ''}")
    return "  ".join(parts)


def status_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """Return what a finished run has to say, in a few lines; the JSON has everything."""
    version = "no version" if status.get("version") is None else f"version {version_name(status['version'])}"
    condition = " ".join(filter(None, [status.get("trainer"), status.get("reason")]))
    yield f"{status.get('name') or ''}: {version}, trainer {condition}"
    positions = status.get("positions") or {}
    behind = sum(position["lag"] or 0 for position in positions.values())
    where = f"{', '.join(positions) or 'no partition'}, {behind:,} records behind the end"
    rate = status.get("samples_per_second") or 0
    yield f"  learned   {status.get('samples_trained') or 0:,} samples, {rate:,.0f}/s at the end, of {where}"
    if dropped := status.get("dropped_negatives"):
        yield f"  dropped   {dropped:,} negatives"
    if letters := status.get("dead_letters"):
        yield "  dead      " + ", ".join(f"{number:,} {reason}" for reason, number in letters.items())
    scores = status.get("scores") or {}
    tasks = scores.get("tasks") or {"": scores}
    best_auc = (status.get("simulator") or {}).get("best_auc")
    for label, task in tasks.items():
        for window, what in (("whole", "all samples"), ("window", "the newest")):
            values = task.get(window) or {}
            figures = f"logloss {format_number(values.get('logloss'), '.4f')}"
            figures += f", calibration {format_number(values.get('calibration'), '.3f')}"
            best = f" of at best {best_auc:.4f}" if best_auc is not None and window == "window" else ""
            name = f"{label}, {what}" if label else what
            yield f"  scores    {name}: AUC {format_number(values.get('auc'), '.4f')}{best}, {figures}"
        for kind, ranking in (task.get("ranking") or {}).items():
            values = ranking.get("whole") or {}
            metrics = {"GAUC": values["gauc"]} | {f"NDCG@{k}": each for k, each in values["ndcg"].items()}
            texts = [f"{name} {format_number(each['value'], '.4f')}" for name, each in metrics.items()]
            yield f"  ranking   {label + ', ' if label else ''}by {kind}: {', '.join(texts)}"
    table = status.get("table") or {}
    sizes = [f"{number:,} in {tier}" for tier, number in (table.get("rows") or {}).items()]
    yield f"  rows      {', '.join(sizes) or 'none'}"
    fresh = status.get("freshness_ms") or {}
    if fresh.get("p50") is not None:
        yield f"  fresh     p50 {fresh['p50']:.0f} ms, p99 {fresh['p99']:.0f} ms from a record to its served version"


def drift_reason(drift: Mapping[str, Any]) -> str:
    """Return what has drifted far: label rates, scores, and the feature that did most."""
    found = []
    for label, each in (drift.get("labels") or {}).items():
        found += [f"rate of {label}"] * (each["label_rate"]["level"] == "large")
        found += [f"scores of {label}"] * (each["score"]["level"] == "large")
    features = [each["name"] for each in drift.get("features") or () if each["level"] == "large"]
    return ", ".join(found + features[:1])


def format_number(value: float | None, form: str) -> str:
    """Return the formatted number; a dash for None."""
    return "-" if value is None else format(value, form)
