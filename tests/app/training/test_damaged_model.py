"""A log whose exported model is damaged: a trainer goes on from it, and exports the net again."""

from pathlib import Path

import pytest

from springtide.app.config.load import Config
from springtide.app.version_log.verify.verify import verify
from springtide_client.log.base import MODEL
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.app.training.random_clicks import RANDOM_CLICKS
from tests.support.config import config_in
from tests.support.learned_log import LearnedLog


def learn(config: Config, number: int) -> int:
    """Start a trainer's state, learn a batch, write a base; return the number of rows learned."""
    with LearnedLog(config) as made:
        made.learn([number])
        made.compact()
        return len(made.state.learner.table.export())


@pytest.mark.parametrize("content", [b"x", None])
def test_a_trainer_replaces_a_damaged_model(tmp_path: Path, content: bytes | None) -> None:
    config = config_in(tmp_path, RANDOM_CLICKS, {"model": {"name": "logistic", "wide": False}})
    num_rows = learn(config, 0)
    bases = sorted(config.log.path.glob("base-*"))
    assert len(bases) == 2
    for base in bases:
        if content is None:
            (base / MODEL).unlink()
        else:
            (base / MODEL).write_bytes(content)
    assert len(verify(LogDirectory(config.log.path)).errors) == 2
    assert learn(config, 0) == num_rows
    assert verify(LogDirectory(config.log.path)).errors == []
    for base in sorted(config.log.path.glob("base-*")):
        assert View.open(base).model is not None
