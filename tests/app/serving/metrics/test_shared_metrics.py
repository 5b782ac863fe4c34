from concurrent.futures import ThreadPoolExecutor

from app.serving.metrics.registry import MetricsRegistry
from app.serving.metrics.shared_metrics import SharedMetrics


def worker(*, version, answers, seconds):
    metrics = MetricsRegistry()
    metrics.counter("answers_total", "Answers.")
    metrics.counter("trainer_total", "The trainer's own count, told by every worker.", aggregation="local")
    metrics.gauge("version", "The oldest.", aggregation="min")
    metrics.gauge("age", "The greatest.", aggregation="max")
    metrics.gauge("streams", "All.", aggregation="sum")
    metrics.histogram("waits_seconds", "How long.")
    metrics.increment("answers_total", answers - 1, route="/x")
    metrics.unlocked_counter("answers_total", route="/x").amount += 1
    metrics.set("trainer_total", 7)
    metrics.set("version", version)
    metrics.set("age", version / 2)
    metrics.set("streams", 2)
    metrics.observe("waits_seconds", seconds)
    return metrics


def text_of(metrics, tally):
    return [line for line in metrics.text(metrics.aggregate(tally.read())).splitlines() if not line.startswith("#")]


def test_every_worker_exports_the_same_sums(tmp_path):
    tally = SharedMetrics(tmp_path)
    one, other = worker(version=4, answers=3, seconds=0.001), worker(version=6, answers=5, seconds=0.3)
    tally.publish(0, one.values())
    tally.publish(1, other.values())
    assert text_of(one, tally) == text_of(other, tally)
    assert {'answers_total{route="/x"} 8', "trainer_total 7", "version 4", "age 3", "streams 4"} <= set(
        text_of(one, tally)
    )
    assert 'waits_seconds_bucket{le="0.001"} 1' in text_of(one, tally)
    assert "waits_seconds_count 2" in text_of(one, tally)


def test_counters_of_an_exited_worker_stay_and_its_gauges_do_not(tmp_path):
    tally = SharedMetrics(tmp_path)
    one, other = worker(version=4, answers=3, seconds=0.001), worker(version=6, answers=5, seconds=0.3)
    for metrics in (one, other):
        metrics.counter("springtide_worker_exits_total", "By how.")
    tally.publish(0, one.values())
    tally.publish(1, other.values())
    tally.record_exit(0, "died")
    tally.record_exit(2, "died")  # before it said anything
    tally.publish(0, one.values())  # a word that came too late
    lines = text_of(other, tally)
    assert {'answers_total{route="/x"} 8', "version 6", "streams 2", "waits_seconds_count 2"} <= set(lines)
    assert 'springtide_worker_exits_total{how="died"} 2' in lines


def test_metrics_can_be_read_while_they_are_published(tmp_path):
    tally = SharedMetrics(tmp_path)
    told = worker(version=4, answers=3, seconds=0.001).values()
    with ThreadPoolExecutor(4) as threads:
        # a probe and the word that is due every second, and another worker that adds up meanwhile
        asked = [threads.submit(act) for _ in range(200) for act in (lambda: tally.publish(0, told), tally.read)]
    assert all(call.exception() is None for call in asked)
    assert [path.name for path in tmp_path.iterdir()] == ["worker-0.json"]


def test_a_full_disk_loses_metrics_only(tmp_path):
    folder = tmp_path / "tally"
    tally = SharedMetrics(folder)  # it cannot be written to: it is not there
    tally.publish(0, worker(version=4, answers=3, seconds=0.001).values())
    assert tally.read()[-1].counters == {}
    folder.mkdir()
    tally.publish(0, worker(version=4, answers=3, seconds=0.001).values())
    assert len(tally.read()) == 2
