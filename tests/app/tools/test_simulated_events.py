"""Simulated impressions and clicks apart: repeatable, late, in disorder, some twice; and what a join makes of them."""

import json
from typing import Any

import numpy as np
import pytest

from springtide.app.config.load import Config, load_config
from springtide.app.errors import UserError
from springtide.app.tools.demo import check_fields, demo_config_path
from springtide.app.tools.simulated_events import SimulatedEvents
from springtide.app.tools.simulated_world import SimulatorConfig
from springtide.app.tools.simulator import ClickGenerator
from tests.stream.join.batch_join import Label, Record, batch_join

START_MS, NUM_CHUNKS = 1_795_000_000_000, 100
FOREVER_MS = START_MS + 10**9


@pytest.fixture
def config() -> Config:
    return load_config(demo_config_path(join=True))


def sent(config: Config) -> tuple[list[dict[str, Any]], np.ndarray, list[dict[str, Any]]]:
    """All impressions, whether each of them is clicked, and all clicks, as they are sent."""
    assert config.join is not None
    generator = ClickGenerator(SimulatorConfig(rate=1_000), start_ms=START_MS)
    events, shown, clicked = SimulatedEvents(config.join, seed=0, start_ms=START_MS), [], []
    for _ in range(NUM_CHUNKS):
        messages, click_N = events.show(generator.take_chunk())
        shown += map(json.loads, messages)
        clicked.append(click_N)
    clicks = [json.loads(message) for message in events.due_clicks(FOREVER_MS)]
    assert len(events) == 0
    return shown, np.concatenate(clicked), clicks


def test_they_are_a_function_of_seed_and_start(config: Config) -> None:
    first, again = sent(config), sent(config)
    assert (first[0], first[2]) == (again[0], again[2])


def test_an_impression_has_no_click_and_a_click_no_features(config: Config) -> None:
    shown, _, clicks = sent(config)
    assert "click" not in shown[0]
    assert {*shown[0]} >= {*config.schema.features, *config.schema.dense, "request_id", "ts"}
    assert {*clicks[0]} == {"ts", "action", "request_id", "item_id", "user_id"}


def test_the_join_of_what_is_sent_gives_the_clicks_that_the_simulator_counts(config: Config) -> None:
    assert config.join is not None
    shown, clicked_N, clicks = sent(config)
    keys = {request: n + 1 for n, request in enumerate({row["request_id"] for row in (*shown, *clicks)})}
    logs = {
        ("imp", 0): [Record("impression", keys[row["request_id"]], row["ts"]) for row in shown],
        ("evt", 0): [Record("click", keys[row["request_id"]], row["ts"]) for row in clicks],
    }
    [label], settings = config.join.labels, config.join.config
    samples, refused = batch_join(
        logs,
        {"click": Label("click", label.window_ms)},
        lateness_ms=round(1000 * settings.lateness_seconds),
        early_ms=round(1000 * settings.early_seconds),
        dedupe_ms=round(1000 * settings.dedupe_seconds),
    )
    assert len(samples) == len(clicked_N)
    assert len(refused["duplicate"]) == len(shown) - len(clicked_N) > 10
    late = [number for _, (topic, _), number in refused["late"] if topic == "evt"]
    assert 3 < len(late) < 0.01 * len(clicks)
    # a message that is held up may still be the newest one
    assert abs(sum(values[0] for *_, values, _ in samples) - clicked_N.sum()) <= 3
    delays = [row["ts"] for row in clicks]
    assert (np.diff(delays) < 0).mean() > 0.05  # in disorder
    matched = {row["request_id"] for row in shown}
    assert 10 < sum(row["request_id"] not in matched for row in clicks) < 0.02 * len(clicks)
    assert 0.8 < clicked_N.sum() / len(clicks) < 0.9  # the others come after the window


def test_clicks_are_sent_when_they_are_due(config: Config) -> None:
    assert config.join is not None
    events = SimulatedEvents(config.join, seed=0, start_ms=START_MS)
    events.show(ClickGenerator(SimulatorConfig(), start_ms=START_MS).take_chunk())
    num = len(events)
    early = list(events.due_clicks(START_MS + 3_000))
    assert 0 < len(early) < num
    assert len(events) == num - len(early)
    assert list(events.due_clicks(START_MS + 3_000)) == []
    assert json.loads(events.pause_message(5))["action"] == "pause"


@pytest.mark.parametrize(
    ("old", "new"),
    [('"request_id", "item_id"', '"session"'), ('action = "click"', 'action = "buy"'), ('"segment"', '"passport"')],
)
def test_a_join_that_does_not_fit_is_refused(tmp_path: Any, old: str, new: str) -> None:
    check_fields(load_config(demo_config_path(join=True)))
    text = demo_config_path(join=True).read_text()
    assert old in text
    path = tmp_path / "other.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match="does not fit the simulator's clicks"):
        check_fields(load_config(path))
