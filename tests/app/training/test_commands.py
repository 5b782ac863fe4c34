import json
from pathlib import Path

import numpy as np
import pytest

from springtide.app.training.commands import CommandExecutor
from springtide.app.version_log.commands.queue import submit_command
from springtide.app.version_log.commands.restore import build_rollback
from springtide.embeddings.errors import SpillError
from springtide_client.format.records import NamedKey
from tests.app.training.random_clicks import RANDOM_CLICKS, make_batch
from tests.support.config import Section, config_in
from tests.support.learned_log import LearnedLog


class ExecutorSetup(LearnedLog):
    """A log with a state and an executor; commands are submitted as a server does."""

    def __init__(self, folder: Path, *layers: Section) -> None:
        admission = {"table": {"admission": {"sketch_bytes": "64KiB"}}}
        super().__init__(config_in(folder, RANDOM_CLICKS, admission, *layers))
        self.executor = CommandExecutor(self.config.log.path, self.log.epoch, self.state)

    def put(self, kind: str, body: dict) -> str:
        return submit_command(self.config.log.path, kind, body)

    def version(self) -> int:
        number = self.checkpoint()
        self.executor.on_published(number)
        return number

    def newest(self):
        self.log.sync()
        return list(self.directory.records(None))[-1]

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.config.log.path / "commands").iterdir())

    def status(self, number: int, row_id: int) -> int:
        return int(self.state.learner.table.find(np.array([number], np.uint16), np.array([row_id]))[1][0])


@pytest.fixture
def make_setup(tmp_path):
    setups = []

    def make(*layers: Section) -> ExecutorSetup:
        setups.append(ExecutorSetup(tmp_path / "log", *layers))
        return setups[-1]

    yield make
    setups[-1].end()


def test_a_forgotten_key_is_gone_and_the_version_says_so(make_setup):
    setup = make_setup()
    setup.step(0)
    setup.version()
    user = int(make_batch(0).features.categorical_NC[0, 0])
    command = setup.put("forget", {"keys": [{"feature": "user_id", "id": str(user)}]})
    assert setup.executor.has_pending
    setup.executor.execute()
    assert not setup.executor.has_pending
    assert setup.state.changed
    assert setup.status(0, user) == 3
    number = setup.version()
    record = setup.newest()
    assert record.number == number
    (entry,) = record.meta.executed_commands
    assert (entry.id, entry.kind, entry.result) == (command, "forget", {"keys": 1})
    assert entry.keys == [NamedKey("user_id", str(user))]
    assert record.tensors()["forgotten.id"].tolist() == [user]


def test_a_command_is_executed_once_and_unlinked_when_its_version_is_durable(make_setup):
    setup = make_setup()
    command = setup.put("limits", {"limits": {"lr": 0.5}})
    setup.executor.execute()
    number = setup.version()
    setup.executor.acknowledge(number - 1)
    assert setup.files() == [f"{command}.{setup.log.epoch}"]
    setup.executor.execute()
    assert setup.state.unpublished.commands == []
    setup.executor.acknowledge(number)
    assert setup.files() == []


def test_a_trainer_that_dies_before_its_version_leaves_the_command_to_the_next(make_setup):
    first = make_setup()
    first.put("limits", {"limits": {"lr": 0.5}})
    first.executor.execute()
    first.end()  # without a version
    second = make_setup()
    assert second.state.learner.table.lr == 0.05
    second.executor.execute()
    assert second.state.learner.table.lr == 0.5
    second.version()
    second.end()
    # its version is in the log, and the file still there: it is not executed again
    third = make_setup()
    assert len(third.files()) == 1
    assert not third.executor.has_pending
    third.executor.acknowledge(third.log.durable.number)
    assert third.files() == []


def test_changed_limits_survive_a_restart_until_the_configuration_changes(make_setup):
    first = make_setup()
    limits = {"lr": 0.5, "features": {"item_id": {"ttl_seconds": 9.0, "min_count": 2}}}
    first.put("limits", {"limits": limits})
    first.executor.execute()
    assert first.state.meta(0).admission == {"1": 2}
    first.version()
    first.end()
    second = make_setup()
    assert second.state.learner.table.lr == 0.5
    assert second.state.meta(0).admission == {"1": 2}
    second.end()
    third = make_setup({"features": {"item_id": {"admission": {"min_count": 4}}}})
    assert third.state.limits.document()["features"] == {"item_id": {"ttl_seconds": [9.0, None]}}
    assert third.state.meta(0).admission == {"1": 4}


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("rollback", {"version": 3}, "does not execute rollback commands"),
        ("", {}, "unreadable"),
        ("forget", {"keys": 5}, "names no keys"),
        ("forget", {"keys": [{"feature": "itme", "id": 3}]}, "not a valid key of this log"),
        ("forget", {"keys": [{"feature": "item_id", "id": [3]}]}, "not a valid id"),
        ("limits", {}, "names a limit"),
        ("limits", {"limits": {"device_bytes": 10, "lr": 0.5}}, "device_bytes"),
    ],
)
def test_a_refused_command_says_why_and_changes_nothing(make_setup, kind, body, says):
    setup = make_setup()
    setup.put(kind, body)
    setup.executor.execute()
    assert setup.state.learner.table.lr == 0.05
    assert setup.state.limits.document() == {}
    setup.version()
    (entry,) = setup.newest().meta.executed_commands
    assert says in entry.result["refused"]


