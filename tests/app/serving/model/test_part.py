from types import SimpleNamespace

import pytest
from springtide_client.log.base import ID_STRINGS
from springtide_client.log.shard_choice import EVERY_SHARD, FOR_ASKING, ShardChoice
from springtide_client.parts.part_servers import PartServers
from springtide_client.rows.hash_range import NO_KEYS, HashRange

from app.serving.model.part import Part

HALF = HashRange(1, 2)


@pytest.mark.parametrize(
    ("model", "files", "choice"),
    [
        ("dlrm", (), ShardChoice(HALF)),
        ("dlrm", (ID_STRINGS,), EVERY_SHARD),
        ("two_tower", (), EVERY_SHARD),
    ],
)
def test_a_part_reads_all_shard_records_where_they_have_items_or_strings(model, files, choice) -> None:
    base = SimpleNamespace(files=dict.fromkeys(files), model=SimpleNamespace(name=model))
    assert Part(HALF).shard_choice(base) == choice
    router = Part(NO_KEYS, PartServers(["http://a:1", "http://b:1"]), is_router=True)
    assert router.shard_choice(base) == FOR_ASKING
