import pytest

from springtide.app.training.trainer import Trainer
from tests.app.training.ranks.thread_trainers import on_trainers


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    return [(line.features, line.samples) for line in caplog.records if "features without any value" in line.message]


@pytest.fixture
def misspelt(env):
    """A topic of two partitions whose records have an `age` and no `aeg`."""
    env.configure({"schema": {"dense": ["age", "aeg"]}})
    env.create(partitions=2)
    return env


def test_a_feature_that_no_sample_has_is_named_once_in_the_log(misspelt, monkeypatch, caplog):
    monkeypatch.setattr("springtide.app.training.status.reporter.NUM_FIRST_SAMPLES", 100)
    monkeypatch.setattr("springtide.app.training.status.reporter.INTERVAL_SECONDS", 0.0)
    misspelt.produce(300)
    Trainer(misspelt.config, until_end=True).run()
    assert warnings(caplog) == [("aeg", 128)]


def test_many_ranks_warn_once_of_what_none_of_them_has_seen(misspelt, caplog):
    misspelt.produce(100)
    misspelt.produce(100, partition=1)
    on_trainers(misspelt, 2, until_end=True)
    assert warnings(caplog) == [("aeg", 200)]
