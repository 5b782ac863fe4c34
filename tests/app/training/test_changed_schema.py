"""A changed schema begins once, whatever happens to its trainer, and can be taken back."""

from dataclasses import replace
from pathlib import Path

import pytest

from springtide.app.commands.versions.run_action import describe
from springtide.app.commands.versions.show import show_version
from springtide.app.config.load import Config
from springtide.app.errors import UserError
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from springtide.app.tools.diagnosis import check_model
from springtide.app.training.bootstrap import signature_of
from springtide.app.training.gate import last_good_before
from springtide.app.version_log.change import start_migrated
from springtide.app.version_log.change.plan import ModelSignature, plan_change
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention, remove_drafts
from springtide.app.version_log.errors import FencedError
from springtide.app.version_log.inspection.diff import diff_versions
from springtide.app.version_log.inspection.history import row_history
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.verify.verify import verify
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.follow.follower import Follower
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name
from tests.app.training.test_changed_settings import LAYERS, WINDOW
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog
from tests.support.waiting import wait_until
from tests.torture.verify.log_contents import LogContents, read_log_contents

WITHOUT_GENRES = {
    "schema": {"multi_value": ["tags"]},
    "features": {"genres": None},
    "table": {"dim": 6},
}


class ChangingLog:
    """A log that is learned under one configuration after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.num_batches = folder, 0
        self.change()

    @property
    def directory(self) -> LogDirectory:
        return LogDirectory(self.config.log.path)

    @property
    def contents(self) -> LogContents:
        return read_log_contents(self.directory.path, window_samples=WINDOW)

    def change(self, *changes: Section) -> None:
        """Go on under the first settings with these changes."""
        self.config = config_in(self.folder, *LAYERS, *changes)

    def learn(self, num_batches: int = 3) -> int:
        """Start, learn, end; return the number of the last version."""
        with LearnedLog(self.config) as made:
            numbers = range(self.num_batches, self.num_batches + num_batches)
            self.num_batches = numbers.stop
            made.learn(numbers)
            return made.log.last_number

    def roll_back(self, number: int) -> dict:
        with LearnedLog(self.config) as made:
            return made.roll_back(number).result


class KilledError(BaseException):
    """Stands for SIGKILL: nothing handles it."""


def kill_at(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the next start at this failpoint; `make torture` does it with SIGKILL."""

    def die(name: str) -> None:
        if name == point:
            raise KilledError(name)

    for module in ("change.start_migrated", "compact.base_writer"):
        monkeypatch.setattr(f"springtide.app.version_log.{module}.failpoint", die)


@pytest.fixture
def log(tmp_path) -> ChangingLog:
    return ChangingLog(tmp_path)


def by_name(contents: LogContents, config: Config) -> dict:
    """Return the rows by their features' names, which outlive their numbers; those that ids share have a * there."""
    names = config.schema.owner_names()
    return {(names[f % 32768] + "*" * (f >= 32768), row_id): row for (f, row_id), row in contents.rows.items()}


def test_with_the_old_settings_a_rollback_brings_back_everything_from_before_the_change(log) -> None:
    number = log.learn()
    then, rows = log.contents, by_name(log.contents, log.config)
    log.change(WITHOUT_GENRES)
    log.learn()
    log.change()
    log.learn()
    assert log.config.schema.number("genres") != 2  # it has begun anew meanwhile
    result = log.roll_back(number)
    assert not result["begun"]
    now = log.contents
    assert by_name(now, log.config) == rows
    for name, array in then.arrays.items():
        assert now.arrays[name].tobytes() == array.tobytes(), name
    assert (now.meta.samples_trained, now.meta.positions) == (then.meta.samples_trained, then.meta.positions)
    assert (now.sketch, now.meta.restores) == (then.sketch, number)
    log.learn(1)  # a trainer continues from it
    assert log.contents.meta.samples_trained == then.meta.samples_trained + 32


