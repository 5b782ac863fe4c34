import msgspec

from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.trainer_metrics import (
    LABELED_COUNTERS,
    PLAIN_COUNTERS,
    declare_trainer_metrics,
    update_trainer_metrics,
)
from springtide.app.version_log.trainer_status import (
    GateStatus,
    JoinLabelStatus,
    JoinStatus,
    NetStatus,
    PartitionStatus,
    PublishStatus,
    ScoresStatus,
    ScoreStatus,
    TableStatus,
    TrainerStatus,
)
from springtide.embeddings.counters import COUNTERS
from springtide.embeddings.tiers import host_tier
from springtide.embeddings.tiers.rocksdb import spill

GATE = GateStatus(state="holding", action="alert", reason="norm", detail="...", trips=2, rollbacks=1)
STATUS = TrainerStatus(
    trainer="running",
    samples_trained=12,
    samples_per_second=3.5,
    stream_per_second=4.5,
    blocked_by="learner",
    publishing=PublishStatus(interval_seconds=0.25, cost_seconds=0.05),
    positions={"clicks/0": PartitionStatus(lag=3), "clicks/1": PartitionStatus()},
    dead_letters={"bad_json": 4},
    scores=ScoresStatus(whole=ScoreStatus(auc=0.75)),
    join=JoinStatus(
        1_028_000,
        40,
        5,
        3,
        "clicks",
        {"click": JoinLabelStatus(7, 0.8), "order": JoinLabelStatus(1)},
        memory_bytes=800,
        disk_bytes=90,
        suspect=["click"],
    ),
    gate=GATE,
    net=NetStatus(lr=0.001, rows_lr=0.05, gradient_norm=1.5, steps=9, clipped_steps=2),
    event_clock_ms=1_000_000,
    table=TableStatus(
        rows={"device": 7, "disk": 3},
        bytes={"device": 700},
        counters={
            "keys": 50,
            "hits_device": 40,
            "recalled_from_spill": 4,
            "evicted_capacity": 5,
            "evicted_quota": 1,
            "premature_evictions": 2,
            "not_admitted": 6,
        },
        expiry_cutoffs_ms={"item_id": 940_000},
    ),
)


def values_after(*statuses: TrainerStatus) -> list[str]:
    """The lines with values after these statuses were exported one after the other."""
    metrics = MetricsRegistry()
    declare_trainer_metrics(metrics)
    for status in statuses:
        update_trainer_metrics(metrics, status, now_ms=1_030_000)
    return [line for line in metrics.text().splitlines() if not line.startswith("#")]


def test_the_trainers_status_is_exported_by_name_and_label():
    assert set(values_after(STATUS)) == {
        'springtide_trainer_state{state="running"} 1',
        "springtide_samples_trained_total 12",
        "springtide_samples_per_second 3.5",
        "springtide_stream_records_per_second 4.5",
        'springtide_blocked{by="learner"} 1',
        "springtide_publish_interval_seconds 0.25",
        "springtide_publish_cost_seconds 0.05",
        'springtide_consumer_lag_records{partition="clicks/0"} 3',
        'springtide_dead_letters_total{reason="bad_json"} 4',
        "springtide_join_watermark_age_seconds 2",
        'springtide_join_held{of="impressions"} 40',
        'springtide_join_held{of="events"} 5',
        'springtide_join_bytes{in="memory"} 800',
        'springtide_join_bytes{in="disk"} 90',
        'springtide_label_suspect{label="click"} 1',
        'springtide_join_slowest{topic="clicks"} 1',
        "springtide_join_duplicates_total 3",
        'springtide_join_unmatched_total{label="click"} 7',
        'springtide_join_unmatched_total{label="order"} 1',
        'springtide_join_on_time_share{label="click"} 0.8',
        'springtide_auc{part="whole"} 0.75',
        'springtide_learning_rate{of="net"} 0.001',
        'springtide_learning_rate{of="rows"} 0.05',
        "springtide_gradient_norm 1.5",
        "springtide_steps_total 9",
        "springtide_clipped_steps_total 2",
        'springtide_gate_holding{reason="norm"} 1',
        "springtide_gate_trips_total 2",
        "springtide_gate_rollbacks_total 1",
        "springtide_event_clock_lag_seconds 30",
        'springtide_table_evicted_total{reason="capacity"} 5',
        'springtide_table_evicted_total{reason="quota"} 1',
        'springtide_table_hits_total{tier="device"} 40',
        'springtide_table_recalled_total{tier="disk"} 4',
        "springtide_table_keys_total 50",
        "springtide_table_not_admitted_total 6",
        "springtide_table_premature_evictions_total 2",
        'springtide_table_rows{tier="device"} 7',
        'springtide_table_rows{tier="disk"} 3',
        'springtide_table_bytes{tier="device"} 700',
        'springtide_table_expiry_cutoff_age_seconds{feature="item_id"} 90',
    }


def test_labels_that_the_status_no_longer_has_are_removed():
    assert values_after(STATUS, TrainerStatus()) == [
        'springtide_trainer_state{state="stopped"} 1',
        "springtide_samples_trained_total 0",
        "springtide_samples_per_second 0",
        "springtide_stream_records_per_second 0",
        "springtide_publish_interval_seconds 0",
        "springtide_publish_cost_seconds 0",
        "springtide_steps_total 0",
        "springtide_clipped_steps_total 0",
        "springtide_gate_trips_total 0",
        "springtide_gate_rollbacks_total 0",
    ]
    open_gate = TrainerStatus(gate=msgspec.structs.replace(GATE, state="open"))
    assert not [line for line in values_after(STATUS, open_gate) if "gate_holding" in line]


def test_every_counter_of_the_table_is_exported():
    labeled = {counter for _, _, counters in LABELED_COUNTERS.values() for counter in counters.values()}
    counted = {*COUNTERS, *host_tier.COUNTS, *spill.FIND_COUNTS, *spill.WORKER_COUNTS, "overflowed"}
    # the label `reason` of springtide_table_evicted_total adds up to `evicted`
    assert labeled | PLAIN_COUNTERS.keys() == counted - {"evicted"}
