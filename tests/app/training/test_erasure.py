"""A forgotten key is gone from every tier, and no fetch in flight restores it."""

import numpy as np
import pytest

from springtide.app.training.commands import CommandExecutor
from springtide.app.training.state.spill_gc import SpillGC
from springtide.app.version_log.commands.queue import command_status, submit_command
from springtide.embeddings.rows import Int64Array
from springtide.embeddings.tiers.host_tier import HostTier
from springtide.embeddings.tiers.record_kinds import ROW
from springtide.kernels.types import NO_SLOT
from springtide_client.model.view import KNOWN
from tests.app.training.random_clicks import RANDOM_CLICKS, make_batch
from tests.app.training.state.test_training_state import TIGHT
from tests.support.config import NET_ALONE, config_in
from tests.support.learned_log import LearnedLog

ITEMS = np.arange(2000)
FEATURES = np.ones(2000, np.uint16)


class Tiers(LearnedLog):
    """A trainer's parts over a table too small for its rows."""

    def __init__(self, folder) -> None:
        super().__init__(config_in(folder, RANDOM_CLICKS, TIGHT, NET_ALONE, {"table": {"host_bytes": "16KiB"}}))
        self.path = self.config.log.path

    def open(self) -> None:
        super().open()
        self.executor = CommandExecutor(self.config.log.path, self.log.epoch, self.state)
        self.spill_gc = SpillGC(self.state.learner.table.tables, self.log.directory, self.state.base_number)

    def checkpoint(self) -> int:
        number = super().checkpoint()
        self.spill_gc.on_checkpoint(number)
        self.executor.on_published(number)
        self.log.sync()
        return number

    def merge(self) -> None:
        """Compact everything published so far into a base, and map it."""
        self.checkpoint()
        self.compact()
        self.spill_gc.map_newest_base(self.log.last_encoded.number)

    def places(self) -> dict[str, set[int]]:
        """The items that have a copy in each place."""
        table = self.state.learner.table
        host = table.spill
        assert isinstance(host, HostTier)
        host.spill.drain()
        buffered = {
            int(i) for rows in table.evicted_dirty._parts if rows.tombstone is None for i in rows.id[rows.feature == 1]
        }
        here = host.ops.find(host._store, FEATURES, ITEMS, host.ops.hash_keys(FEATURES, ITEMS))
        base = table.lower_tiers.base.base.main.rows
        return {
            "device": _items(table.memory.find(FEATURES, ITEMS) != NO_SLOT),
            "side": buffered,
            "host": _items(here != NO_SLOT),
            "disk": _items(host.spill.find(FEATURES, ITEMS).kinds_U == ROW),
            "base": {int(i) for i in base.id[base.feature == 1]},
        }

    def status(self, items: Int64Array) -> list[int]:
        return self.state.learner.table.find(np.ones(len(items), np.uint16), items)[1].tolist()


def _items(found) -> set[int]:
    return set(np.flatnonzero(found).tolist())


@pytest.fixture
def tiers(tmp_path):
    with Tiers(tmp_path / "run") as made:
        yield made


def forget(tiers: Tiers, items: list[int]) -> str:
    keys = [{"feature": "item_id", "id": str(item)} for item in items]
    command = submit_command(tiers.path, "forget", {"keys": keys})
    tiers.executor.execute()
    return command


def test_a_forgotten_key_is_gone_from_every_tier(tiers):
    tiers.step(*range(12))
    tiers.merge()
    for number in range(12, 30):
        if number % 3 == 0:
            tiers.checkpoint()
        tiers.state.learn(make_batch(number))
    places = tiers.places()
    chosen = {place: sorted(items)[:3] for place, items in places.items()}
    assert min(map(len, chosen.values())) == 3, {place: len(items) for place, items in places.items()}
    everyone = np.array(sorted(set().union(*chosen.values())))
    assert set(tiers.status(everyone)) == {KNOWN}
    command = forget(tiers, everyone.tolist())
    assert KNOWN not in tiers.status(everyone)
    number = tiers.checkpoint()
    for place, items in tiers.places().items():
        assert place == "base" or not items & set(everyone.tolist()), place
    view = tiers.view()
    assert view.version == number
    assert KNOWN not in view.lookup(np.ones(len(everyone), np.uint16), everyone)[1].tolist()
    assert command_status(tiers.path, command).version == number
    tiers.merge()
    assert not tiers.places()["base"] & set(everyone.tolist())
    tiers.restart()
    assert KNOWN not in tiers.status(everyone)


def test_a_fetch_in_flight_does_not_restore_a_forgotten_key(tiers):
    tiers.step(*range(12))
    tiers.merge()
    table = tiers.state.learner.table
    below = np.array(sorted(tiers.places()["base"] - tiers.places()["device"]))[:8]
    keys = np.ones(len(below), np.uint16), below, np.full(len(below), 1_600_000_000_999)
    prefetch = table.prefetch(*keys)
    prefetch.fetch.fetched.result()  # it has what it will bring
    forget(tiers, below[:4].tolist())
    lookup = table.lookup(*keys, prefetched=prefetch)
    counts = table.memory.read(lookup.slots_U, lookup.unique.features_U, lookup.unique.ids_U)[0]
    known = dict(zip(counts.id.tolist(), counts.count.tolist(), strict=True))
    assert [known[item] for item in below[:4].tolist()] == [0] * 4
    assert min(known[item] for item in below[4:].tolist()) > 0
    lookup.release()


def test_a_forgotten_key_seen_again_before_the_checkpoint_is_written_as_new(tiers):
    batch = make_batch(0)
    tiers.state.learn(batch)
    tiers.checkpoint()
    item = int(batch.features.categorical_NC[0, 1])
    forget(tiers, [item])
    tiers.state.learn(batch)
    tiers.checkpoint()
    ids = np.concatenate([batch.features.categorical_NC[:, 1], batch.features.lists[1].ids_M])
    assert tiers.view().row_info(1, item)["count"] == int((ids == item).sum())
