from types import SimpleNamespace

import pytest

from springtide.app.serving.model.served_view import Part
from springtide_client.format.records import VersionMeta
from springtide_client.log.base import ID_STRINGS
from springtide_client.log.shard_files import EVERY_SHARD, FOR_ASKING, ShardChoice
from springtide_client.parts.part_servers import PartServers
from springtide_client.rows.hash_range import NO_KEYS, HashRange

HALF = HashRange(1, 2)


@pytest.mark.parametrize(
    ("model", "files", "samples_trained", "choice"),
    [
        ("dlrm", (), 5, ShardChoice(HALF)),
        ("dlrm", (), 0, EVERY_SHARD),  # strings may come
        ("dlrm", (ID_STRINGS,), 5, EVERY_SHARD),
        ("two_tower", (), 5, EVERY_SHARD),
    ],
)
def test_a_part_reads_all_shard_records_where_they_have_items_or_strings(model, files, samples_trained, choice) -> None:
    meta = VersionMeta(samples_trained=samples_trained)
    base = SimpleNamespace(files=dict.fromkeys(files), model=SimpleNamespace(name=model), meta=meta)
    assert Part(HALF).shard_choice(base) == choice
    router = Part(NO_KEYS, PartServers(["http://a:1", "http://b:1"]), is_router=True)
    assert router.shard_choice(base) == FOR_ASKING
