"""The metrics of this server, declared by name; the trainer's, which it also exports, are in trainer_metrics."""

from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.trainer_metrics import declare_trainer_metrics


def declare_metrics(metrics: MetricsRegistry) -> MetricsRegistry:
    """Declare every metric that /metrics exports; returns the registry."""
    metrics.histogram("springtide_http_request_duration_seconds", "Time until a response was sent, by route.")
    metrics.counter("springtide_http_requests_total", "Requests answered, by route and status.")
    metrics.counter(
        "springtide_requests_rejected_total",
        "Requests that were not served, by reason: busy, not_ready, in_flight, timeout, size, token, host, "
        "max_staleness, min_version, part.",
    )
    metrics.gauge(
        "springtide_http_requests_in_flight", "Requests being answered, without streams and probes.", aggregation="sum"
    )
    metrics.gauge("springtide_open_streams", "Open streams and long polls.", aggregation="sum")
    metrics.counter(
        "springtide_lookup_rows_total", "Rows looked up, by status: known, unknown, not_admitted, forgotten."
    )
    metrics.counter("springtide_predictions_total", "Instances scored.")
    metrics.counter("springtide_rankings_total", "Rank requests answered, by policy.")
    metrics.counter("springtide_predict_batches_total", "Calls of the model, each for the instances of many requests.")
    metrics.counter(
        "springtide_predict_rows_total", "Rows used by predictions, by status: only known rows are learned."
    )
    metrics.counter(
        "springtide_predict_missing_total",
        "Instances scored without a value of a feature, by feature: a misspelt name shows here.",
    )
    metrics.counter("springtide_retrieved_items_total", "Items of retrieve responses.")
    metrics.gauge("springtide_retrieve_items", "Items in the index of a model with two towers.", aggregation="min")
    metrics.gauge(
        "springtide_retrieve_changed_items",
        "Items that came or changed since the index was built, which are searched beside it.",
        aggregation="max",
    )
    metrics.gauge(
        "springtide_retrieve_version", "The version from which retrieve requests are answered.", aggregation="min"
    )
    metrics.gauge(
        "springtide_retrieve_index_age_seconds",
        "From the version whose vectors propose candidates until the one that scores them.",
        aggregation="max",
    )
    metrics.gauge(
        "springtide_retrieve_recall",
        "Share of the 10 best items by exact search that the index finds, for the users who asked last.",
        aggregation="min",
    )
    metrics.gauge("springtide_version", "The served version: the oldest of all workers.", aggregation="min")
    metrics.gauge("springtide_ready", "1 if every worker serves a version.", aggregation="min")
    metrics.counter("springtide_view_swaps_total", "Versions that became servable, counted by each worker.")
    metrics.counter("springtide_applied_bytes_total", "Bytes of the versions that became servable.")
    metrics.histogram(
        "springtide_freshness_seconds",
        "From a record's timestamp until it is servable, of sampled records, by trainer: caught_up; catching_up, from "
        "its start or a batch taken 3 s late until less than a full batch waits.",
    )
    metrics.gauge(
        "springtide_complete_until_timestamp_seconds",
        "Every record readable at this Unix time is in the served version.",
        aggregation="min",
    )
    metrics.gauge("springtide_staleness_seconds", "Now minus springtide_complete_until_timestamp_seconds.")
    metrics.gauge(
        "springtide_rows_held",
        "Rows in the base and in the changes over it that this server holds, in files and in memory.",
        aggregation="max",
    )
    metrics.gauge(
        "springtide_part_number", "The range of keys whose rows this server holds; 0: none.", aggregation="max"
    )
    metrics.gauge("springtide_parts", "Into how many ranges the keys are divided.", aggregation="max")
    metrics.histogram(
        "springtide_part_request_duration_seconds",
        "Until the server of another part had responded, by its range and outcome: ok, version, failed.",
    )
    metrics.gauge("springtide_workers", "Processes that answer requests.", aggregation="sum")
    metrics.counter(
        "springtide_worker_exits_total", "Workers that have exited, by how: replaced (by a restart) or died."
    )
    declare_trainer_metrics(metrics)
    return metrics
