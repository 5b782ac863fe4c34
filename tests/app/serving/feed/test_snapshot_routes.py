import json
import shutil

import numpy as np
import pytest

from springtide.app.serving.feed.snapshot_routes import SnapshotCache
from springtide.app.serving.http.errors import ApiError
from springtide.app.version_log.export.snapshot_file import view_at_version
from springtide.app.version_log.read.id_dictionary import decode_strings
from springtide_client.format.tensors import decode_tensors
from springtide_client.keys import hash_string
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


USER, ITEM = 0, 1


def test_a_snapshot_is_the_model_at_one_version(world):
    world.log.start_epoch()
    world.log.publish(
        {(USER, row_id): [row_id, 1, 1, 1] for row_id in range(500)}, dense={"linear.bias": np.ones(2, "f4")}
    )
    world.log.write_base()
    old = world.log.publish({(USER, 3): [9, 9, 9, 9], (ITEM, 8): [8, 8, 8, 8]}, forgotten=[(USER, 4)])
    client = world.serve()
    world.served(client, old)
    answer = client.get("/v1/snapshot")
    assert answer.headers["x-springtide-version"] == str(old)
    tensors, metadata = decode_tensors(answer.content)
    manifest = json.loads(metadata["manifest"])
    assert manifest["version"] == old
    assert manifest["schema"]["categorical"] == ["user_id", "item_id"]
    keys = list(zip(tensors["rows.feature"].tolist(), tensors["rows.id"].tolist(), strict=True))
    rows = dict(zip(keys, tensors["rows.value"].tolist(), strict=True))
    assert rows == {key: row[0].tolist() for key, row in world.log.rows.items()}
    assert tensors["dense.linear.bias"].tolist() == [1, 1]
    assert tensors["model.pt2"].tobytes() == world.log.archive
    new = world.log.publish({(USER, 3): [7, 7, 7, 7]}, dense={"linear.bias": np.zeros(2, "f4")})
    world.served(client, new)
    etag = answer.headers["etag"]
    rest = client.get(f"/v1/snapshot?version={old}", headers={"range": "bytes=1000-", "if-range": etag})
    assert (rest.status_code, rest.content) == (206, answer.content[1000:])
    # another server that never served the old version gives the same bytes
    other = world.serve()
    world.served(other, new)
    assert other.get(f"/v1/snapshot?version={old}").content == answer.content
    assert other.get(f"/v1/snapshot?version={old}").headers["etag"] == etag
    without, _ = decode_tensors(other.get(f"/v1/snapshot?version={new}&rows=none").content)
    assert len(without["rows.id"]) == 0
    assert without["dense.linear.bias"].tolist() == [0, 0]
    assert client.get(f"/v1/snapshot?version={new + 1}").status_code == 410
    assert client.get("/v1/snapshot?rows=some").status_code == 422


def test_a_snapshot_has_the_strings_of_its_live_rows(world):
    world.log.start_epoch()
    shoe, hat = (hash_string(text.encode()) for text in ("shoe", "hat"))
    world.log.publish({(ITEM, shoe): [1, 1, 1, 1]}, strings=[(ITEM, "shoe")])
    both = world.log.publish({(ITEM, hat): [2, 2, 2, 2]}, strings=[(ITEM, "hat"), (ITEM, "never learned")])
    one = world.log.publish(forgotten=[(ITEM, shoe)])
    client = world.serve()
    world.served(client, one)

    def strings_of(version: int) -> dict[int, str]:
        tensors, _ = decode_tensors(client.get(f"/v1/snapshot?version={version}").content)
        return dict(
            zip(
                tensors["texts.id"].tolist(),
                decode_strings(tensors["texts.offsets"], tensors["texts.bytes"]),
                strict=True,
            )
        )

    assert strings_of(both) == {shoe: "shoe", hat: "hat"}
    assert strings_of(one) == {hat: "hat"}
