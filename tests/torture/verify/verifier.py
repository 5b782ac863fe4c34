"""Compares what a log says with what the topic says: by a dictionary every time, bit by bit now and then."""

import shutil
from pathlib import Path
from typing import Any

from springtide_client.format.records import CommandEntry

from tests.torture.clicks import NUM_USERS, click
from tests.torture.cluster.config import WINDOW_SAMPLES
from tests.torture.verify.expected_rows import ExpectedRows
from tests.torture.verify.log_contents import LogContents, item_ids, read_log_contents
from tests.torture.verify.reference_run import ReferenceRun

MAX_DIFFERENCES = 20


class LogVerifier:
    """`promised`: the newest version that anyone was told to be durable."""

    def __init__(self, log: Path, folder: Path, seed: int) -> None:
        self.log, self.folder, self.seed = log, folder, seed
        self.durable_version = self.num_verified = self.num_compared = self.num_rows = 0
        self.submitted: dict[str, int] = {}  # order -> how many keys it names
        self._known = [ExpectedRows(seed)]
        self._items = {row_id: item for item, row_id in item_ids().items()}
        self._undisturbed: ReferenceRun | None = None

    def verify(self) -> LogContents:
        """The log as who begins to read now sees it; AssertionError where it is not what the topic asks for."""
        image = read_log_contents(self.log, window_samples=WINDOW_SAMPLES)
        assert image.tip.number >= self.durable_version, (
            f"{self.durable_version} was durable, the log ends at {image.tip}"
        )
        self.num_verified += 1
        orders = image.meta.executed_commands
        ids = [order.id for order in orders]
        assert len(ids) == len(set(ids)), "an order was executed twice"
        assert set(ids) <= self.submitted.keys(), "an order that nobody gave"
        expected = self._expected(image.meta.samples_trained, orders)
        num_bad, offset = expected.num_bad, expected.offset
        while offset < image.offset and click(self.seed, offset) is None:
            num_bad, offset = num_bad + 1, offset + 1
        assert image.offset == offset, f"the log stands at {image.offset}, its samples end at {offset}"
        assert sum(image.meta.dead_letters.values()) == num_bad, "dead letters are miscounted"
        assert image.meta.event_clock_ms == expected.clock_ms
        users = {row_id: (row[2], row[3]) for (feature, row_id), row in image.rows.items() if feature == 0}
        assert users == expected.users, differing("users", users, expected.users)
        items = {self._items[row_id]: row[2] for (feature, row_id), row in image.rows.items() if feature == 1}
        assert items == dict(expected.items), differing("items", items, dict(expected.items))
        self.num_rows = max(self.num_rows, len(image.rows))
        return image

    def compare_with_reference(self, image: LogContents) -> None:
        """Everything, bitwise, with the run that nobody disturbed."""
        if self._undisturbed is not None and not self._leads_to(image):
            self._undisturbed.close()
            shutil.rmtree(self.folder / "undisturbed")
            self._undisturbed = None
        if self._undisturbed is None:
            self._undisturbed = ReferenceRun(self.folder / "undisturbed", self.seed)
        other = self._undisturbed.advance(image.meta.samples_trained, image.meta.executed_commands)
        differences = image.differences(other)
        assert not differences, "\n".join(differences[:MAX_DIFFERENCES])
        self.num_compared += 1

    def expected_user(self, image: LogContents, user: int) -> tuple[int | None, int | None]:
        """Count and last seen."""
        row = image.rows.get((0, user))
        return (None, None) if row is None else (row[2], row[3])

    def users(self) -> range:
        return range(NUM_USERS)

    def close(self) -> None:
        if self._undisturbed is not None:
            self._undisturbed.close()

    def _leads_to(self, image: LogContents) -> bool:
        """Whether the undisturbed run, which only goes forward, is where the log was before."""
        run = self._undisturbed
        assert run is not None
        before = [order for order in image.meta.executed_commands if order.id in run.executed]
        return (
            run.num_samples <= image.meta.samples_trained
            and {order.id: order.samples_trained for order in before} == run.executed
            and all(
                order.samples_trained >= run.num_samples
                for order in image.meta.executed_commands
                if order.id not in run.executed
            )
        )

    def _expected(self, num_samples: int, orders: list[CommandEntry]) -> ExpectedRows:
        """From the furthest known point that lies on the way there: a power loss may have taken a way back."""
        places = {order.id: order.samples_trained for order in orders}
        while not self._known[-1].is_before(num_samples, places):
            self._known.pop()
        self._known.append(self._known[-1].advance(num_samples, orders))
        return self._known[-1]


def differing(what: str, found: dict[Any, Any], expected: dict[Any, Any]) -> str:
    """Some of them."""
    keys = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    shown = [f"{key}: {found.get(key)}, not {expected.get(key)}" for key in keys[:MAX_DIFFERENCES]]
    return f"{len(keys)} {what} are wrong: {shown}"
