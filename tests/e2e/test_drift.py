"""A stream whose labels are turned round: status, metrics and dashboard of a real trainer and server show it."""

from types import SimpleNamespace

import pytest

from springtide.app.training.trainer import Trainer
from tests.app.serving.conftest import World
from tests.app.serving.pages.test_dashboard import CHROMIUM, dump
from tests.app.training.trainer_env import TrainerEnv, env  # noqa: F401 (a fixture)
from tests.support.waiting import wait_until

SETTINGS = '[scores]\nby = ["item_id"]\n[gate]\nlogloss_ratio = inf\ncalibration_ratio = inf\n'


@pytest.fixture
def flipped(env: TrainerEnv):  # noqa: F811
    """A log of 1,500 samples with a click in three and, from a second trainer, 900 with two in three."""
    env.configure(SETTINGS, "[train]\nwindow_samples = 700\n")
    env.produce(1500)
    before = Trainer(env.config, until_end=True).run().scores
    env.produce(900, label=lambda number: 1 - int(number % 37 % 3 == 0))
    after = Trainer(env.config, until_end=True).run().scores
    world = World(SimpleNamespace(path=env.config.log.path))
    client = world.serve()
    wait_until(lambda: client.get("/readyz").is_success)
    yield before, after, client
    world.close()


def test_status_and_metrics_show_a_label_rate_that_turned_round(flipped):
    before, after, client = flipped
    assert before.drift.labels["click"].label_rate.level == "none"
    rate = after.drift.labels["click"].label_rate
    assert rate.reference == pytest.approx(13 / 37, abs=0.02)
    assert rate.recent == pytest.approx(24 / 37, abs=0.02)
    assert (rate.level, after.drift.level) == ("large", "large")
    assert {each.name: each.level for each in after.drift.features}["item_id"] == "none"
    scores = client.get("/v1/status").json()["scores"]
    assert scores["drift"]["labels"]["click"]["label_rate"]["level"] == "large"
    assert scores["window"]["label_rate"] == pytest.approx(24 / 37, abs=0.02)
    assert len(scores["window"]["curve"]) > 5
    values = {each["value"]: each for each in scores["segments"]["item_id"]}
    assert values["item 3"]["window"]["label_rate"] == pytest.approx(24 / 37, abs=0.1)
    assert sum(each["whole"]["samples"] for each in values.values()) == 2400
    metrics = client.get("/metrics").text
    assert 'springtide_drift{level="large"} 1' in metrics
    assert f'springtide_drift_label_rate_psi{{label="click"}} {rate.psi}' in metrics
    assert 'springtide_segment_auc{feature="item_id",label="",part="window",value="item 3"}' in metrics


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the dashboard is not tested")
def test_the_dashboard_shows_a_label_rate_that_turned_round(flipped, tmp_path):
    _, after, client = flipped
    rate = after.drift.labels["click"].label_rate
    expected = ("rate of click", f"{rate.psi:.3f}", 'aria-label="calibration curve"', "item 3")
    page = ""

    def are_all_shown():
        nonlocal page
        page = dump(str(client.base_url), tmp_path / "profile")
        return all(shown in page for shown in expected)

    wait_until(are_all_shown, lambda: page[-3000:])
