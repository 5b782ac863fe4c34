"""The metrics of what the trainer reports: its state, the stream, scores, net and table."""

from collections.abc import Iterator

from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.shared_metrics import Labels
from springtide.app.version_log.trainer_status import (
    DriftStatus,
    GateStatus,
    JoinStatus,
    MemoryCheckStatus,
    MetricStatus,
    NetStatus,
    ScoresStatus,
    TableStatus,
    TaskStatus,
    TrainerStatus,
)

# metric -> help; a gauge by label of the schema and by part: whole or window
LABEL_SCORES = {
    "logloss": "Progressive logloss.",
    "calibration": "Clicks predicted over clicks seen.",
    "label_rate": "Mean label.",
    "normalized_entropy": "Logloss over that of always predicting the label rate.",
    "calibration_error": "Expected calibration error: mean distance of predicted and seen over bins of scores.",
    "rmse": "Root mean squared error of a label that is a value; of logarithms with the loss msle.",
    "top_decile_lift": "Label rate of the tenth with the highest scores over the label rate.",
}
SEGMENT_SCORES = {
    "auc": "AUC of the samples with one value of a feature of [scores] by.",
    "label_rate": "Mean label of the samples with one value of a feature of [scores] by.",
    "calibration": "Clicks predicted over clicks seen of the samples with one value of a feature of [scores] by.",
}
# the rest of a metric's name -> help
RANKING = {
    "": "Ranking metric: gauc, auc, mrr, ndcg@K, recall@K, by request or group (user and day), label and part.",
    "_standard_error": "Standard error of springtide_ranking, over groups.",
    "_ended_early": "Requests that were measured before their end, for lack of [scores] group_bytes.",
    "_share": "Share of the users whose ranking metrics are measured.",
}
POLICY_VALUES = {
    "ips": "What a policy of [policies] would have earned a request: inverse propensity score.",
    "ips_error": "Standard error of springtide_policy_ips.",
    "snips": "The same, self-normalized.",
    "snips_error": "Standard error of springtide_policy_snips.",
    "dr": "The same, doubly robust.",
    "dr_error": "Standard error of springtide_policy_dr.",
    "logged": "What the policy that showed has earned a request.",
    "effective_samples": "How many requests of the policy's own would say as much.",
    "clipped": "Share of the requests whose weight was cut by cap.",
}
OTHERS = "(others)"  # as a value: all that are not listed


def declare_score_metrics(metrics: MetricsRegistry) -> None:
    """Declare the metrics that `update_score_metrics` sets."""
    metrics.gauge(
        "springtide_auc", "Progressive AUC, each sample scored before it is learned, by part: whole or window."
    )
    for name, help in LABEL_SCORES.items():
        metrics.gauge(f"springtide_score_{name}", f"{help} By label and part: whole or window.")
    for name, help in SEGMENT_SCORES.items():
        metrics.gauge(f"springtide_segment_{name}", f"{help} By label, feature, value and part: whole or window.")
    for name, help in RANKING.items():
        metrics.gauge(f"springtide_ranking{name}", help)
    for name, help in POLICY_VALUES.items():
        metrics.gauge(f"springtide_policy_{name}", f"{help} By policy and part: whole or window.")
    metrics.gauge("springtide_drift_feature_psi", "Drift of a feature, as population stability index, by feature.")
    metrics.gauge(
        "springtide_drift_label_rate_psi", "Drift of the label rate, as population stability index, by label."
    )
    metrics.gauge("springtide_drift_score_psi", "Drift of the scores, as population stability index, by label.")
    metrics.gauge("springtide_drift", "1 for the highest level of drift of all, by level: none, moderate, large.")


