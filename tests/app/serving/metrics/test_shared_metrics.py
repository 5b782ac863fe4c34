from concurrent.futures import ThreadPoolExecutor

from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.shared_metrics import SharedMetrics


def worker(*, version, answers, seconds):
    metrics = MetricsRegistry()
    metrics.counter("answers_total", "Answers.")
    metrics.counter("trainer_total", "The trainer's own count, values by every worker.", aggregation="local")
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


def text_of(metrics, shared):
    return [line for line in metrics.text(metrics.aggregate(shared.read())).splitlines() if not line.startswith("#")]


def test_every_worker_exports_the_same_sums(tmp_path):
    shared = SharedMetrics(tmp_path)
    one, other = worker(version=4, answers=3, seconds=0.001), worker(version=6, answers=5, seconds=0.3)
    shared.publish(0, one.values())
    shared.publish(1, other.values())
    assert text_of(one, shared) == text_of(other, shared)
    assert {'answers_total{route="/x"} 8', "trainer_total 7", "version 4", "age 3", "streams 4"} <= set(
        text_of(one, shared)
    )
    assert 'waits_seconds_bucket{le="0.001"} 1' in text_of(one, shared)
    assert "waits_seconds_count 2" in text_of(one, shared)


def test_counters_of_an_exited_worker_stay_and_its_gauges_do_not(tmp_path):
    shared = SharedMetrics(tmp_path)
    one, other = worker(version=4, answers=3, seconds=0.001), worker(version=6, answers=5, seconds=0.3)
    for metrics in (one, other):
        metrics.counter("springtide_worker_exits_total", "By how.")
    shared.publish(0, one.values())
    shared.publish(1, other.values())
    shared.record_exit(0, "died")
    shared.record_exit(2, "died")  # before it published anything
    shared.publish(0, one.values())  # published too late
    lines = text_of(other, shared)
    assert {'answers_total{route="/x"} 8', "version 6", "streams 2", "waits_seconds_count 2"} <= set(lines)
    assert 'springtide_worker_exits_total{how="died"} 2' in lines


def test_metrics_can_be_read_while_they_are_published(tmp_path):
    shared = SharedMetrics(tmp_path)
    values = worker(version=4, answers=3, seconds=0.001).values()
    with ThreadPoolExecutor(4) as threads:
        # a scrape and the publication of every second, while another worker reads
        calls = [threads.submit(act) for _ in range(200) for act in (lambda: shared.publish(0, values), shared.read)]
    assert all(call.exception() is None for call in calls)
    assert [path.name for path in tmp_path.iterdir()] == ["worker-0.json"]


def test_a_full_disk_loses_metrics_only(tmp_path):
    folder = tmp_path / "shared"
    shared = SharedMetrics(folder)  # it cannot be written to: it is not there
    shared.publish(0, worker(version=4, answers=3, seconds=0.001).values())
    assert shared.read()[-1].counted == {}
    folder.mkdir()
    shared.publish(0, worker(version=4, answers=3, seconds=0.001).values())
    assert len(shared.read()) == 2
