"""Compare a log with its topic: with a dictionary every time, bitwise with a reference run now and then."""

import shutil
from pathlib import Path
from typing import Any

from springtide.app.version_log.kept_versions import read_pins
from springtide_client.format.records import CommandEntry
from tests.torture.clicks import NUM_USERS, click
from tests.torture.cluster.config import WINDOW_SAMPLES
from tests.torture.verify.expected_rows import ExpectedRows
from tests.torture.verify.log_contents import LogContents, item_ids, read_log_contents
from tests.torture.verify.reference_run import Change, ReferenceRun

MAX_DIFFERENCES = 20


class LogVerifier:
    """`durable_version`: the newest version that was reported as durable; it must never be lost."""

    def __init__(self, log: Path, folder: Path, seed: int) -> None:
        self.log, self.folder, self.seed = log, folder, seed
        self.durable_version = self.num_verified = self.num_compared = self.num_rows = 0
        self.submitted: dict[str, int] = {}  # command id -> number of its keys
        self.changes: list[Change] = []  # of the settings, in order
        self.pinned: dict[str, LogContents] = {}  # pin -> what its version held when it was pinned
        self.num_restored = 0
        self._known = [ExpectedRows(seed)]
        self._items = {row_id: item for item, row_id in item_ids().items()}
        self._reference: ReferenceRun | None = None

    def verify(self) -> LogContents:
        """Return the log as a new reader sees it; AssertionError if it is not what the topic demands."""
        contents = read_log_contents(self.log, window_samples=WINDOW_SAMPLES)
        assert contents.head.number >= self.durable_version, (
            f"{self.durable_version} was durable, the log ends at {contents.head}"
        )
        self.num_verified += 1
        commands = contents.meta.executed_commands
        ids = [command.id for command in commands]
        assert len(ids) == len(set(ids)), "a command was executed twice"
        assert set(ids) <= self.submitted.keys(), "a command that was never submitted"
        expected = self._expected(contents.meta.samples_trained, commands)
        num_bad, offset = expected.num_bad, expected.offset
        while offset < contents.offset and click(self.seed, offset) is None:
            num_bad, offset = num_bad + 1, offset + 1
        assert contents.offset == offset, f"the log is at offset {contents.offset}, its samples end at {offset}"
        assert sum(contents.meta.dead_letters.values()) == num_bad, "dead letters are miscounted"
        assert contents.meta.event_clock_ms == expected.clock_ms
        users = {row_id: (row[2], row[3]) for (feature, row_id), row in contents.rows.items() if feature == 0}
        assert users == expected.users, differing("users", users, expected.users)
        items = {self._items[row_id]: row[2] for (feature, row_id), row in contents.rows.items() if feature == 1}
        assert items == dict(expected.items), differing("items", items, dict(expected.items))
        self.num_rows = max(self.num_rows, len(contents.rows))
        self.verify_pins()
        return contents

    def verify_pins(self) -> None:
        """Read every pinned version; AssertionError if it is not bitwise what it was."""
        pins = {pin.name: pin.version for pin in read_pins(self.log)}
        for name, then in self.pinned.items():
            assert pins.get(name) == then.head.number, f"the pin {name} of {then.head} is lost"
            now = read_log_contents(self.log, window_samples=WINDOW_SAMPLES, version=then.head.number)
            differences = then.differences(now)
            assert now.head == then.head
            assert not differences, "\n".join(differences[:MAX_DIFFERENCES])
            self.num_restored += 1

    def compare_with_reference(self) -> None:
        """Compare everything that a starting trainer sees bitwise with a run without faults."""
        contents = read_log_contents(self.log, window_samples=WINDOW_SAMPLES, exact=True)
        if self._reference is not None and not self._can_reach(contents):
            self._reference.close()
            shutil.rmtree(self.folder / "reference")
            self._reference = None
        if self._reference is None:
            self._reference = ReferenceRun(self.folder / "reference", self.seed)
        other = self._reference.advance(contents.meta.samples_trained, contents.meta.executed_commands, self.changes)
        differences = contents.differences(other)
        assert not differences, "\n".join(differences[:MAX_DIFFERENCES])
        self.num_compared += 1

    def expected_user(self, contents: LogContents, user: int) -> tuple[int | None, int | None]:
        """Return the user's count and last-seen time in ms; None, None without a row."""
        row = contents.rows.get((0, user))
        return (None, None) if row is None else (row[2], row[3])

    def users(self) -> range:
        return range(NUM_USERS)

    def close(self) -> None:
        if self._reference is not None:
            self._reference.close()

    def _can_reach(self, contents: LogContents) -> bool:
        """Return True if the reference run, which only moves forward, can reach the log's state."""
        run = self._reference
        assert run is not None
        before = [command for command in contents.meta.executed_commands if command.id in run.executed]
        return (
            run.num_samples <= contents.meta.samples_trained
            and all(change.samples_trained >= run.num_samples for change in self.changes[len(run.changed) :])
            and {command.id: command.samples_trained for command in before} == run.executed
            and all(
                command.samples_trained >= run.num_samples
                for command in contents.meta.executed_commands
                if command.id not in run.executed
            )
        )

    def _expected(self, num_samples: int, commands: list[CommandEntry]) -> ExpectedRows:
        """Advance from the newest known state that leads there; a power loss may have moved the log back."""
        places = {command.id: command.samples_trained for command in commands}
        while not self._known[-1].is_before(num_samples, places):
            self._known.pop()
        self._known.append(self._known[-1].advance(num_samples, commands))
        return self._known[-1]


def differing(what: str, found: dict[Any, Any], expected: dict[Any, Any]) -> str:
    """Return a message with some of the differences."""
    keys = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    shown = [f"{key}: {found.get(key)}, not {expected.get(key)}" for key in keys[:MAX_DIFFERENCES]]
    return f"{len(keys)} {what} are wrong: {shown}"