def update_score_metrics(metrics: MetricsRegistry, scores: ScoresStatus) -> None:
    """Set the metrics; labels that the status does not have are removed. The label of a single task is empty."""
    metrics.set("springtide_auc", scores.whole.auc, part="whole")
    metrics.set("springtide_auc", scores.window.auc, part="window")
    tasks: dict[str, TaskStatus] = scores.tasks if isinstance(scores.tasks, dict) else {"": scores}
    for name in LABEL_SCORES:
        found: dict[Labels, float | None] = {
            (("label", label), ("part", part)): getattr(each, name)
            for label, task in tasks.items()
            for part, each in (("whole", task.whole), ("window", task.window))
        }
        known = {labels: value for labels, value in found.items() if value is not None}
        metrics.replace_labeled(f"springtide_score_{name}", known)
    for name in SEGMENT_SCORES:
        metrics.replace_labeled(f"springtide_segment_{name}", dict(_segment_values(tasks, name)))
    values, errors = dict[Labels, float](), dict[Labels, float]()
    early, shares = dict[Labels, float](), dict[Labels, float]()
    for labels, metric in _ranking_values(tasks):
        if metric.value is not None:
            values[labels] = metric.value
        if metric.standard_error is not None:
            errors[labels] = metric.standard_error
    for by, each in next((task.ranking for task in tasks.values() if task.ranking), {}).items():
        early[("by", by),], shares[("by", by),] = each.num_ended_early, each.share
    for name, found_by_labels in zip(RANKING, (values, errors, early, shares), strict=True):
        metrics.replace_labeled(f"springtide_ranking{name}", found_by_labels)
    for name in POLICY_VALUES:
        metrics.replace_labeled(f"springtide_policy_{name}", dict(_policy_values(scores, name)))
    drift = scores.drift or DriftStatus()
    metrics.replace_all("springtide_drift_feature_psi", "feature", {each.name: each.psi for each in drift.features})
    rates = {label: each.label_rate.psi for label, each in drift.labels.items()}
    metrics.replace_all("springtide_drift_label_rate_psi", "label", rates)
    metrics.replace_all("springtide_drift_score_psi", "label", {n: each.score.psi for n, each in drift.labels.items()})
    metrics.replace_all("springtide_drift", "level", {} if scores.drift is None else {drift.level: 1.0})


def _ranking_values(tasks: dict[str, TaskStatus]) -> Iterator[tuple[Labels, MetricStatus]]:
    for label, task in tasks.items():
        for by, ranking in task.ranking.items():
            for part, each in (("whole", ranking.whole), ("window", ranking.window)):
                found = {"gauc": each.gauc, "auc": each.auc, "mrr": each.mrr}
                found |= {f"ndcg@{k}": metric for k, metric in each.ndcg.items()}
                found |= {f"recall@{k}": metric for k, metric in each.recall.items()}
                for name, metric in found.items():
                    yield (("by", by), ("label", label), ("metric", name), ("part", part)), metric


def _policy_values(scores: ScoresStatus, name: str) -> Iterator[tuple[Labels, float]]:
    for policy, status in scores.policies.items():
        for part, each in (("whole", status.whole), ("window", status.window)):
            if (number := getattr(each, name)) is not None:
                yield (("part", part), ("policy", policy)), number


def _segment_values(tasks: dict[str, TaskStatus], name: str) -> Iterator[tuple[Labels, float]]:
    for label, task in tasks.items():
        for feature, segments in task.segments.items():
            for segment in segments:
                value = OTHERS if segment.value is None else segment.value
                for part, each in (("whole", segment.whole), ("window", segment.window)):
                    if (number := getattr(each, name)) is not None:
                        yield (("feature", feature), ("label", label), ("part", part), ("value", value)), number


# metric -> help, label, and the trainer's counter for each value of the label
LABELED_COUNTERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "hits": (
        "Ids of a batch found in memory, by tier: device, host.",
        "tier",
        {"device": "hits_device", "host": "hits_host"},
    ),
    "recalled": (
        "Rows read back into memory, by tier: disk, base.",
        "tier",
        {"disk": "recalled_from_spill", "base": "recalled_from_base"},
    ),
    "evicted": (
        "Rows evicted from memory, by reason: capacity, quota, resize.",
        "reason",
        {"capacity": "evicted_capacity", "quota": "evicted_quota", "resize": "evicted_resize"},
    ),
}
PLAIN_COUNTERS = {
    "keys": "Ids looked up, every occurrence.",
    "prefetched": "Rows fetched before the batch that needed them.",
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
    "spill_unknown_formats": "Databases that are read through RocksDB only, slower: their format is unknown.",
}


