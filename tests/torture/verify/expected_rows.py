"""What a plain dictionary knows after the same records and orders; shares no code with what it judges."""

import copy
from collections import Counter
from typing import Any

from springtide_client.format.records import CommandEntry

from tests.torture.clicks import click

BATCH, TTL_MS, MIN_COUNT = 64, 300_000, 3


class ExpectedRows:
    """Moves by batches; an order takes place between two of them."""

    def __init__(self, seed: int) -> None:
        self.seed, self.offset, self.num_samples, self.num_bad = seed, 0, 0, 0
        self.users: dict[int, tuple[int, int]] = {}  # count, last seen
        self.items: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()  # items, while they had no row
        self.horizon_ms = self.clock_ms = self.num_expired = self.num_forgotten = 0
        self.orders: dict[str, int] = {}  # executed at how many samples

    def is_before(self, num_samples: int, places: dict[str, int]) -> bool:
        """Whether this lies on the way to there; `places`: the orders, and at how many samples they took place."""
        if num_samples < self.num_samples or any(places.get(id) != at for id, at in self.orders.items()):
            return False
        return all(at >= self.num_samples for id, at in places.items() if id not in self.orders)

    def advance(self, num_samples: int, orders: list[CommandEntry]) -> "ExpectedRows":
        """A copy further on: so many samples learned, and these orders executed where they say."""
        after = copy.deepcopy(self)
        waiting = [order for order in orders if order.id not in after.orders]
        while True:
            while waiting and waiting[0].samples_trained == after.num_samples:
                after._execute(waiting.pop(0))
            if after.num_samples >= num_samples:
                break
            after._learn_batch(min(BATCH, num_samples - after.num_samples))
        assert after.num_samples == num_samples, f"{num_samples} samples are no whole number of batches"
        assert not waiting, f"orders that say they were executed elsewhere: {waiting}"
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
        self.horizon_ms = max(self.horizon_ms, self.clock_ms - TTL_MS)
        alive = {user: row for user, row in self.users.items() if row[1] >= self.horizon_ms}
        self.num_expired += len(self.users) - len(alive)
        self.users = alive
        for fields in batch:
            count, seen = self.users.get(fields["user_id"], (0, 0))
            self.users[fields["user_id"]] = count + 1, max(seen, fields["ts"], self.horizon_ms)
        for item, count in Counter(
            item for fields in batch for item in [fields["item_id"], *fields["last_items"]]
        ).items():
            if item in self.items:
                self.items[item] += count
                continue
            self.seen[item] += count
            if self.seen[item] >= MIN_COUNT:
                self.items[item] = count
        # admitted ids begin with the occurrences of the batch that admitted them
        self.clock_ms = max([self.clock_ms, *(fields["ts"] for fields in batch)])
        self.num_samples += len(batch)

    def _execute(self, order: CommandEntry) -> None:
        self.orders[order.id] = order.samples_trained
        for key in order.keys:
            self.num_forgotten += 1
            if key.feature == "user_id":
                self.users.pop(key.id, None)
            else:
                self.items.pop(key.id, None)
