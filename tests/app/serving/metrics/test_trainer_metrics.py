from app.serving.metrics.registry import MetricsRegistry
from app.serving.metrics.trainer_metrics import declare_table_metrics, update_table_metrics

STATUS = {
    "event_clock_ms": 1_000_000,
    "table": {
        "rows": {"device": 7, "disk": 3},
        "bytes": {"device": 700},
        "keys": 50,
        "hits_device": 40,
        "recalled_from_spill": 4,
        "evicted_capacity": 5,
        "evicted_quota": 1,
        "regret": 2,
        "not_admitted": 6,
        "horizons_ms": {"item_id": 940_000},
    },
}


def test_what_the_table_counts_is_scraped_by_name_and_label():
    metrics = MetricsRegistry()
    declare_table_metrics(metrics)
    update_table_metrics(metrics, STATUS, now_ms=1_030_000)
    lines = metrics.text().splitlines()
    for line in (
        "# TYPE springtide_table_evicted_total counter",
        'springtide_table_evicted_total{reason="capacity"} 5',
        'springtide_table_evicted_total{reason="quota"} 1',
        'springtide_table_hits_total{tier="device"} 40',
        'springtide_table_recalled_total{tier="disk"} 4',
        "springtide_table_keys_total 50",
        "springtide_table_not_admitted_total 6",
        "springtide_table_regret_total 2",
        'springtide_table_rows{tier="disk"} 3',
        'springtide_table_horizon_age_seconds{feature="item_id"} 90',
        "springtide_event_clock_lag_seconds 30",
    ):
        assert line in lines


def test_without_a_trainer_nothing_is_claimed():
    metrics = MetricsRegistry()
    declare_table_metrics(metrics)
    update_table_metrics(metrics, STATUS, now_ms=1_030_000)
    update_table_metrics(metrics, {"trainer": "stopped"}, now_ms=1_030_000)
    assert [line for line in metrics.text().splitlines() if not line.startswith("#")] == []
