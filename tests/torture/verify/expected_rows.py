"""The rows that the log must hold, by plain dictionaries; shares no code with what it checks."""

import copy
from collections import Counter
from typing import Any

from springtide_client.format.records import CommandEntry
from tests.torture.clicks import click

FEWEST, BATCH, TTL_MS, MIN_COUNT = 4, 64, 300_000, 3


class ExpectedRows:
    """Advances by batches; a command is executed between two of them."""

    def __init__(self, seed: int) -> None:
        self.seed, self.offset, self.num_samples, self.num_bad = seed, 0, 0, 0
        self.users: dict[int, tuple[int, int]] = {}  # count, last seen
        self.items: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()  # occurrences of items without a row
        self.cutoff_ms = self.clock_ms = self.num_expired = self.num_forgotten = 0
        self.commands: dict[str, int] = {}  # command id -> samples learned when it was executed

    def is_before(self, num_samples: int, places: dict[str, int]) -> bool:
        """Return True if advancing can lead to `num_samples`; `places`: samples at which each command was executed."""
        if num_samples < self.num_samples or any(places.get(id) != at for id, at in self.commands.items()):
            return False
        return all(at >= self.num_samples for id, at in places.items() if id not in self.commands)

    def advance(self, num_samples: int, commands: list[CommandEntry]) -> "ExpectedRows":
        """Return a copy after `num_samples` samples, with these commands executed where they say."""
        after = copy.deepcopy(self)
        waiting = [command for command in commands if command.id not in after.commands]
        while True:
            while waiting and waiting[0].samples_trained == after.num_samples:
                after._execute(waiting.pop(0))
            if after.num_samples >= num_samples:
                break
            size = FEWEST  # a batch has at most a 128th of the samples learned before it
            while size < BATCH and 2 * size * 128 <= after.num_samples:
                size *= 2
            after._learn_batch(min(size, num_samples - after.num_samples))
        assert after.num_samples == num_samples, f"{num_samples} samples are not a whole number of batches"
        assert not waiting, f"commands with impossible places: {waiting}"
        return after

    def _learn_batch(self, size: int) -> None:
        batch: list[dict[str, Any]] = []
        while len(batch) < size:
            fields = click(self.seed, self.offset)
            self.offset += 1
            if fields is None:
                self.num_bad += 1
            else:
                batch.append(fields)
        self._learn(batch)

    def _learn(self, batch: list[dict[str, Any]]) -> None:
        self.cutoff_ms = max(self.cutoff_ms, self.clock_ms - TTL_MS)
        alive = {user: row for user, row in self.users.items() if row[1] >= self.cutoff_ms}
        self.num_expired += len(self.users) - len(alive)
        self.users = alive
        for fields in batch:
            count, seen = self.users.get(fields["user_id"], (0, 0))
            self.users[fields["user_id"]] = count + 1, max(seen, fields["ts"], self.cutoff_ms)
        for item, count in Counter(
            item for fields in batch for item in [fields["item_id"], *fields["last_items"]]
        ).items():
            if item in self.items:
                self.items[item] += count
                continue
            self.seen[item] += count
            if self.seen[item] >= MIN_COUNT:
                self.items[item] = count
        # an admitted id starts with the occurrences of the batch that admitted it
        self.clock_ms = max([self.clock_ms, *(fields["ts"] for fields in batch)])
        self.num_samples += len(batch)

    def _execute(self, command: CommandEntry) -> None:
        self.commands[command.id] = command.samples_trained
        for key in command.keys:
            self.num_forgotten += 1
            if key.feature == "user_id":
                self.users.pop(key.id, None)
            else:
                self.items.pop(key.id, None)
