import msgspec

from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.trainer_metrics import declare_score_metrics, update_score_metrics
from springtide.app.version_log.trainer_status import ScoresStatus, ScoreStatus, TaskStatus

SCORES = msgspec.convert(
    {
        "whole": {"auc": 0.7, "logloss": 0.5, "label_rate": 0.2},
        "window": {"auc": 0.75, "calibration": 1.5},
        "segments": {
            "country": [
                {"value": "DE", "window": {"auc": 0.6, "samples": 10}},
                {"value": None, "whole": {"auc": 0.5, "samples": 1}},
            ]
        },
        "drift": {
            "level": "large",
            "most": "country",
            "labels": {
                "click": {
                    "label_rate": {"reference": 0.1, "recent": 0.2, "psi": 0.08, "level": "large"},
                    "score": {"psi": 0.04, "level": "none"},
                }
            },
            "features": [{"name": "country", "psi": 0.3, "level": "large"}],
        },
    },
    ScoresStatus,
)


def values_after(*statuses: ScoresStatus) -> set[str]:
    metrics = MetricsRegistry()
    declare_score_metrics(metrics)
    for status in statuses:
        update_score_metrics(metrics, status)
    return {line for line in metrics.text().splitlines() if not line.startswith("#")}


def test_scores_segments_and_drift_are_exported():
    assert values_after(SCORES) == {
        'springtide_auc{part="whole"} 0.7',
        'springtide_auc{part="window"} 0.75',
        'springtide_score_logloss{label="",part="whole"} 0.5',
        'springtide_score_label_rate{label="",part="whole"} 0.2',
        'springtide_score_calibration{label="",part="window"} 1.5',
        'springtide_segment_auc{feature="country",label="",part="window",value="DE"} 0.6',
        'springtide_segment_auc{feature="country",label="",part="whole",value="(others)"} 0.5',
        'springtide_drift_feature_psi{feature="country"} 0.3',
        'springtide_drift_label_rate_psi{label="click"} 0.08',
        'springtide_drift_score_psi{label="click"} 0.04',
        'springtide_drift{level="large"} 1',
    }


def test_ranking_metrics_are_exported_with_their_errors():
    known = {"value": 0.6, "standard_error": 0.01}
    whole = {"groups": 5, "gauc": known, "ndcg": {"5": {"value": 0.7}}}
    ranking = {"request": {"whole": whole, "num_ended_early": 3}, "group": {"share": 0.5}}
    assert values_after(msgspec.convert({"ranking": ranking}, ScoresStatus)) == {
        'springtide_ranking{by="request",label="",metric="gauc",part="whole"} 0.6',
        'springtide_ranking{by="request",label="",metric="ndcg@5",part="whole"} 0.7',
        'springtide_ranking_standard_error{by="request",label="",metric="gauc",part="whole"} 0.01',
        'springtide_ranking_ended_early{by="request"} 3',
        'springtide_ranking_ended_early{by="group"} 0',
        'springtide_ranking_share{by="request"} 1',
        'springtide_ranking_share{by="group"} 0.5',
    }


def test_values_of_policies_are_exported():
    whole = {"requests": 9, "logged": 0.2, "ips": 0.3, "ips_error": 0.05, "clipped": 0.1}
    assert values_after(msgspec.convert({"policies": {"greedy": {"whole": whole}}}, ScoresStatus)) == {
        'springtide_policy_logged{part="whole",policy="greedy"} 0.2',
        'springtide_policy_ips{part="whole",policy="greedy"} 0.3',
        'springtide_policy_ips_error{part="whole",policy="greedy"} 0.05',
        'springtide_policy_clipped{part="whole",policy="greedy"} 0.1',
    }


def test_several_labels_are_told_apart():
    tasks = {"click": TaskStatus(whole=ScoreStatus(logloss=0.5)), "buy": TaskStatus(whole=ScoreStatus(logloss=0.1))}
    assert values_after(ScoresStatus(tasks=tasks)) == {
        'springtide_score_logloss{label="click",part="whole"} 0.5',
        'springtide_score_logloss{label="buy",part="whole"} 0.1',
    }


def test_what_the_status_no_longer_has_is_removed():
    assert values_after(SCORES, ScoresStatus()) == set()
