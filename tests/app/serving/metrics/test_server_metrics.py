"""Metric names follow Prometheus's rules, the ones that `promtool check metrics` knows among them."""

import re

import pytest

from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.server_metrics import declare_metrics

FAMILIES = declare_metrics(MetricsRegistry()).families
NAME = re.compile(r"springtide(_[a-z0-9]+)+")
NOT_BASE_UNITS = re.compile(r"_(ms|milliseconds|minutes|hours|kb|mb|kib|mib|percent)(_|$)")
RESERVED_SUFFIXES = ("_bucket", "_count", "_sum", "_info", "_created")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_metric_name_follows_prometheus_naming(name):
    family = FAMILIES[name]
    assert NAME.fullmatch(name)
    assert name.endswith("_total") == (family.kind == "counter")
    assert not name.endswith(RESERVED_SUFFIXES)
    assert not NOT_BASE_UNITS.search(name)
    assert family.kind not in name.split("_")
    if family.kind == "histogram":
        assert name.endswith("_seconds")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_help_text_is_one_sentence(name):
    assert re.fullmatch(r"[A-Z0-9][^\n]*[.]", FAMILIES[name].help)


def test_every_line_of_a_scrape_is_valid_and_no_gauge_has_a_quantile(world):
    world.log.start_epoch()
    number = world.log.publish({(0, 1): [1, 2, 3, 4]})
    world.log.write_status(samples_trained=3, dead_letters={"bad_json": 1}, positions={"clicks/0": {"lag": 2}})
    client = world.serve()
    world.served(client, number)
    client.post("/v1/predict", json={"instances": [{"user_id": 1}]})
    kinds = {}
    sample = re.compile(r'([a-z0-9_]+)(\{([a-z_]+="[^"]*",?)+\})? (-?[0-9.e+-]+|NaN|[+-]Inf)')
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, f"{name} is declared twice"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = sample.fullmatch(line)
            assert match, line
            assert "quantile=" not in line
            assert 'le="' not in line or "_bucket{" in line
            family = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert match[1] in kinds or kinds.get(family) == "histogram", line
    assert set(kinds) == set(FAMILIES)
