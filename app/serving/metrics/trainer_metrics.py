"""The trainer's numbers as metrics of this server, taken from its status; table counters restart with each trainer."""

from collections.abc import Mapping
from typing import Any

from app.serving.metrics.registry import MetricsRegistry

# metric -> help, label, and the trainer's counter for each value of the label
LABELED_COUNTERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "hits": ("Ids of a batch found in memory, by tier.", "tier", {"device": "hits_device", "host": "hits_host"}),
    "recalled": (
        "Rows read back into memory, by tier.",
        "tier",
        {"disk": "recalled_from_spill", "base": "recalled_from_base"},
    ),
    "evicted": (
        "Rows evicted from memory, by reason.",
        "reason",
        {"capacity": "evicted_capacity", "quota": "evicted_quota", "resize": "evicted_resize"},
    ),
}
PLAIN_COUNTERS = {
    "keys": "Ids looked up, every occurrence.",
    "prefetched": "Rows recalled before the batch that needed them.",
    "created": "Rows created.",
    "admitted": "Ids seen often enough to get a row.",
    "not_admitted": "Ids of a batch that used a shared row: not seen often enough yet.",
    "refused_gradients": "Gradients that were not finite; their rows stayed unchanged.",
    "expired": "Rows deleted because they were not seen for ttl_seconds.",
    "spilled": "Evicted rows written to disk.",
    "dropped": "Evicted rows dropped because they were unchanged.",
    "lost": "Evicted rows lost because there is no lower tier.",
    "forgotten": "Rows deleted by forget commands.",
    "premature_evictions": "Ids needed again soon after their row was evicted or had expired.",
    "overflowed": "Rows that found no slot and were kept beside the table for one batch.",
    "checkpoints": "Versions made of the table.",
    "host_evicted": "Rows evicted from the host tier.",
    "host_spilled": "Rows evicted from the host tier and written to disk.",
    "host_dropped": "Rows evicted from the host tier and dropped: a lower tier has them unchanged.",
    "spill_lookups": "Ids looked up in the spill.",
    "spill_queue_hits": "Rows found among those waiting to be written to disk.",
    "spill_filter_negatives": "Ids that the filter excluded without reading the disk.",
    "spill_hits": "Rows found on disk.",
    "spill_misses": "Ids looked for on disk and not found.",
    "spill_written": "Rows written to disk.",
    "spill_purged": "Rows removed from disk to stay within disk_bytes.",
    "spill_starts": "Starts of the spill process.",
    "spill_failures": "Failed writes to disk.",
}


def declare_trainer_metrics(metrics: MetricsRegistry) -> None:
    """Declare the metrics that `update_trainer_metrics` sets."""
    metrics.gauge("springtide_trainer_state", "1 for the trainer's present state.")
    metrics.counter("springtide_samples_trained_total", "Samples learned since the log began.", aggregation="local")
    metrics.gauge("springtide_samples_per_second", "Samples learned per second.")
    metrics.gauge("springtide_consumer_lag_records", "End of the partition minus the learned position.")
    metrics.counter(
        "springtide_dead_letters_total", "Records that could not be learned, by reason.", aggregation="local"
    )
    metrics.gauge("springtide_auc", "Progressive AUC: each sample is scored before it is learned.")
    metrics.gauge("springtide_event_clock_lag_seconds", "Now minus the event time by which rows expire.")
    metrics.gauge("springtide_gate_holding", "1 while the health gate holds versions back, by reason.")
    metrics.counter(
        "springtide_gate_trips_total", "Times the health gate tripped since the trainer started.", aggregation="local"
    )
    metrics.counter(
        "springtide_gate_rollbacks_total",
        "Automatic rollbacks of the health gate since the log began.",
        aggregation="local",
    )
    for name, (help, _, _) in LABELED_COUNTERS.items():
        metrics.counter(f"springtide_table_{name}_total", help, aggregation="local")
    for name, help in PLAIN_COUNTERS.items():
        metrics.counter(f"springtide_table_{name}_total", help, aggregation="local")
    metrics.gauge("springtide_table_rows", "Rows by tier.")
    metrics.gauge("springtide_table_bytes", "Bytes by tier.")
    metrics.gauge(
        "springtide_table_expiry_cutoff_age_seconds", "Rows of the feature that were not seen for so long have expired."
    )


def update_trainer_metrics(metrics: MetricsRegistry, status: Mapping[str, Any], now_ms: int) -> None:
    """Set the metrics from the trainer's status; what the status does not have is removed."""
    metrics.replace_all("springtide_trainer_state", "state", {str(status.get("trainer")): 1.0})
    metrics.set("springtide_samples_trained_total", _number(status.get("samples_trained")))
    metrics.set("springtide_samples_per_second", _number(status.get("samples_per_second")))
    positions = {name: place for name, place in _object(status.get("positions")).items() if isinstance(place, dict)}
    lags = _numbers({name: place.get("lag") for name, place in positions.items()})
    metrics.replace_all("springtide_consumer_lag_records", "partition", lags)
    metrics.replace_all("springtide_dead_letters_total", "reason", _numbers(status.get("dead_letters")))
    for part in ("whole", "window"):
        score = _object(_object(status.get("scores")).get(part))
        metrics.set("springtide_auc", _number(score.get("auc")), part=part)
    _update_gate_metrics(metrics, _object(status.get("gate")))
    _update_table_metrics(metrics, _object(status.get("table")), now_ms)
    event_ms = _number(status.get("event_clock_ms")) or 0
    metrics.set("springtide_event_clock_lag_seconds", (now_ms - event_ms) / 1000 if event_ms > 0 else None)


def _update_gate_metrics(metrics: MetricsRegistry, gate: Mapping[str, Any]) -> None:
    holding = {str(gate.get("reason")): 1.0} if gate.get("state") == "holding" else {}
    metrics.replace_all("springtide_gate_holding", "reason", holding)
    metrics.set("springtide_gate_trips_total", _number(gate.get("trips")))
    metrics.set("springtide_gate_rollbacks_total", _number(gate.get("rollbacks")))


def _update_table_metrics(metrics: MetricsRegistry, table: Mapping[str, Any], now_ms: int) -> None:
    counts = _numbers(table)
    for name, (_, label, counters) in LABELED_COUNTERS.items():
        known = {value: counts[counter] for value, counter in counters.items() if counter in counts}
        metrics.replace_all(f"springtide_table_{name}_total", label, known)
    for name in PLAIN_COUNTERS:
        metrics.set(f"springtide_table_{name}_total", counts.get(name))
    metrics.replace_all("springtide_table_rows", "tier", _numbers(table.get("rows")))
    metrics.replace_all("springtide_table_bytes", "tier", _numbers(table.get("bytes")))
    cutoffs_ms = _numbers(table.get("expiry_cutoffs_ms"))
    ages = {feature: (now_ms - cutoff_ms) / 1000 for feature, cutoff_ms in cutoffs_ms.items()}
    metrics.replace_all("springtide_table_expiry_cutoff_age_seconds", "feature", ages)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(values: Any) -> dict[str, float]:
    """The numbers among the values of a JSON object."""
    found = {str(name): _number(value) for name, value in _object(values).items()}
    return {name: value for name, value in found.items() if value is not None}
