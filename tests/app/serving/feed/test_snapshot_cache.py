import shutil

import pytest

from springtide.app.serving.feed.snapshot_cache import SnapshotCache
from springtide.app.serving.http.errors import ApiError
from springtide.app.version_log.export.snapshot_file import view_at_version
from springtide_client.format.tensors import decode_tensors
from springtide_client.log.directory import LogDirectory

USER = 0


def test_a_snapshot_is_made_from_a_newer_base_if_its_own_was_retired(world, tmp_path):
    world.log.start_epoch()
    old = world.log.path / f"base-{world.log.number:020d}"
    number = world.log.publish({(USER, 1): [1, 2, 3, 4]}, strings=[(USER, "x")])
    directory = LogDirectory(world.log.path)
    view = view_at_version(directory, number)

    def content(name):
        (tmp_path / name).mkdir()
        made = SnapshotCache(world.log.path, tmp_path / name, max_bytes=1 << 30).get(view, number, rows="all")
        tensors, _ = decode_tensors(made.path.read_bytes())
        return {name: array.tolist() for name, array in tensors.items()}

    before = content("before")
    newer = world.log.write_base()
    shutil.rmtree(old)
    assert content("after") == before
    shutil.rmtree(newer)
    with pytest.raises(ApiError) as caught:
        content("gone")
    assert caught.value.status == 410


def test_snapshots_on_disk_stay_within_the_limit(world, tmp_path):
    world.log.start_epoch()
    cache = tmp_path / "cache"
    client = world.serve(cache_path=str(cache), snapshot_bytes=60_000)
    sizes = []
    for count in range(4):
        number = world.log.publish({(USER, count): [1, 1, 1, 1]})
        world.served(client, number)
        sizes.append(len(client.get("/v1/snapshot").content))
        held = [path.stat().st_size for path in cache.glob("snapshot-*")]
        assert sizes[-1] in held
        assert sum(held) <= 60_000
    assert len(list(cache.glob("snapshot-*"))) < 4
    small = world.serve(snapshot_bytes=100)
    world.served(small, number)
    assert small.get("/v1/snapshot").status_code == 507
    shutil.rmtree(cache)  # as a cleaner of temporary files does
    assert len(client.get("/v1/snapshot").content) == sizes[-1]
    shutil.rmtree(cache)
    cache.touch()  # nothing can be written there
    answer = client.get("/v1/snapshot")
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "snapshot_disk")
    assert "cache_path" in answer.json()["error"]["hint"]
