from datetime import UTC, datetime

import msgspec
import pytest

from springtide.app.serving.model.versions import VersionIndex, VersionResponse
from springtide.app.version_log.commands.pin import pin_version
from springtide.app.version_log.read.index import LogIndex
from springtide_client.follow.follower import AppliedVersion
from springtide_client.format.records import VersionMeta, version_name
from springtide_client.log.directory import LogDirectory


def entry(number):
    return AppliedVersion(number, 0, number, VersionMeta())


def test_versions_are_listed_newest_first_in_pages():
    index = VersionIndex()
    for number in range(1, 11):
        index.add(entry(number))
    assert [found.number for found in index.newest(limit=3)] == [10, 9, 8]
    assert [found.number for found in index.newest(limit=3, before=8)] == [7, 6, 5]
    assert index.newest(limit=3, before=1) == []
    assert [found.number for found in index.newest(limit=30, before=99)] == list(range(10, 0, -1))
    assert index.oldest == 1


def test_versions_after_a_restart_from_a_base_replace_later_ones():
    index = VersionIndex()
    for number in (1, 2, 3):
        index.add(entry(number))
    index.add(entry(3))
    index.add(entry(2))
    assert [found.number for found in index.newest(limit=9)] == [3, 2, 1]
    index.add(AppliedVersion(9, 2, 5, VersionMeta()))
    assert index.find(9).checksum == 5
    assert index.find(4) is None


def test_a_manifest_shows_checksums_as_hexadecimal_strings():
    version = AppliedVersion(3 * 2**32 + 7, 2**63, 1, VersionMeta(step=4))
    document = msgspec.to_builtins(VersionResponse.of(version))
    assert document["name"] == "3.7"
    assert document["parent"] == "8000000000000000"
    assert document["checksum"] == "0000000000000001"
    assert (document["epoch"], document["count"], document["step"]) == (3, 7, 4)


def test_a_version_has_the_same_names_as_on_the_command_line(world) -> None:
    world.log.start_epoch()
    numbers = [world.log.publish(samples_trained=count) for count in range(5)]
    client = world.serve()
    world.served(client, numbers[-1])
    pin = pin_version(world.log.path, str(numbers[1]), "good")
    listed = client.get("/v1/versions?limit=1").json()["pins"]
    assert listed == [{"name": "good", "version": numbers[1], "created_ms": pin.created_ms}]
    created = LogIndex(LogDirectory(world.log.path)).meta(numbers[-1]).created_ms
    second = datetime.fromtimestamp(created / 1000 + 1, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, number in {"good": numbers[1], version_name(numbers[2]): numbers[2], f"@{second}": numbers[-1]}.items():
        one = client.get(f"/v1/versions/{name}")
        assert one.json()["version"] == number, one.text
        assert one.json()["pins"] == (["good"] if number == numbers[1] else [])
        snapshot = client.get("/v1/snapshot", params={"version": name, "rows": "none"})
        assert snapshot.headers["x-springtide-version"] == str(number)
    before = client.get("/v1/versions", params={"before": "good"}).json()["versions"]
    assert before[0]["version"] == numbers[0]


@pytest.mark.parametrize(("name", "status"), [("@noon", 422), ("nobody", 410), ("@1999-01-01", 410), ("1.77", 410)])
def test_a_name_of_no_version_is_a_clear_error(world, name: str, status: int) -> None:
    world.log.start_epoch()
    number = world.log.publish(samples_trained=1)
    client = world.serve()
    world.served(client, number)
    for response in (client.get(f"/v1/versions/{name}"), client.get("/v1/snapshot", params={"version": name})):
        assert response.status_code == status, response.text
        assert "version" in response.json()["error"]["message"]


def test_a_server_of_one_version_does_not_follow_the_log(world) -> None:
    world.log.start_epoch()
    numbers = [world.log.publish(samples_trained=count) for count in range(3)]
    client = world.serve(version=numbers[1])
    world.served(client, numbers[1])
    live = world.serve()
    newest = world.log.publish(samples_trained=9)
    world.served(live, newest)
    assert client.get("/v1/versions/latest").json()["version"] == numbers[1]
    assert client.get("/v1/status").json()["version"] == numbers[1]
    for path in (f"/v1/log?after={numbers[1]}", "/v1/bases/latest"):
        refused = client.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "fixed_version")
