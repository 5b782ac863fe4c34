"""What the trainer counts in its table, as metrics of this server: they begin at 0 with every trainer."""

from collections.abc import Mapping
from typing import Any

from app.serving.ops.registry import MetricsRegistry

# metric -> what it tells, its label, and the trainer's counters behind it by the label's value
LABELED_COUNTERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "hits": ("Ids of a batch found in memory, by tier.", "tier", {"hits_device": "device", "hits_host": "host"}),
    "recalled": (
        "Rows brought back, by where from.",
        "tier",
        {"recalled_from_spill": "disk", "recalled_from_base": "base"},
    ),
    "evicted": (
        "Rows that left memory, by reason.",
        "reason",
        {"evicted_capacity": "capacity", "evicted_quota": "quota", "evicted_resize": "resize"},
    ),
}
PLAIN_COUNTERS = {
    "keys": "Ids looked up, every occurrence.",
    "prefetched": "Rows recalled ahead of their turn.",
    "created": "Rows made.",
    "admitted": "Ids that were seen often enough for a row.",
    "not_admitted": "Ids of a batch that shared a row: not seen often enough yet.",
    "refused_gradients": "Gradients that were not finite: their rows stayed as they were.",
    "expired": "Rows that outlived their feature's ttl_seconds.",
    "spilled": "Evicted rows that went to disk.",
    "dropped": "Evicted rows that had not changed.",
    "lost": "Evicted rows that no lower tier took.",
    "forgotten": "Rows forgotten by order.",
    "regret": "Ids asked for again soon after their row was evicted or had expired.",
    "overflowed": "Rows that found no slot and stayed beside the table for one batch.",
    "cuts": "Versions cut.",
    "host_evicted": "Rows that left the host tier.",
    "host_spilled": "Of them, those that went to disk.",
    "host_dropped": "Of them, those that lie below as they were.",
    "spill_asked": "Ids that the spill was asked for.",
    "spill_waiting": "Of them, rows that still waited for the disk.",
    "spill_absent": "Of them, ids known to be absent without a look at the disk.",
    "spill_found": "Of them, rows found on the disk.",
    "spill_in_vain": "Of them, ids looked for on the disk that were not there.",
    "spill_written": "Rows written to the disk.",
    "spill_purged": "Rows removed from the disk by rule.",
    "spill_starts": "How often the spill's process was started.",
    "spill_failures": "Writes to the disk that failed.",
}


def declare_table_metrics(metrics: MetricsRegistry) -> None:
    """The metrics, by name."""
    for name, (about, _, _) in LABELED_COUNTERS.items():
        metrics.counter(f"springtide_table_{name}_total", about, over="own")
    for name, about in PLAIN_COUNTERS.items():
        metrics.counter(f"springtide_table_{name}_total", about, over="own")
    metrics.gauge("springtide_table_rows", "Rows by tier.")
    metrics.gauge("springtide_table_bytes", "Bytes by tier.")
    metrics.gauge("springtide_table_horizon_age_seconds", "Rows of the feature last seen longer ago are forgotten.")
    metrics.gauge("springtide_event_clock_lag_seconds", "Now minus the event time that the table's rules go by.")


def update_table_metrics(metrics: MetricsRegistry, status: Mapping[str, Any], now_ms: int) -> None:
    """Bring them up to what the trainer's status says."""
    table = status.get("table") or {}
    for name, (_, label, counters) in LABELED_COUNTERS.items():
        known = {
            tier: numeric_items(table)[counter] for counter, tier in counters.items() if counter in numeric_items(table)
        }
        metrics.replace_all(f"springtide_table_{name}_total", label, known)
    for name in PLAIN_COUNTERS:
        metrics.set(f"springtide_table_{name}_total", numeric_items(table).get(name))
    metrics.replace_all("springtide_table_rows", "tier", numeric_items(table.get("rows")))
    metrics.replace_all("springtide_table_bytes", "tier", numeric_items(table.get("bytes")))
    ages = {feature: (now_ms - ms) / 1000 for feature, ms in numeric_items(table.get("horizons_ms")).items()}
    metrics.replace_all("springtide_table_horizon_age_seconds", "feature", ages)
    event_ms = status.get("event_clock_ms") or 0
    metrics.set("springtide_event_clock_lag_seconds", (now_ms - event_ms) / 1000 if event_ms > 0 else None)


def numeric_items(values: Any) -> dict[str, float]:
    """Those of a JSON object's values that are numbers."""
    if not isinstance(values, dict):
        return {}
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
