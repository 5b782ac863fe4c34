"""A log whose exported model is damaged: a trainer goes on from it, and exports the net again."""

from pathlib import Path

import pytest

from springtide.app.config.load import Config
from springtide.app.training.bootstrap import load_state
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.verify.verify import verify
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.log.base import MODEL
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from tests.app.training.configs import make_config
from tests.app.training.random_clicks import make_batch


def learn(config: Config, number: int) -> int:
    """Start a trainer's state, learn a batch, write a base; return the number of rows learned."""
    with LogWriter.open(config.log, schema=config.schema) as log:
        state = load_state(config, log)
        state.learn(make_batch(number, schema=config.schema))
        for _ in range(2):  # the second says that the first is durable
            log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
            log.sync()
        assert compact_log(log.directory, window_samples=100) is not None
        num_rows = len(state.learner.table.export())
        state.learner.table.close()
        return num_rows


@pytest.mark.parametrize("content", [b"x", None])
def test_a_trainer_replaces_a_damaged_model(tmp_path: Path, content: bytes | None) -> None:
    config = make_config(tmp_path, more='[model]\nname = "logistic"\nwide = false\n')
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
