from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import LOADING_FIRST_VERSION, NO_VERSION_YET, Replica
from springtide.app.serving.service import declare_metrics
from tests.app.serving.conftest import new_log


def test_the_reason_tells_loading_from_a_missing_version(tmp_path):
    log, reasons = new_log(tmp_path / "log"), []
    replica = Replica(
        log.path,
        poll_interval_seconds=0.01,
        metrics=declare_metrics(MetricsRegistry()),
    )
    replica.records.add = lambda record: reasons.append(replica.reason)
    replica.follower.poll()
    assert replica.reason == NO_VERSION_YET
    log.start_epoch()
    log.publish()
    while replica.view is None:  # errors of the log are retried after a pause
        replica.follower.poll()
    assert reasons == [LOADING_FIRST_VERSION]
    assert replica.reason == ""
    replica.follower.close()


def test_one_version_is_served_once_the_log_leads_to_it_and_never_another(tmp_path):
    log = new_log(tmp_path / "log")
    log.start_epoch()
    numbers = [log.publish() for _ in range(3)]
    replica = Replica(
        log.path,
        poll_interval_seconds=0.01,
        metrics=declare_metrics(MetricsRegistry()),
        version=numbers[1],
    )
    replica.follower.poll()
    log.write_base()
    log.publish()
    assert replica.view.version == numbers[1]
    assert not replica.follower.poll()
    assert (replica.view.version, replica.num_swaps) == (numbers[1], 1)
    assert replica.versions.find(numbers[2]) is None
    replica.follower.close()
    gone = Replica(log.path, poll_interval_seconds=0.01, metrics=declare_metrics(MetricsRegistry()), version=77)
    gone.follower.poll()
    assert gone.view is None
    assert "77 is not in the log" in gone.reason or "can no longer be rebuilt" in gone.reason
    gone.follower.close()
