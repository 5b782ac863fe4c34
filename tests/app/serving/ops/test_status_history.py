from springtide.app.serving.ops.status_history import MAX_SAMPLES, StatusHistory, summarize
from springtide.app.version_log.trainer_status import (
    PartitionStatus,
    ScoresStatus,
    ScoreStatus,
    TableStatus,
    TrainerStatus,
)


def test_the_lags_of_all_partitions_are_summed():
    assert summarize(TrainerStatus().to_json())["lag"] is None
    positions = {"a/0": PartitionStatus(lag=3), "a/1": PartitionStatus(), "a/2": PartitionStatus(lag=4)}
    scores = ScoresStatus(window=ScoreStatus(auc=0.7))
    status = TrainerStatus(scores=scores, positions=positions, table=TableStatus(rows={"device": 3}))
    sample = summarize(status.to_json())
    assert (sample["auc_window"], sample["lag"], sample["rows"]) == (0.7, 7, {"device": 3})


def test_the_oldest_samples_are_dropped():
    history = StatusHistory()
    for version in range(MAX_SAMPLES + 5):
        history.add(TrainerStatus(version=version).to_json())
    assert [sample["version"] for sample in history.samples()] == list(range(5, MAX_SAMPLES + 5))
