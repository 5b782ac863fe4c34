"""Progressive scores and drift as metrics of this server, taken from the trainer's status."""

from collections.abc import Iterator

from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.shared_metrics import Labels
from springtide.app.version_log.trainer_status import DriftStatus, ScoresStatus, TaskStatus

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
    drift = scores.drift or DriftStatus()
    metrics.replace_all("springtide_drift_feature_psi", "feature", {each.name: each.psi for each in drift.features})
    rates = {label: each.label_rate.psi for label, each in drift.labels.items()}
    metrics.replace_all("springtide_drift_label_rate_psi", "label", rates)
    metrics.replace_all("springtide_drift_score_psi", "label", {n: each.score.psi for n, each in drift.labels.items()})
    metrics.replace_all("springtide_drift", "level", {} if scores.drift is None else {drift.level: 1.0})


def _segment_values(tasks: dict[str, TaskStatus], name: str) -> Iterator[tuple[Labels, float]]:
    for label, task in tasks.items():
        for feature, segments in task.segments.items():
            for segment in segments:
                value = OTHERS if segment.value is None else segment.value
                for part, each in (("whole", segment.whole), ("window", segment.window)):
                    if (number := getattr(each, name)) is not None:
                        yield (("feature", feature), ("label", label), ("part", part), ("value", value)), number
