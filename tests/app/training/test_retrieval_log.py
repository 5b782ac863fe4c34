"""A log of two towers: what a trainer that starts again continues with, what a changed setting keeps of the items."""

import numpy as np
import pytest

from springtide.app.errors import UserError
from springtide.app.training.bootstrap import state_without_log
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.inspection.id_files import files_containing
from springtide.app.version_log.items import ItemLayout
from springtide.app.version_log.verify.verify import verify
from springtide_client.log.directory import LogDirectory
from tests.app.serving.retrieve.retrieval_log import config_of
from tests.app.training.random_clicks import make_batch
from tests.support.learned_log import LearnedLog


def batch_of(config, number: int):
    """A batch of fifty items."""
    batch = make_batch(number, 60, config.schema)
    batch.features.categorical_NC[:, 1] %= 50
    return batch


def learn(config, start: int, stop: int) -> dict[str, np.ndarray]:
    """Learn batches, each into a version of its own; return the net."""
    with LearnedLog(config) as made:
        for number in range(start, stop):
            made.state.learn(batch_of(config, number))
            made.checkpoint()
        return made.state.learner.dense_arrays()


def newest_base(config):
    base = LogDirectory(config.log.path).open_base()
    assert base is not None
    return base


def test_a_restarted_trainer_continues_bit_by_bit_and_the_log_is_sound(tmp_path):
    parts = config_of(tmp_path / "parts")
    whole = state_without_log(config_of(tmp_path / "whole"))
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
    config = config_of(tmp_path)
    learn(config, 0, 3)
    wider = config_of(tmp_path, {"model": {"options": {"dim": 12}}})
    learn(wider, 3, 3)
    base = newest_base(wider)
    layout = ItemLayout.of(wider.schema, base.manifest.model)
    assert layout is not None
    features = layout.decode(base.items)
    assert len(features) == len(set(features.categorical_NC[:, 0].tolist())) > 20
    other = config_of(tmp_path, {"model": {"options": {"item": ["item_id", "genres"]}}})
    learn(other, 3, 3)
    assert newest_base(other).items is None


def test_another_loss_than_its_own_is_a_clear_error(tmp_path):
    config = config_of(tmp_path, {"train": {"loss": "focal"}})
    with pytest.raises(UserError, match=r'name = "two_tower" has a loss of its own: leave out \[train\] loss'):
        learn(config, 0, 1)
