"""After a rollback of a random log, followers read the rows of the restored version."""

import msgspec
import pytest

from springtide.app.errors import UserError
from springtide.app.version_log.commands.restore import build_rollback
from springtide.app.version_log.tables import tables_of
from springtide_client.rows.layers import merge_layers
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import FEATURES, WriterLog, rows_of, rows_of_table


def read(log: WriterLog) -> dict:
    """Return every live row at the end of the log, as read from the newest base on."""
    base = log.directory.open_base()
    records = list(log.directory.records(base.head))
    meta = records[-1].meta if records else base.manifest.meta
    found = {}
    for table in tables_of(base.manifest):
        layers = [table.record_layer(record.tensors(), with_states=True) for record in records]
        merged = merge_layers(table.base_layer(base), *layers)
        alive = merged.take(merged.live_mask(meta.expiry_cutoffs).nonzero()[0])
        found |= rows_of_table(table.name, alive) if log.tables else rows_of(alive)
    return found


@pytest.mark.parametrize(
    ("log", "seed"),
    [*(("one table", seed) for seed in range(12)), *(("three tables", seed) for seed in range(4))],
    indirect=["log"],
)
def test_a_rollback_restores_the_rows_except_those_erased_since(log, seed):
    with log.writer(segment_bytes=1 << 16) as writer:
        random = RandomVersions(log, writer, seed, FEATURES if log.tables else (0, 1))
        random.write(20)
        for _ in range(4):
            if random.rng.random() < 0.6:
                random.compact()
            random.write(random.rng.randrange(1, 12))
            writer.sync()
            oldest = log.directory.scan().bases[0]
            number = random.rng.choice([known for known in random.worlds if known >= oldest])
            gone = {key for version, keys in random.ordered.items() if version > number for key in keys}
            rollback = build_rollback(
                log.directory, number, window_samples=100, range_bytes=random.rng.choice([2_000, 1 << 30])
            )
            then = {
                key: row
                for key, row in random.worlds[number].items()
                if key not in gone and (key[0] != 1 or row[1] >= random.horizon)
            }
            head = writer.append(rollback.meta, rollback.arrays)
            writer.sync()
            random.now = then
            random.worlds[head.number] = dict(then)
            assert read(log) == then
            assert rollback.meta.restores == number


def test_a_version_whose_base_was_deleted_is_refused(log):
    with log.writer() as writer:
        random = RandomVersions(log, writer)
        random.write(5)
        early = writer.last_encoded.number
        random.write(5)
        base = random.compact()
        for path in log.directory.bases()[:-1]:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        random.write(3)
        writer.sync()
        with pytest.raises(UserError, match=r"the oldest that can is 1\.11|1\.\d+"):
            build_rollback(log.directory, early, window_samples=100)
        assert build_rollback(log.directory, base.head.number, window_samples=100).meta.restores == base.head.number
        with pytest.raises(UserError, match="is not in the log"):
            build_rollback(log.directory, (1 << 32) + 77, window_samples=100)


def test_a_rollback_restores_the_meta_except_cutoffs_and_limits(log):
    with log.writer() as writer:
        random = RandomVersions(log, writer)
        random.write(3)
        number = writer.last_encoded.number
        random.write(3)
        random.horizon = 500
        random.append({}, [])
        writer.sync()
        rollback = build_rollback(log.directory, number, window_samples=100)
        assert rollback.meta.expiry_cutoffs == {"1": 500}
        assert rollback.meta.samples_trained == 3
        assert rollback.meta.executed_commands == []
        assert msgspec.json.decode(msgspec.json.encode(rollback.meta))["restores"] == number