def declare_trainer_metrics(metrics: MetricsRegistry) -> None:
    """Declare the metrics that `update_trainer_metrics` sets."""
    metrics.gauge("springtide_trainer_state", "1 for the trainer's present state, by state.")
    metrics.counter("springtide_samples_trained_total", "Samples learned since the log began.", aggregation="local")
    metrics.gauge("springtide_samples_per_second", "Samples learned per second.")
    metrics.gauge("springtide_stream_records_per_second", "Records that the stream brings per second.")
    metrics.gauge(
        "springtide_blocked",
        "1 for what keeps the stream from being learned as fast as it comes, by: gate, log, source, spill, "
        "dead_letters, learner, join, or the topic that the join waits for.",
    )
    metrics.gauge("springtide_publish_interval_seconds", "The time between two versions at present, by what they cost.")
    metrics.gauge("springtide_publish_cost_seconds", "Processor time of a version.")
    metrics.gauge("springtide_consumer_lag_records", "End of the partition minus the learned position, by partition.")
    metrics.counter(
        "springtide_dead_letters_total", "Records that could not be learned, by reason.", aggregation="local"
    )
    metrics.counter(
        "springtide_memory_exceptions_total",
        "What samples could not read of [sequences], [remember] and [counters] as event times say, by reason: late, "
        "one came after samples that should have read it; dropped, a row had no room; early, a sample came too late.",
        aggregation="local",
    )
    metrics.counter(
        "springtide_memory_checks_total",
        "Samples that brought the signals of their answer, by result: equal or unequal to those of training.",
        aggregation="local",
    )
    metrics.counter(
        "springtide_memory_differences_total",
        "Samples whose signals were unequal, by the first feature that differed.",
        aggregation="local",
    )
    _declare_join_metrics(metrics)
    declare_score_metrics(metrics)
    metrics.gauge("springtide_learning_rate", "The present learning rate, of: net, rows.")
    metrics.gauge("springtide_gradient_norm", "Norm of the dense net's mean gradient in the newest batch.")
    metrics.counter("springtide_steps_total", "Batches learned since the log began.", aggregation="local")
    metrics.counter(
        "springtide_clipped_steps_total",
        "Steps in which gradients of the dense net were clipped, since the log began.",
        aggregation="local",
    )
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
    metrics.gauge("springtide_table_rows", "Rows, by tier: device, host, disk.")
    metrics.gauge("springtide_table_bytes", "Bytes of rows, by tier: device, host, disk.")
    metrics.gauge("springtide_table_expiry_cutoff_age_seconds", "Rows not seen for so long have expired, by feature.")


def update_trainer_metrics(metrics: MetricsRegistry, status: TrainerStatus, now_ms: int) -> None:
    """Set the metrics from the trainer's status; labels that the status does not have are removed."""
    metrics.replace_all("springtide_trainer_state", "state", {status.trainer: 1.0})
    metrics.set("springtide_samples_trained_total", status.samples_trained)
    metrics.set("springtide_samples_per_second", status.samples_per_second)
    metrics.set("springtide_stream_records_per_second", status.stream_per_second)
    metrics.replace_all("springtide_blocked", "by", {status.blocked_by: 1.0} if status.blocked_by else {})
    metrics.set("springtide_publish_interval_seconds", status.publishing.interval_seconds)
    metrics.set("springtide_publish_cost_seconds", status.publishing.cost_seconds)
    lags = {name: float(offsets.lag) for name, offsets in status.positions.items() if offsets.lag is not None}
    metrics.replace_all("springtide_consumer_lag_records", "partition", lags)
    metrics.replace_all("springtide_dead_letters_total", "reason", status.dead_letters)
    metrics.replace_all("springtide_memory_exceptions_total", "reason", status.memory)
    check = status.memory_check or MemoryCheckStatus()
    results = {"equal": check.equal, "unequal": check.unequal} if status.memory_check is not None else {}
    metrics.replace_all("springtide_memory_checks_total", "result", results)
    metrics.replace_all("springtide_memory_differences_total", "feature", check.unequal_by_feature)
    _update_join_metrics(metrics, status.join, now_ms)
    update_score_metrics(metrics, status.scores)
    _update_net_metrics(metrics, status.net)
    _update_gate_metrics(metrics, status.gate)
    _update_table_metrics(metrics, status.table, now_ms)
    event_ms = status.event_clock_ms
    metrics.set("springtide_event_clock_lag_seconds", (now_ms - event_ms) / 1000 if event_ms > 0 else None)