def test_with_other_settings_a_rollback_carries_what_the_present_schema_can(log) -> None:
    number = log.learn()
    then = log.contents
    log.change(WITHOUT_GENRES)
    log.learn()
    changed = log.contents
    result = log.roll_back(number)
    assert "rows of genres" in result["dropped"]
    now = log.contents
    kept = {key: row for key, row in then.rows.items() if key[0] % 32768 != 2}
    assert {key: row[2:] for key, row in now.rows.items()} == {key: row[2:] for key, row in kept.items()}
    assert not any(any(row[1]) for row in now.rows.values())
    assert now.meta.samples_trained == then.meta.samples_trained
    assert now.meta.fingerprint == changed.meta.fingerprint == log.config.schema.fingerprint()
    for name, array in now.arrays.items():
        fits = name in then.arrays and then.arrays[name].shape == array.shape
        assert array.tobytes() == (then if fits else changed).arrays[name].tobytes(), name
    log.learn(1)


def test_a_rollback_that_would_not_fit_into_memory_is_refused(log, monkeypatch) -> None:
    number = log.learn(1)
    log.change(WITHOUT_GENRES)
    log.learn(1)
    monkeypatch.setattr("springtide.app.version_log.commands.restore.MAX_BYTES", 1000)
    with pytest.raises(UserError, match="a rollback to before a changed schema can hold 1,000"):
        log.roll_back(number)


def test_a_start_that_dies_on_the_way_leaves_the_change_to_the_next(log, monkeypatch) -> None:
    log.learn()
    then = log.contents
    log.change(WITHOUT_GENRES)
    for point in ("while a base is written", "before a base is renamed", "before a changed schema begins"):
        kill_at(point, monkeypatch)
        with pytest.raises(KilledError):
            log.learn()
        assert log.contents.rows == then.rows  # followers read on as before
        monkeypatch.undo()
    kill_at("after a changed schema begins", monkeypatch)
    with pytest.raises(KilledError):
        log.learn()
    monkeypatch.undo()
    begun = log.contents
    assert begun.meta.change["from"] == then.head.number
    log.learn(0)
    assert log.contents.head == begun.head


def test_a_base_of_a_replaced_trainer_belongs_to_no_readers_log(log, monkeypatch) -> None:
    log.learn()
    then = log.contents
    log.change(WITHOUT_GENRES)
    write_base, old_schema = start_migrated.write_base, log.directory.newest_schema()

    def replaced_meanwhile(path, image):
        with LogWriter.open(log.config.log, schema=old_schema, take_over=True) as successor:
            assert successor.epoch == 3
        return write_base(path, image)

    monkeypatch.setattr(start_migrated, "write_base", replaced_meanwhile)
    with pytest.raises(FencedError, match="another trainer started at the same time"):
        log.learn()
    monkeypatch.undo()
    ghost = log.directory.path / base_name(2 << 32)
    assert ghost.exists()
    assert ghost not in log.directory.bases()
    assert log.contents.differences(then) == []
    assert LogIndex(log.directory).begins == [1 << 32]
    log.change()
    log.learn(1)
    assert log.contents.meta.samples_trained == then.meta.samples_trained + 32
    assert not ghost.exists()


def test_many_versions_before_the_change_become_intermediate_bases(log, monkeypatch) -> None:
    log.learn(5)
    then = log.contents
    log.change(WITHOUT_GENRES)
    replay = start_migrated.replay
    monkeypatch.setattr(
        start_migrated, "replay", lambda *given, **options: replay(*given, **options | {"max_replayed_bytes": 1})
    )
    log.learn(0)
    assert len(log.directory.bases()) == 7
    kept = {key: row[2:] for key, row in then.rows.items() if key[0] % 32768 != 2}
    assert {key: row[2:] for key, row in log.contents.rows.items()} == kept
    wrong = [finding.what for finding in verify(log.directory, deep=True).errors]
    assert [what for what in wrong if "does not hash" not in what] == []  # the strings of these clicks are invented


def test_a_compactor_and_retention_go_on_from_the_changed_base(log) -> None:
    log.learn()
    log.change(WITHOUT_GENRES)
    log.learn()
    log.learn(1)  # its start has made the versions before durable
    then = log.contents
    assert compact_log(log.directory, window_samples=WINDOW) is not None
    assert apply_retention(log.directory, keep_bases=1)
    assert log.contents.differences(then) == []
    assert len(log.directory.bases()) == 1
    log.learn(1)