def test_commands_are_executed_in_the_order_of_their_submission(make_setup):
    setup = make_setup()
    for lr in (0.1, 0.2, 0.3):
        setup.put("limits", {"limits": {"lr": lr}})
        # ids sort by their millisecond: three within one may be executed in any order
        names = setup.files()
        oldest = setup.config.log.path / "commands" / names[0]
        assert json.loads(oldest.read_text())["limits"] == {"lr": lr}
        setup.executor.execute()
        setup.executor.acknowledge(setup.version())
    assert setup.state.learner.table.lr == 0.3


def test_a_command_shrinks_and_grows_memory_while_learning_continues(make_setup):
    setup = make_setup()
    table = setup.state.learner.table
    for number, size in enumerate(["8MiB", "64KiB", "1MiB", "48KiB"]):
        setup.step(*range(10 * number, 10 * number + 6))
        setup.version()
        setup.put("limits", {"limits": {"device_bytes": size}})
        setup.executor.execute()
        setup.version()
        table.check_integrity()
    assert "refused" not in str(setup.newest().meta.executed_commands)
    assert setup.state.samples_trained == 4 * 6 * 32
    assert table.counters()["evicted_resize"] > 0
    counts = sum(int(table.find(np.zeros(40, np.uint16), np.arange(40))[1].sum()) for _ in range(1))
    assert counts == 0  # every user is known, wherever the row lies


def test_limits_at_which_the_spill_fails_are_refused_and_taken_back(make_setup, monkeypatch):
    setup = make_setup()
    table = setup.state.learner.table
    set_limits = table.set_limits

    def fail_afterwards(limits) -> None:
        set_limits(limits)
        if limits.lr == 0.5:
            raise SpillError("no space left on device")

    monkeypatch.setattr(table, "set_limits", fail_afterwards)
    setup.put("limits", {"limits": {"device_bytes": "1MiB", "lr": 0.5, "features": {"item_id": {"ttl_seconds": 9.0}}}})
    setup.executor.execute()
    assert (table.lr, table.config.device_bytes) == (0.05, setup.config.table.device_bytes)
    assert setup.state.limits.document() == {}
    setup.version()
    (entry,) = setup.newest().meta.executed_commands
    assert "cannot be spilled: no space left on device" in entry.result["refused"]


HOSTILE = [
    b"", b"{", b"[]", b"null", b"\xff", b'{"kind": 5}', b'{"kind": "forget"}', b'{"kind": "forget", "keys": 5}',
    b'{"kind": "forget", "keys": [5, null, {"feature": ["user_id"], "id": 1}]}',
    b'{"kind": "forget", "keys": [{"feature": "user_id", "id": 3}, {"feature": "nobody", "id": 1}]}',
    b'{"kind": "forget", "keys": [{"feature": "user_id", "id": {"a": 1}}]}',
    b'{"kind": "forget", "keys": [{"feature": "user_id", "id": 1e999}]}',
    b'{"kind": "forget", "keys": [{"feature": "user_id", "id": "\\ud800"}]}',
    b'{"kind": "limits", "limits": 5}', b'{"kind": "limits", "limits": {"lr": "fast"}}',
    b'{"kind": "limits", "limits": {"features": {"user_id": 5}}}', b'{"kind": "limits", "limits": {"lr": -1}}',
    b'{"kind": "limits", "limits": {"device_bytes": 99999999999999999999999}}',
    b'{"kind": "rollback", "version": "1.1"}', b'{"kind": "rollback"}',
]  # fmt: skip


def test_malformed_commands_are_refused_and_a_later_rollback_works(make_setup):
    setup = make_setup()
    setup.step(0)
    number = setup.version()
    folder = setup.config.log.path / "commands"
    folder.mkdir(exist_ok=True)
    for n, text in enumerate(HOSTILE):
        (folder / f"{n:03d}.json").write_bytes(text)
    setup.executor.execute()
    setup.version()
    entries = setup.newest().meta.executed_commands
    assert [entry.id for entry in entries] == [f"{n:03d}" for n in range(len(HOSTILE))]
    assert all(entry.is_refused for entry in entries)
    assert not any(entry.keys for entry in entries)
    back = build_rollback(setup.log.directory, number, window_samples=100)
    assert "forgotten.id" not in back.arrays


@pytest.mark.parametrize("fails", [ValueError("no"), SpillError("no space left on device")], ids=["value", "spill"])
def test_only_limits_that_were_changed_are_taken_back_and_a_failure_then_ends_nothing(make_setup, monkeypatch, fails):
    setup = make_setup()
    tried = []

    def refuse(limits) -> None:
        tried.append(limits)
        raise fails

    monkeypatch.setattr(setup.state, "change_limits", refuse)
    setup.put("limits", {"limits": {"lr": 0.5}})
    setup.executor.execute()
    assert len(tried) == (1 if isinstance(fails, ValueError) else 2)
    setup.version()
    assert str(fails) in setup.newest().meta.executed_commands[0].result["refused"]