def _declare_join_metrics(metrics: MetricsRegistry) -> None:
    metrics.gauge("springtide_join_watermark_age_seconds", "Now minus the time until which windows are over.")
    metrics.gauge("springtide_join_held", "What a join holds, of: impressions, events.")
    metrics.gauge("springtide_join_bytes", "Bytes of what a join holds, in: memory, disk.")
    metrics.gauge("springtide_label_suspect", "1 for a label with less than a tenth of the last day's rate, by label.")
    metrics.gauge("springtide_join_slowest", "1 for the topic that holds the others back, by topic.")
    metrics.counter(
        "springtide_join_duplicates_total",
        "Impressions that followed one of their key too closely, since the log began.",
        aggregation="local",
    )
    metrics.counter(
        "springtide_join_unmatched_total",
        "Events that came within the window of no impression, since the log began, by label.",
        aggregation="local",
    )
    metrics.gauge("springtide_join_on_time_share", "Of the events that count, those within the window, by label.")


def _update_join_metrics(metrics: MetricsRegistry, join: JoinStatus | None, now_ms: int) -> None:
    found = join or JoinStatus()
    age = None if found.watermark_ms is None else (now_ms - found.watermark_ms) / 1000
    metrics.set("springtide_join_watermark_age_seconds", age)
    held = {} if join is None else {"impressions": join.impressions, "events": join.events}
    metrics.replace_all("springtide_join_held", "of", held)
    in_bytes = {} if join is None else {"memory": join.memory_bytes, "disk": join.disk_bytes}
    metrics.replace_all("springtide_join_bytes", "in", in_bytes)
    metrics.replace_all("springtide_label_suspect", "label", dict.fromkeys(found.suspect, 1.0))
    metrics.replace_all("springtide_join_slowest", "topic", {found.slowest: 1.0} if found.slowest else {})
    metrics.set("springtide_join_duplicates_total", None if join is None else join.duplicates)
    unmatched = {name: label.unmatched for name, label in found.labels.items()}
    metrics.replace_all("springtide_join_unmatched_total", "label", unmatched)
    shares = {name: label.on_time_share for name, label in found.labels.items() if label.on_time_share is not None}
    metrics.replace_all("springtide_join_on_time_share", "label", shares)


def _update_net_metrics(metrics: MetricsRegistry, net: NetStatus) -> None:
    rates = {"net": net.lr, "rows": net.rows_lr}
    metrics.replace_all("springtide_learning_rate", "of", {of: lr for of, lr in rates.items() if lr is not None})
    metrics.set("springtide_gradient_norm", net.gradient_norm)
    metrics.set("springtide_steps_total", net.steps)
    metrics.set("springtide_clipped_steps_total", net.clipped_steps)


def _update_gate_metrics(metrics: MetricsRegistry, gate: GateStatus) -> None:
    holding = {str(gate.reason): 1.0} if gate.state == "holding" else {}
    metrics.replace_all("springtide_gate_holding", "reason", holding)
    metrics.set("springtide_gate_trips_total", gate.trips)
    metrics.set("springtide_gate_rollbacks_total", gate.rollbacks)


def _update_table_metrics(metrics: MetricsRegistry, table: TableStatus, now_ms: int) -> None:
    counts = table.counters
    for name, (_, label, counters) in LABELED_COUNTERS.items():
        known = {value: counts[counter] for value, counter in counters.items() if counter in counts}
        metrics.replace_all(f"springtide_table_{name}_total", label, known)
    for name in PLAIN_COUNTERS:
        metrics.set(f"springtide_table_{name}_total", counts.get(name))
    metrics.replace_all("springtide_table_rows", "tier", table.rows)
    metrics.replace_all("springtide_table_bytes", "tier", table.bytes)
    ages = {feature: (now_ms - cutoff_ms) / 1000 for feature, cutoff_ms in table.expiry_cutoffs_ms.items()}
    metrics.replace_all("springtide_table_expiry_cutoff_age_seconds", "feature", ages)