def test_a_compactor_leaves_alone_what_the_trainer_is_writing(log, monkeypatch) -> None:
    log.learn()
    log.change(WITHOUT_GENRES)
    writing = start_migrated.write_base

    def beside_a_compactor(path, image):
        old = path / ".tmp-base-00000000004294967299-1"
        old.mkdir()
        blocks = list(image.table.blocks)

        def compacting():
            remove_drafts(log.directory)  # while the rows are written
            yield from blocks

        written = writing(path, replace(image, table=replace(image.table, blocks=compacting())))
        assert not old.exists()
        return written

    monkeypatch.setattr(start_migrated, "write_base", beside_a_compactor)
    log.learn(1)
    assert log.directory.open_base().head.number == 2 << 32


def test_an_automatic_rollback_does_not_cross_the_change(log) -> None:
    log.learn()
    log.change(WITHOUT_GENRES)
    log.learn()
    begun = LogIndex(log.directory).begins[-1]
    assert last_good_before(log.directory, 32) == begun
    assert last_good_before(log.directory, 96) == begun
    assert last_good_before(log.directory, 128) == begun + 1


def test_a_follower_serves_the_old_view_until_it_has_the_new_net_and_the_new_rows(log) -> None:
    log.learn()
    follower = Follower(log.directory)
    seen = []
    follower.on_swap(lambda view: seen.append((view.version >> 32, view.dim, len(view.schema.multi_value))))
    follower.poll()
    old = follower.view
    log.change(WITHOUT_GENRES)
    log.learn(0)  # a silent stream: no version follows the base
    wait_until(lambda: follower.poll() or follower.view.version >> 32 == 2, "the changed schema")
    log.learn(1)
    wait_until(lambda: follower.poll() or follower.view.version >> 32 == 3, "the next version")
    assert seen == [(1, 4, 1), (2, 6, 1), (3, 6, 1)]
    assert follower.num_restarts == 1
    assert old.row_info(2, 3)["vector"] is not None
    assert follower.view.row_info(2, 3)["status"] != "known"
    assert follower.view.schema.number("tags") == 6
    follower.close()


def test_check_says_beforehand_what_versions_show_says_afterwards(log, capsys) -> None:
    log.learn(1)
    assert [one.text for one in check_model(log.config)] == ["model: logistic"]
    log.change(WITHOUT_GENRES)
    said = [one.text.strip() for one in check_model(log.config)]
    changed = "[schema] multi_value, [features.*] max_length, [table] dim (4, now 6)"
    assert said[1] == f"the log was written with another {changed}; the next start"
    log.learn(1)
    index = LogIndex(log.directory)
    assert [describe(index, number)["is_change"] for number in index.numbers] == [False, False, True, False]
    shown = [line.split(maxsplit=1) for line in show_version(index, index.begins[-1]).lines]
    verbs = {"kept": "keeps", "begun": "begins", "dropped": "drops"}
    assert [f"{verbs[word]} {text}" for word, text in shown if word in verbs] == said[2:]
    assert ["changed", f"{changed}; the version before is 1.1"] in shown
    with pytest.raises(UserError, match=r"a changed schema begins with version 2\.0: versions before it cannot be"):
        diff_versions(index, index.numbers[1], index.numbers[-1])
    assert row_history(index, 0, 3, limit=9).first == index.begins[-1]


def test_the_plan_reads_as_a_list_of_what_is_kept_begun_and_dropped(log) -> None:
    log.learn(1)
    log.change(WITHOUT_GENRES)
    base = log.directory.open_base()
    config = log.config
    model = build_model(config.model, ModelSpec.of(config.schema, config.table.dim), seed=0)
    plan = plan_change(ModelSignature.of(base), signature_of(config, model))
    assert plan.changes == (
        "[schema] multi_value",
        "[features.*] max_length",
        "[table] dim (4, now 6)",
    )
    assert list(plan.lines())[:5] == [
        "keeps the positions in the stream, the event clock and the counts of samples and dead letters",
        "keeps counts, last-seen times and admission of the rows of user_id",
        "keeps counts, last-seen times and admission of the rows of item_id",
        "keeps scores of click",
        "keeps 9 parameters and buffers (calibration.bias_L, calibration.count_L, calibration.information_L, "
        "calibration.rate_L, calibration.trust_L, linear.weight and 3 more) of the net",
    ]
    assert "begins vectors and optimizer states of the rows of item_id, from their first values" in list(plan.lines())
    assert list(plan.lines())[-1] == "drops rows of genres"
    assert not plan_change(ModelSignature.of(base), ModelSignature.of(base))
