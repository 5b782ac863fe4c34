import json
from pathlib import Path

import numpy as np
import pytest
from springtide_client.format.records import NamedKey
from springtide_client.log.directory import LogDirectory

from app.training.bootstrap import load_state
from app.training.commands import CommandExecutor
from app.training.state.training_state import TrainingState
from app.version_log.commands.queue import submit_command
from app.version_log.commands.rollback import build_rollback
from app.version_log.write.writer import LogWriter
from tests.app.training.configs import make_config
from tests.app.training.random_clicks import SCHEMA, make_batch


class Desk:
    """A log with a state, and its desk; orders are put down as a server does."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.config = make_config(folder, more=more, table='admission = { sketch_bytes = "64KiB" }')
        self.log = LogWriter.open(self.config.log, schema=SCHEMA)
        self.state: TrainingState = load_state(self.config, self.log)
        self.desk = CommandExecutor(self.config.log.path, self.log.epoch, self.state)

    def put(self, kind: str, body: dict) -> str:
        return submit_command(self.config.log.path, kind, body)

    def version(self) -> int:
        number = self.log.append(*self.state.checkpoint(created_ms=1, complete_until_ms=1)).number
        self.desk.on_published(number)
        return number

    def newest(self):
        self.log.sync()
        return list(LogDirectory(self.config.log.path).records(None))[-1]

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.config.log.path / "commands").iterdir())

    def status(self, number: int, row_id: int) -> int:
        return int(self.state.learner.table.find(np.array([number], np.uint16), np.array([row_id]))[1][0])

    def end(self) -> None:
        self.log.close()
        self.state.learner.table.close()


@pytest.fixture
def make_desk(tmp_path):
    desks = []

    def make(**changes) -> Desk:
        desks.append(Desk(tmp_path / "log", **changes))
        return desks[-1]

    yield make
    desks[-1].end()


def test_a_forgotten_key_is_gone_and_the_version_says_so(make_desk):
    desk = make_desk()
    desk.state.learn(make_batch(0))
    desk.version()
    user = int(make_batch(0).features.categorical_NC[0, 0])
    order = desk.put("forget", {"keys": [{"feature": "user_id", "id": str(user)}]})
    assert desk.desk.has_pending
    desk.desk.execute()
    assert not desk.desk.has_pending
    assert desk.state.changed
    assert desk.status(0, user) == 3
    number = desk.version()
    record = desk.newest()
    assert record.number == number
    (entry,) = record.meta.executed_commands
    assert (entry.id, entry.kind, entry.result) == (order, "forget", {"keys": 1})
    assert entry.keys == [NamedKey("user_id", str(user))]
    assert record.tensors()["forgotten.id"].tolist() == [user]


def test_an_order_is_unlinked_when_its_version_is_durable_and_executed_once(make_desk):
    desk = make_desk()
    order = desk.put("limits", {"limits": {"lr": 0.5}})
    desk.desk.execute()
    number = desk.version()
    desk.desk.acknowledge(number - 1)
    assert desk.files() == [f"{order}.{desk.log.epoch}"]
    desk.desk.execute()
    assert desk.state._unpublished.commands == []
    desk.desk.acknowledge(number)
    assert desk.files() == []


def test_a_trainer_that_dies_before_its_version_leaves_the_order_to_the_next(make_desk):
    first = make_desk()
    first.put("limits", {"limits": {"lr": 0.5}})
    first.desk.execute()
    first.end()  # no version was cut
    second = make_desk()
    assert second.state.learner.table.lr == 0.05
    second.desk.execute()
    assert second.state.learner.table.lr == 0.5
    second.version()
    second.end()
    # its version is in the log, and the file still there: it is not executed again
    third = make_desk()
    assert len(third.files()) == 1
    assert not third.desk.has_pending
    third.desk.acknowledge(third.log.durable.number)
    assert third.files() == []


def test_live_limits_survive_a_restart_until_the_config_says_something_new(make_desk):
    first = make_desk()
    limits = {"lr": 0.5, "features": {"item_id": {"ttl_seconds": 9.0, "min_count": 2}}}
    first.put("limits", {"limits": limits})
    first.desk.execute()
    assert first.state.meta(0).admission == {"1": 2}
    first.version()
    first.end()
    second = make_desk()
    assert second.state.learner.table.lr == 0.5
    assert second.state.meta(0).admission == {"1": 2}
    second.end()
    third = make_desk(more="[features.item_id]\nadmission = { min_count = 4 }\n")
    assert third.state.limits.document()["features"] == {"item_id": {"ttl_seconds": [9.0, None]}}
    assert third.state.meta(0).admission == {"1": 4}


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("rollback", {"version": 3}, "does not execute rollback commands"),
        ("", {}, "unreadable"),
        ("forget", {"keys": 5}, "names no keys"),
        ("forget", {"keys": [{"feature": "itme", "id": 3}]}, "not a valid key of this log"),
        ("forget", {"keys": [{"feature": "item_id", "id": [3]}]}, "no id"),
        ("limits", {}, "names a limit"),
        ("limits", {"limits": {"device_bytes": 10, "lr": 0.5}}, "device_bytes"),
    ],
)
def test_an_order_that_cannot_be_executed_says_why_and_changes_nothing(make_desk, kind, body, says):
    desk = make_desk()
    desk.put(kind, body)
    desk.desk.execute()
    assert desk.state.learner.table.lr == 0.05
    assert desk.state.limits.document() == {}
    desk.version()
    (entry,) = desk.newest().meta.executed_commands
    assert says in entry.result["refused"]


def test_orders_are_executed_in_the_order_they_came(make_desk):
    desk = make_desk()
    for lr in (0.1, 0.2, 0.3):
        desk.put("limits", {"limits": {"lr": lr}})
        # ids sort by their millisecond: three in one may come in any order
        names = desk.files()
        oldest = desk.config.log.path / "commands" / names[0]
        assert json.loads(oldest.read_text())["limits"] == {"lr": lr}
        desk.desk.execute()
        desk.desk.acknowledge(desk.version())
    assert desk.state.learner.table.lr == 0.3


def test_memory_shrinks_and_grows_by_order_while_learning_goes_on(make_desk):
    desk = make_desk()
    table = desk.state.learner.table
    for number, size in enumerate(["8MiB", "64KiB", "1MiB", "48KiB"]):
        for batch in range(6):
            desk.state.learn(make_batch(10 * number + batch))
        desk.version()
        desk.put("limits", {"limits": {"device_bytes": size}})
        desk.desk.execute()
        desk.version()
        table.check_integrity()
    assert "refused" not in str(desk.newest().meta.executed_commands)
    assert desk.state.samples_trained == 4 * 6 * 32
    assert table.counters()["evicted_resize"] > 0
    counts = sum(int(table.find(np.zeros(40, np.uint16), np.arange(40))[1].sum()) for _ in range(1))
    assert counts == 0  # every user is known, wherever the row lies


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


def test_what_is_no_order_is_refused_and_harms_neither_this_trainer_nor_a_rollback(make_desk):
    desk = make_desk()
    desk.state.learn(make_batch(0))
    number = desk.version()
    folder = desk.config.log.path / "commands"
    folder.mkdir(exist_ok=True)
    for n, text in enumerate(HOSTILE):
        (folder / f"{n:03d}.json").write_bytes(text)
    desk.desk.execute()
    desk.version()
    entries = desk.newest().meta.executed_commands
    assert [entry.id for entry in entries] == [f"{n:03d}" for n in range(len(HOSTILE))]
    assert all(entry.is_refused for entry in entries)
    assert not any(entry.keys for entry in entries)
    back = build_rollback(desk.log.directory, number, window_samples=100)
    assert "forgotten.id" not in back.arrays
