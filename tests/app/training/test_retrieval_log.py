"""A log of two towers: what a trainer that starts again continues with, what a changed setting keeps of the items."""

from pathlib import Path

import numpy as np
import pytest

from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from springtide.app.training.bootstrap import load_state, state_without_log
from springtide.app.version_log.commands.erasures import files_containing
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.items import ItemLayout
from springtide.app.version_log.verify.verify import verify
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.log.directory import LogDirectory
from tests.app.serving.retrieve.retrieval_log import CONFIG
from tests.app.training.random_clicks import make_batch


def configured(folder: Path, *edits: tuple[str, str]):
    folder.mkdir(exist_ok=True)
    text = CONFIG.replace("FOLDER", str(folder))
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / "springtide.toml").write_text(text)
    return load_config(folder / "springtide.toml")


def batch_of(config, number: int):
    """A batch of fifty items."""
    batch = make_batch(number, 60, config.schema)
    batch.features.categorical_NC[:, 1] %= 50
    return batch


def learn(config, start: int, stop: int) -> dict[str, np.ndarray]:
    """Learn batches, each into a version of its own; return the net."""
    with LogWriter.open(config.log, schema=config.schema) as log:
        state = load_state(config, log)
        for number in range(start, stop):
            state.learn(batch_of(config, number))
            log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
        log.sync()
        state.learner.table.close()
        return state.learner.dense_arrays()


def newest_base(config):
    base = LogDirectory(config.log.path).open_base()
    assert base is not None
    return base


def test_a_restarted_trainer_continues_bit_by_bit_and_the_log_is_sound(tmp_path):
    parts = configured(tmp_path / "parts")
    whole = state_without_log(configured(tmp_path / "whole"))
    for number in range(4):
        whole.learn(batch_of(parts, number))
    whole.learner.table.close()
    learn(parts, 0, 2)
    found = learn(parts, 2, 4)
    for name, array in whole.learner.dense_arrays().items():
        np.testing.assert_array_equal(found[name], array)
    directory = LogDirectory(parts.log.path)
    compact_log(directory, window_samples=parts.train.window_samples)
    assert len(newest_base(parts).items["id"]) > 20
    assert not verify(directory).errors
    item = parts.schema.number("item_id")
    files = {reference.file for reference in files_containing(parts.log, item, int(newest_base(parts).items["id"][0]))}
    assert any(file.endswith("/items.safetensors") for file in files)


def test_items_go_on_with_other_towers_and_begin_anew_with_other_fields(tmp_path):
    config = configured(tmp_path)
    learn(config, 0, 3)
    wider = configured(tmp_path, ("dim = 8", "dim = 12"))
    learn(wider, 3, 3)
    base = newest_base(wider)
    layout = ItemLayout.of(wider.schema, base.manifest.model)
    assert layout is not None
    features = layout.decode(base.items)
    assert len(features) == len(set(features.categorical_NC[:, 0].tolist())) > 20
    other = configured(tmp_path, ('"item_id", "genres", "price"', '"item_id", "genres"'))
    learn(other, 3, 3)
    assert newest_base(other).items is None


def test_another_loss_than_its_own_is_a_clear_error(tmp_path):
    config = configured(tmp_path, ("[log]", '[train]\nloss = "focal"\n\n[log]'))
    with pytest.raises(UserError, match=r'name = "two_tower" has a loss of its own: leave out \[train\] loss'):
        learn(config, 0, 1)
