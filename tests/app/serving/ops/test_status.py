from springtide.app.serving.ops.status import MAX_SAMPLES, StatusHistory, StatusResponse
from springtide.app.version_log.trainer_status import (
    PartitionStatus,
    ScoresStatus,
    ScoreStatus,
    TableStatus,
)
from tests.support.waiting import wait_until


def status_of(**fields) -> StatusResponse:
    names = ("published_version", "freshness_ms", "catching_up_ms", "staleness_ms", "now_ms", "server")
    return StatusResponse(**dict.fromkeys(names) | fields)


def test_the_lags_of_all_partitions_are_summed():
    assert status_of().sample().lag is None
    positions = {"a/0": PartitionStatus(lag=3), "a/1": PartitionStatus(), "a/2": PartitionStatus(lag=4)}
    scores = ScoresStatus(window=ScoreStatus(auc=0.7))
    sample = status_of(scores=scores, positions=positions, table=TableStatus(rows={"device": 3})).sample()
    assert (sample.auc_window, sample.lag, sample.rows) == (0.7, 7, {"device": 3})


def test_the_oldest_samples_are_dropped():
    history = StatusHistory()
    for version in range(MAX_SAMPLES + 5):
        history.add(status_of(version=version).sample())
    assert [sample.version for sample in history.samples()] == list(range(5, MAX_SAMPLES + 5))


def test_the_status_joins_the_trainers_report_with_measurements(world):
    client = world.serve()
    world.log.start_epoch()
    world.served(client, world.log.number)
    now_ms = world.log.meta().created_ms
    world.log.publish(created_ms=now_ms, complete_until_ms=now_ms)
    number = world.log.publish(record_ms=[now_ms - 200, now_ms - 100], created_ms=now_ms)
    world.served(client, number)
    world.log.write_status(version=number + 5, samples_trained=7, positions={"clicks/0": {"lag": 3}})
    status = client.get("/v1/status").json()
    assert status["version"] == number
    assert status["published_version"] == number + 5
    assert status["samples_trained"] == 7
    assert status["trainer"] == "running"
    assert 100 <= status["freshness_ms"]["p50"] <= status["freshness_ms"]["p99"] < 60_000
    assert 0 <= status["staleness_ms"] < 60_000
    newer = wait_until(
        lambda: [
            s
            for s in client.get("/v1/status?history=1").json()["history"]
            if s["version"] == number + 5 or s["version"] == number
        ]
    )
    assert newer[-1]["at_ms"] >= now_ms
    text = client.get("/metrics").text
    assert f"springtide_version {number}" in text
    assert 'springtide_consumer_lag_records{partition="clicks/0"} 3' in text
    assert 'springtide_trainer_state{state="running"} 1' in text
    assert 'springtide_http_requests_total{route="/v1/status",status="200"}' in text
    assert 'springtide_freshness_seconds_count{trainer="caught_up"} 2' in text


def test_records_that_waited_for_the_trainer_have_numbers_of_their_own(world):
    client = world.serve()
    world.log.start_epoch()
    world.served(client, world.log.number)
    now_ms = world.log.meta().created_ms
    away_ms = 10_000
    world.served(client, world.log.publish(record_ms=[now_ms - away_ms], catching_up=True))
    status = client.get("/v1/status").json()
    assert status["freshness_ms"] is None
    assert status["catching_up_ms"]["ended_ms"] is None
    assert 'springtide_freshness_seconds_count{trainer="catching_up"} 1' in client.get("/metrics").text


def test_versions_published_before_the_server_started_do_not_count_for_freshness(world):
    world.log.start_epoch()
    number = world.log.publish(record_ms=[1, 2, 3])
    client = world.serve()
    world.served(client, number)
    assert client.get("/v1/status").json()["freshness_ms"] is None
