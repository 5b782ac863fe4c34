from springtide.app.serving.metrics.registry import MetricsRegistry


def test_counters_gauges_and_histograms_are_written_as_prometheus_text():
    metrics = MetricsRegistry()
    metrics.counter("a_total", "How many.")
    metrics.gauge("b", "How much.")
    metrics.histogram("c_seconds", "How long.")
    metrics.increment("a_total", route='/x"y\\z\n', status="200")
    metrics.increment("a_total", 2, route='/x"y\\z\n', status="200")
    metrics.set("b", 0.25)
    metrics.set("b", 2**40, part="whole")
    metrics.observe("c_seconds", 0.0002, route="/")
    metrics.observe("c_seconds", 0.3, route="/")
    metrics.observe("c_seconds", 99, route="/")
    lines = metrics.text().splitlines()
    assert "# TYPE a_total counter" in lines
    assert r'a_total{route="/x\"y\\z\n",status="200"} 3' in lines
    assert "b 0.25" in lines
    assert f'b{{part="whole"}} {2**40}' in lines
    assert 'c_seconds_bucket{route="/",le="0.0002"} 1' in lines
    assert 'c_seconds_bucket{route="/",le="0.5"} 2' in lines
    assert 'c_seconds_bucket{route="/",le="+Inf"} 3' in lines
    assert 'c_seconds_count{route="/"} 3' in lines
    assert metrics.text().endswith("\n")


def test_a_gauge_without_a_value_is_not_shown():
    metrics = MetricsRegistry()
    metrics.gauge("b", "How much.")
    metrics.set("b", 1.0)
    metrics.set("b", None)
    assert [line for line in metrics.text().splitlines() if not line.startswith("#")] == []
    metrics.replace_all("b", "tier", {"host": 1, "disk": 2})
    metrics.replace_all("b", "tier", {"disk": 3})
    assert [line for line in metrics.text().splitlines() if not line.startswith("#")] == ['b{tier="disk"} 3']
